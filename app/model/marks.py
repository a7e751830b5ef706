"""The names that Leeboard writes on other objects. They share one prefix, so that one rule can guard all of them."""

PREFIX = "leeboard.dev/"
"""The prefix of every label, annotation, scheduling gate and extended resource of Leeboard."""

GATE = "leeboard.dev/held"
"""The scheduling gate of a managed pod whose turn has not come. kube-scheduler ignores a gated pod."""

ASK_MARKER = "leeboard.dev/ask"
"""The extended resource by which the extender entry of filter, prioritize and preempt selects managed pods."""

BIND_MARKER = "leeboard.dev/bind"
"""The same for the bind entry. kube-scheduler refuses one resource in two entries."""

OPT_IN_LABEL = "leeboard.dev/managed"
"""On a namespace, with the value `true`: its pods that name a queue are managed, although they name no scheduler."""

DEVICES_ANNOTATION = "leeboard.dev/devices"
"""On a pod that shares devices: their UUIDs, comma-separated. bind writes it, and the pod's environment reads it."""

PORTION_ANNOTATION = "leeboard.dev/portion"
"""On the same pod: the fraction of each device, such as 0.50 (KAI's GPU_PORTION)."""

MEMORY_ANNOTATION = "leeboard.dev/memory-mib"
"""On the same pod: the memory of each device that the pod may use, in MiB."""

MPS_MEMORY_ANNOTATION = "leeboard.dev/mps-memory"
"""On the same pod: the same memory in the form of CUDA's MPS server for its clients, such as `0=8192M,1=8192M`."""

GROUPS_ANNOTATION = "leeboard.dev/device-groups"
"""On the same pod, in the order of the UUIDs: the accounting names of the shared devices.

Each name is also the group of a reservation pod, so the accounting can be rebuilt from stored objects.
"""

SHARE_ANNOTATION = "leeboard.dev/gpu-share"
"""On the same pod: what its queue pays for each device until the pod ends, whatever its own annotations say later.

The value is a fraction such as `0.50` or an amount such as `8192Mi`.
"""

PREEMPTIBLE_ANNOTATION = "leeboard.dev/preemptible"
"""On a pod, written by bind: `true` or `false`, whether its group was preemptible when it started.

A pod that starts as preemptible stays preemptible. Admission writes `true` on a pod that kube-scheduler binds itself.
"""

QUEUE_ANNOTATION = "leeboard.dev/queue"
"""On a pod, written by bind: the queue that pays for the pod until it ends, whatever its labels say later.

Admission writes it on a pod that kube-scheduler binds itself.
"""

RESERVATION_APP = "kai-resource-reservation"
"""Label `app` of a reservation pod, which holds a whole device so that fractions of it can be shared (KAI's name)."""

RESERVATION_GROUP_LABEL = "runai-gpu-group"
"""Label of a reservation pod, and of the pods that share its device: the name of the shared device (KAI's name)."""

RESERVED_DEVICE_ANNOTATION = "run.ai/reserve_for_gpu_index"
"""On a reservation pod: the UUID of its device. It is a UUID although KAI's name says index."""

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
"""On a reservation pod, with the value `leeboard`. A KAI Scheduler in the same cluster has its own reservation pods."""

MANAGED_BY = "leeboard"
