"""Kinds beside the built-in ones: their real CRDs, and stand-ins for the operators that run them."""
