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

MEMORY_ANNOTATION = "leeboard.dev/memory-mib"
"""Beside it: how much memory of each of them the pod may use, in MiB."""

MPS_MEMORY_ANNOTATION = "leeboard.dev/mps-memory"
"""Beside it, the same as CUDA's MPS server reads it for its clients, such as `0=8192M,1=8192M`."""

GROUPS_ANNOTATION = "leeboard.dev/device-groups"
"""Beside it, in the same order: the shared devices by the names under which they are accounted; each is the name of a
reservation pod's group too, so that the books can be made anew from what is stored."""

SHARE_ANNOTATION = "leeboard.dev/gpu-share"
"""Beside it: what the pod pays for of each of them until it ends, a fraction such as `0.50` or an amount such as
`8192Mi`, whatever its own annotations say later."""

PREEMPTIBLE_ANNOTATION = "leeboard.dev/preemptible"
"""On a pod, written by bind: whether its group was preemptible when it started, `true` or `false`. What starts as
preemptible stays so. Admission writes `true` on a pod that kube-scheduler binds by itself."""

QUEUE_ANNOTATION = "leeboard.dev/queue"
"""On a pod, written by bind: the queue that pays for it until it ends, whatever its labels say later. Admission writes
it on a pod that kube-scheduler binds by itself."""

RESERVATION_APP = "kai-resource-reservation"
"""Label `app` of a reservation pod, which holds a whole device so that parts of it can be given out (KAI's name)."""

RESERVATION_GROUP_LABEL = "runai-gpu-group"
"""Label of a reservation pod, and of the pods that share its device: the name of the shared device (KAI's name)."""

RESERVED_DEVICE_ANNOTATION = "run.ai/reserve_for_gpu_index"
"""On a reservation pod: the UUID of its device, whatever the name says (KAI's name)."""

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
"""On a reservation pod, with the value `leeboard`: those of a KAI Scheduler in the same cluster are its own."""

MANAGED_BY = "leeboard"
