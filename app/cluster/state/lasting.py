"""Tells what of a pod is remembered when a new version of it cannot be true, or cannot be used."""

from dataclasses import replace

from app.cluster.decode.reading import LEAST
from app.model.names import GroupKey
from app.model.pod import Pod


def lasting(before: Pod | None, now: Pod) -> Pod:
    """Return a pod as it is to be remembered after a new version of it: as before, where that cannot be believed.

    The API server lets nobody change the node of a bound pod, its scheduler or its devices. Whoever believed a version
    in which these cannot be read would give away what the pod holds.
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
        # The other way round it was remembered by `plain`.
        or (before.managed and not now.managed)
        or now.request.gpu_milli < before.request.gpu_milli
        or bool(dict(before.scalars).items() - dict(now.scalars).items())
        or (before.sharing is not None and now.sharing is None)
        or (bool(before.devices) and not now.devices)
    )


def plain(pod: Pod) -> Pod:
    """Return what a pod holds and nothing more, for the case that the whole of it cannot be used."""
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
        # Its part of a GPU is charged to nobody any more.
        unread=pod.unread or bool(pod.devices),
    )
