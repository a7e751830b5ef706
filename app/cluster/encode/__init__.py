"""Writes Kubernetes objects: status fields, PodGroups, what a cluster autoscaler reads. The counterpart of `decode`."""
