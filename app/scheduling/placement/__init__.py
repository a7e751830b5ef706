"""Where pods can run: fit, free resources, devices, NVLink, topology, gangs, and which node is best.

`state.PlacementState` is the placement of one plan; nothing here knows queues.
"""
