"""Decides what queues may hold: quota, limits, fair share, reclaimable amounts, and the order of their PodGroups."""
