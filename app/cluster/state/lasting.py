"""Decides what is kept of a pod when a new version of the pod cannot be true, or cannot be used."""

from dataclasses import replace

from app.cluster.decode.reading import LEAST
from app.model.names import GroupKey
from app.model.pod import Pod


def lasting(before: Pod | None, now: Pod) -> Pod:
    """Return a pod as it is stored after a new version of it; implausible fields keep their old values.

    The API server does not allow changes to the node of a bound pod, its scheduler or its devices. A version in which
    these fields cannot be read must not free what the pod holds.
    """
    if before is None or not (now.problem == LEAST or _contradicts(before, now)):
        return now
    deleting = before.deleting or now.deleting
    return replace(before, node=before.node or now.node, deleting=deleting, said=now.said, problem=now.problem)


def _contradicts(before: Pod, now: Pod) -> bool:
    return before.node is not None and (
        now.unread > before.unread
        or now.self_placed > before.self_placed
        or (now.node, now.reserves) != (before.node, before.reserves)
        # The opposite case, a pod that becomes managed, was stored by `plain`.
        or (before.managed and not now.managed)
        or now.request.gpu_milli < before.request.gpu_milli
        or bool(dict(before.scalars).items() - dict(now.scalars).items())
        or (before.sharing is not None and now.sharing is None)
        or (bool(before.devices) and not now.devices)
    )


def plain(pod: Pod) -> Pod:
    """Return only what a pod holds, for the case that the complete pod cannot be used."""
    return Pod(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        group=GroupKey(pod.namespace, pod.uid),
        queue=pod.queue,
        request=pod.request,
        scalars=pod.scalars,
        managed=False,
        node=pod.node,
        self_placed=pod.self_placed,
        deleting=pod.deleting,
        problem=LEAST,
        # Its part of a GPU is no longer charged to any queue.
        unread=pod.unread or bool(pod.devices),
    )
