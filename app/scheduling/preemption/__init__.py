"""Who has to leave so that a waiting PodGroup can start: victim policies, bounds, and the counted search.

`search` looks for the fewest victims of one group, `searches` says which groups are due, `whatif` is a tried plan.
"""
