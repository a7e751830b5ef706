"""The process beside the deciding one that serves the page, the state of the cluster and the stream of its changes.

It is fed with frames over a socket, keeps the state, and shows each reader what the reader may see. So readers never
delay scheduling.
"""
