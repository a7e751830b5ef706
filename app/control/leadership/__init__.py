"""Whether this replica decides, and whether its service account may do what deciding needs.

Everything else in `control` asks here before it writes.
"""
