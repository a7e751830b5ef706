"""Remembers: the cluster as the watches showed it, and what we promised. State without I/O."""
