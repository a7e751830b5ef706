"""Makes scheduling decisions as pure functions: from a frozen Snapshot to a value. No clock, no I/O, no logger."""
