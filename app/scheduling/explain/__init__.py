"""Explains why a PodGroup has no room, why no pod is evicted for it, and which PodGroups can never run."""
