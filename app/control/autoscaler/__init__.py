"""Tells a cluster autoscaler which nodes waiting PodGroups lack: by ProvisioningRequests or by placeholder pods."""
