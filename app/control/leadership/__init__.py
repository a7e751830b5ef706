"""Tells whether this replica decides, and whether its service account has the rights that this needs.

All other packages of `control` check this before they write. `readiness` joins `leadership` and `freshness`: whether
the replica is active, and how complete and fresh its picture of the cluster is.
"""
