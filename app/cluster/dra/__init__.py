"""Counts devices of DRA: what nodes have of them, what claims hold, and what a pod's claims cost its queue.

`expressions` evaluates selectors, `device_models` tells which devices a request accepts, `pools` which devices a node
has, and `claims` joins them with the pods. kube-scheduler allocates the devices; nothing here chooses one.
"""
