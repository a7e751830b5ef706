"""What a recording of the core holds: its inputs in reduced form, from which a replay decides the same.

A recording may leave the cluster with a bug report. So it holds no raw object: `reduce.py` keeps the fields that
Leeboard reads, and nothing else.
"""
