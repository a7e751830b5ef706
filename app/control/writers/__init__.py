"""Writes to the API server: bindings and evictions, each once, and as many at a time as kube-scheduler can follow.

A gang binds together or not at all: its members wait at `barrier`.
"""
