"""Charges pods that admission let in and that the watch has not shown with a place yet."""

from collections import Counter
from dataclasses import dataclass, replace
from itertools import count

from app.cluster.decode.reading import LONGEST_NAME
from app.cluster.ledger.charge import Charge
from app.model.names import NO_QUEUE, PodUid
from app.model.resources import NOTHING, Resources
from app.model.snapshot import Snapshot, Usage

EXPIRES_AFTER_S = 2.0
"""A pod without a place after this time was refused by another admission plugin, or got no reservation."""

MOST = 128
"""Assumed pods at once."""

MOST_OF_ONE = 64
"""Assumed pods of one namespace that the watch has not shown."""

MOST_UNTRIED = 32
"""Assumed pods that the watch has not shown, of all namespaces whose assumed pods did not appear lately.

Anybody may send reviews of pods that are never created.
"""

REMEMBERED = 1024
"""Namespaces whose assumed pods appeared lately."""

Origin = tuple[str, str]
"""Namespace and `generateName` or name: all that is known of a pod both before and after it is created."""


@dataclass(slots=True)
class _AssumedPod:
    origin: Origin
    charge: Charge
    expires_at: float
    uid: PodUid | None = None
    """Known once the watch has shown the pod."""


class AssumedPods:
    """The state of a pod's account before its reservation: assumed to be on the node that admission found.

    A pod is charged here from the answer of admission until the ledger has a charge with a node for it. So a burst of
    new pods never gets more places than there are. `now` is the caller's monotonic clock, in seconds.
    """

    def __init__(self) -> None:
        self._numbers = count()
        self._assumed: dict[int, _AssumedPod] = {}
        """By the order of the answers."""
        self._shown: dict[PodUid, int] = {}
        self._charges = Counter[Charge]()
        """How many assumed pods have this charge: those of one Job on one node are alike."""
        self._tried: dict[str, None] = {}
        """Namespaces whose last assumed pods appeared; the oldest first."""

    def __len__(self) -> int:
        return len(self._assumed)

    def has_room(self, origin: Origin) -> bool:
        """Return whether one more pod of this origin may be assumed."""
        if max(map(len, origin)) > LONGEST_NAME:
            return False  # Such a pod cannot be created, and its text could be as long as a review.
        unseen = [each.origin[0] for each in self._assumed.values() if each.uid is None]
        namespace = origin[0]
        if namespace not in self._tried and sum(each not in self._tried for each in unseen) >= MOST_UNTRIED:
            return False
        return len(self._assumed) < MOST and unseen.count(namespace) < MOST_OF_ONE

    def add(self, origin: Origin, charge: Charge, now: float) -> None:
        """Charge a pod that is about to be created; the charge has a node and a queue."""
        self._assumed[next(self._numbers)] = _AssumedPod(origin, charge, now + EXPIRES_AFTER_S)
        self._charges[charge] += 1

    def show(self, origin: Origin, uid: PodUid) -> None:
        """Give the oldest assumed pod of this origin the uid of a pod that the watch shows for the first time."""
        if uid in self._shown:
            return  # A batch of events, or a list that is read again, shows a pod twice before it is in the cache.
        unseen = (number for number, each in self._assumed.items() if each.uid is None and each.origin == origin)
        number = next(unseen, None)
        if number is not None:
            self._assumed[number].uid, self._shown[uid] = uid, number
            self._note_tried(origin[0])

    def end(self, uid: PodUid) -> None:
        """Drop the charge of a pod that is charged on a node now, or that is deleted."""
        number = self._shown.get(uid)
        if number is not None:
            self._drop(number)

    def expire(self, now: float) -> None:
        """Drop the charges of pods that have no place in time."""
        for number in [number for number, each in self._assumed.items() if each.expires_at <= now]:
            dropped = self._drop(number)
            if dropped.uid is None:
                self._tried.pop(dropped.origin[0], None)

    def shown(self) -> tuple[PodUid, ...]:
        """Return the assumed pods that the watch has shown: they are pending, but count as placed."""
        return tuple(self._shown)

    def charged_on(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot in which all assumed pods are on their nodes."""
        if not self._assumed:
            return snapshot
        free, scalars, usage = snapshot.free.copy(), dict(snapshot.scalars), dict(snapshot.usage)
        for each, pods in self._charges.items():
            column = None if each.node is None else snapshot.nodes.index.get(each.node)
            if column is not None:
                free[:, column] -= (each.request * pods).amounts
                for name, amount in each.scalars:
                    # The node may have lost the resource meanwhile, and the pod its place with it.
                    if name in scalars:
                        scalars[name] = scalars[name].copy()
                        scalars[name][column] -= amount * pods
            cost, queue = each.paid * pods, each.queue or NO_QUEUE
            usage[queue] = _with(usage.get(queue, Usage()), cost, NOTHING if each.preemptible else cost)
        return replace(snapshot, free=free, scalars=scalars, usage=usage)

    def _drop(self, number: int) -> _AssumedPod:
        dropped = self._assumed.pop(number)
        if dropped.uid is not None:
            del self._shown[dropped.uid]
        self._charges[dropped.charge] -= 1
        if not self._charges[dropped.charge]:
            del self._charges[dropped.charge]
        return dropped

    def _note_tried(self, namespace: str) -> None:
        self._tried.pop(namespace, None)
        self._tried[namespace] = None
        if len(self._tried) > REMEMBERED:
            del self._tried[next(iter(self._tried))]


def _with(usage: Usage, cost: Resources, non_preemptible: Resources) -> Usage:
    return Usage(
        allocated=usage.allocated + cost,
        allocated_non_preemptible=usage.allocated_non_preemptible + non_preemptible,
        requested=usage.requested + cost,
    )
