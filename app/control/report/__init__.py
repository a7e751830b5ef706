"""Turns facts into what people read: conditions, events, status, and the one answer to why a pod waits."""
