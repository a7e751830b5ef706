"""Records recent decisions, the back-off after failures, and the wording of both.

This package stores and words; it decides nothing.
"""
