"""A cluster in memory behind the same interface as `kube`, for the demo and for tests of the whole service."""
