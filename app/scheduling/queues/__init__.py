"""What queues may hold: quota, limits, fair share, reclaimable amounts, and whose turn it is."""
