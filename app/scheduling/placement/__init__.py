"""Decides where pods can run: fit, free resources, devices, NVLink, topology, gangs, and which node is best.

`state.PlacementState` is the placement of one plan. Nothing in this package uses queues.
"""
