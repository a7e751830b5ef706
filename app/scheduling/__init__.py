"""Decides, purely: from a frozen Snapshot to a value. No clock, no I/O, no logger."""
