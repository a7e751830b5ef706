"""Carries watch events into the cache, and compares the cache with what is stored.

`feed` is the only writer of what the API server shows; `audit` finds what its watches have missed.
"""
