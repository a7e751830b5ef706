"""Decides which pods are evicted so that a pending PodGroup can start: victim policies, bounds, and the counted search.

`search` looks for the fewest victims of one group. `searches` says which groups are due. `whatif` is a tried plan.
"""
