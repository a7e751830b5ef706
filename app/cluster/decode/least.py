"""Reads the minimum of a pod that its charge needs, for the case that a bug prevents the complete reading.

It shares with the complete reader only the grammar of names and amounts, so that one bug cannot break both.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from app.cluster.decode.demand import GPU_RESOURCE, WHOLE_GPU_MILLI, is_extended
from app.cluster.decode.glances import SeenPod
from app.cluster.decode.parts import CONTAINERS, fields
from app.cluster.decode.pods import DEFAULT_QUEUE, DEFAULT_SCHEDULER, QUEUE_LABELS, is_accepted
from app.cluster.decode.reading import LEAST, DecodeError, Fields
from app.model.marks import GROUPS_ANNOTATION, QUEUE_ANNOTATION
from app.model.names import NO_QUEUE, GroupKey, NodeName, PodUid, QueueName
from app.model.pod import Pod
from app.model.quantity import QuantityError, TooMuchError, milli, whole
from app.model.resources import MAX_AMOUNT, Resources
from app.model.seam import RawObject

MOST_AMOUNTS = 1 << 14
"""Amounts that are read of one pod; all further amounts are unread."""


def least_pod(raw: RawObject, *, profiles: frozenset[str]) -> SeenPod:
    """Read the identity, node and requests of a pod; raises `DecodeError` when the pod cannot be identified.

    All containers count as running at once, and the request of the pod as a whole is added: this reader may find more
    than the complete reader, never less. A pod without a uid is identified by its name.
    """
    metadata, spec = fields(raw, "metadata"), fields(raw, "spec")
    namespace, name, uid = (_text(metadata, key) for key in ("namespace", "name", "uid"))
    if not (name or uid):
        raise DecodeError("the object has no metadata.name and no metadata.uid")
    node = _text(spec, "nodeName")
    self_placed = bool(node) and not is_accepted(raw)
    managed = (_text(spec, "schedulerName") or DEFAULT_SCHEDULER) in profiles and not self_placed
    if not uid and not node:
        raise DecodeError("the object has no metadata.uid")
    known_by = PodUid(uid or without_uid(namespace, name))
    queue = next((found for label in QUEUE_LABELS if (found := _text(fields(metadata, "labels"), label))), "")
    annotations, amounts = fields(metadata, "annotations"), _Amounts(spec)
    pod = Pod(
        uid=known_by,
        namespace=namespace,
        name=name or uid,
        group=GroupKey(namespace, known_by),
        queue=QueueName(queue or (DEFAULT_QUEUE if managed else NO_QUEUE)),
        request=amounts.request,
        scalars=tuple(sorted(amounts.extended.items())),
        bound_queue=QueueName(_text(annotations, QUEUE_ANNOTATION) if managed and node else NO_QUEUE),
        managed=managed,
        node=NodeName(node) if node else None,
        self_placed=self_placed,
        deleting=metadata.get("deletionTimestamp") is not None,
        problem=LEAST,
        # Its part of a GPU is not among the amounts of its containers.
        unread=bool(node) and not self_placed and (amounts.unread or (managed and GROUPS_ANNOTATION in annotations)),
    )
    return SeenPod(pod, None)


def without_uid(namespace: str, name: str) -> str:
    """Return the identity of a pod that shows no uid; it cannot equal a uid."""
    return f"{namespace}/{name}"


def _text(parent: Fields, key: str) -> str:
    value = parent.get(key)
    return value if isinstance(value, str) else ""


class _Amounts:
    """What the containers of a pod request together."""

    def __init__(self, spec: Fields) -> None:
        """Add up; `extended` holds extended resources, `unread` is set when there may be more than was found."""
        self.unread = False
        self.extended: dict[str, int] = {}
        cpu_milli = memory_bytes = gpu_milli = 0
        for name, value in self._first(self._stated(spec)):
            if name == "cpu":
                cpu_milli = min(cpu_milli + self._read(value, 1000), MAX_AMOUNT)
            elif name == "memory":
                memory_bytes = min(memory_bytes + self._read(value, 1), MAX_AMOUNT)
            elif name == GPU_RESOURCE:
                gpu_milli = min(gpu_milli + WHOLE_GPU_MILLI * self._read(value, 1), MAX_AMOUNT)
            elif is_extended(name) and (amount := self._read(value, 1)):
                self.extended[name] = min(self.extended.get(name, 0) + amount, MAX_AMOUNT)
        self.request = Resources(cpu_milli=cpu_milli, memory_bytes=memory_bytes, gpu_milli=gpu_milli, pods=1)

    def _first(self, stated: Iterator[tuple[str, object]]) -> Iterator[tuple[str, object]]:
        yield from islice(stated, MOST_AMOUNTS)
        self.unread |= next(stated, None) is not None

    def _stated(self, spec: Fields) -> Iterator[tuple[str, object]]:
        for kind in CONTAINERS:
            for container in self._listed(spec.get(kind)):
                yield from self._asked(container)
        yield from self._asked(spec)
        yield from self._mapped(spec, "overhead").items()

    def _asked(self, parent: Fields) -> Iterable[tuple[str, object]]:
        resources = self._mapped(parent, "resources")
        return {**self._mapped(resources, "limits"), **self._mapped(resources, "requests")}.items()

    def _listed(self, value: object) -> Iterator[Fields]:
        if not isinstance(value, list):
            self.unread |= value is not None
            return
        for item in value:
            if isinstance(item, dict):
                yield item
            else:
                self.unread = True

    def _mapped(self, parent: Fields, key: str) -> Fields:
        self.unread |= not isinstance(parent.get(key), dict | None)
        return fields(parent, key)

    def _read(self, value: object, scale: int) -> int:
        try:
            return milli(value) if scale != 1 else whole(value)
        except TooMuchError:
            return MAX_AMOUNT
        except QuantityError:
            self.unread = True
            return 0
