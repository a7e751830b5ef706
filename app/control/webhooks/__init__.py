"""The answers to kube-scheduler and to the API server, from the cache and the reservations, without a wire."""
