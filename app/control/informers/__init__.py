"""Applies watch events to the cache, and compares the cache with the stored objects.

Only `feed` writes what the API server shows, by the rules of `kinds`; `audit` finds events that the watches of `feed`
have missed.
"""
