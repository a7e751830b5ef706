"""The deterministic core: what the service decides follows from its inputs alone.

The core reads no socket, no clock and no random number, and starts no thread. Its coroutines run on an event loop of
its own (`loop.py`), one round at a time, and the shell says when, and what time it is then. What the core wants done
leaves it as a Command; what happened comes back as an input. So the same inputs, at the same rounds, lead to the same
Commands.
"""
