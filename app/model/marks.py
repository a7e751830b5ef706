"""The names under which Leeboard writes on objects of others: one prefix, so that one rule can guard them all."""

PREFIX = "leeboard.dev/"
"""Of every label, annotation, scheduling gate and extended resource that is ours."""

GATE = "leeboard.dev/held"
"""The scheduling gate of a pod that is managed and whose turn has not come: kube-scheduler does not look at it."""

ASK_MARKER = "leeboard.dev/ask"
"""Extended resource by which the extender entry of filter, prioritize and preempt tells managed pods from others."""

BIND_MARKER = "leeboard.dev/bind"
"""The same for the bind entry: kube-scheduler refuses one resource in two entries."""

OPT_IN_LABEL = "leeboard.dev/managed"
"""On a namespace, with the value `true`: its pods that name a queue are ours although they name no scheduler."""

DEVICES_ANNOTATION = "leeboard.dev/devices"
"""On a pod that shares devices: their UUIDs, comma-separated, written by bind and read by the pod's own environment."""

PORTION_ANNOTATION = "leeboard.dev/portion"
"""Beside it: which part of each of them is the pod's, such as 0.50 (KAI's GPU_PORTION)."""

PREEMPTIBLE_ANNOTATION = "leeboard.dev/preemptible"
"""On a pod, with the value `true`, written by bind: its group was preemptible when it started, and stays so with it."""
