"""The tree of queues, judged as a whole, and what each queue has used lately."""
