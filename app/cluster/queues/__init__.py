"""The tree of queues, judged as a whole, and the recent usage of each queue."""
