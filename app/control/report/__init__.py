"""Turns state into texts for users: conditions, events, status, and the one answer to why a pod waits."""
