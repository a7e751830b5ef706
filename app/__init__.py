"""Leeboard: queues, gangs and GPU placement beside a stock kube-scheduler."""
