"""Carries watch events into the cache, and compares the cache with what is stored.

`feed` is the only writer of what the API server shows, by the rules of `kinds`; `audit` finds what its watches have
missed.
"""
