"""The client of the Kubernetes API: list, watch, and a few writes. Its errors are `KubeError`."""
