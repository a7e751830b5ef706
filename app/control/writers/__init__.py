"""Writes bindings and evictions to the API server, each once, and only as many at a time as kube-scheduler can follow.

A gang binds together or not at all: its members wait at `barrier`.
"""
