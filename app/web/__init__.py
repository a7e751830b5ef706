"""HTTP in and out: the webhooks of kube-scheduler, health, metrics and the read API."""
