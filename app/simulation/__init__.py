"""A cluster in memory behind the same seam as `kube`: for the demo and for tests of the whole."""
