"""Requests nodes from a cluster autoscaler for pending PodGroups: by ProvisioningRequests or by placeholder pods."""
