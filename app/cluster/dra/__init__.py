"""Counts devices of DRA: what nodes have of them, what claims hold, and what a pod's claims cost its queue.

`expressions` evaluates selectors, `device_models` tells which devices a request accepts, `pools` which devices a node
has, `pod_demands` what a pod asks for, and `device_claims` joins them. kube-scheduler allocates the devices; nothing
here chooses one.
"""
