"""Whether this replica decides, and whether its service account may do what deciding needs.

Everything else in `control` asks here before it writes: `readiness` joins `leadership` and `freshness`, which is how
whole and fresh the picture of the cluster is.
"""
