"""The kinds people submit beside Kubernetes' own: their real CRDs, and stand-ins for the operators that run them."""
