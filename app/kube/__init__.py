"""Talks to the Kubernetes API: list, watch, a few writes. Its errors are `KubeError`."""
