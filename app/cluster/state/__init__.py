"""The cluster as the watches have shown it: `cache` applies events and freezes Snapshots."""
