"""What is held where: charges on nodes and queues, and reservations for pods that are not bound yet."""
