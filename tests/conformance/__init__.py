"""Runs recorded KAI vectors against our own functions: `python -m tests.conformance PATH...`."""
