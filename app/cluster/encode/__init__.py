"""Writes Kubernetes objects: status fields, PodGroups, and what a cluster autoscaler reads. The twin of `decode`."""
