"""The answers to kube-scheduler and the API server, from the cache and the reservations, without the wire format."""
