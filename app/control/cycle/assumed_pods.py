"""Remembers which places were told to pods that are being created, until the cache charges those pods itself."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from app.cluster.state.cache import ClusterCache
from app.model.names import GroupKey, NodeName, PodUid, QueueName
from app.model.resources import NOTHING, Resources, Scalars
from app.model.seam import RawObject
from app.model.snapshot import Snapshot, Usage

EXPIRES_AFTER_S = 2.0
"""A pod that has not shown up after this time was refused by others, or its promise is refused to it."""

MOST = 128
"""Claims at once: so many pods may be on their way into the cluster without being seen."""

MOST_OF_ONE = 64
"""Of these, the claims of one namespace."""

MOST_UNTRIED = 32
"""Of these, the claims of all namespaces whose pods have not come lately: anybody may ask of pods that never come."""

REMEMBERED = 1024
"""Namespaces whose pods came lately."""

Origin = tuple[str, str]
"""Namespace and the name given, which for pods of controllers is the beginning of the name: all that is known of a pod
before it is created and after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedCharge:
    """What one claim takes up, where and of whom: alike for the pods of one job that go to one node."""

    node: NodeName
    queue: QueueName
    request: Resources
    scalars: Scalars
    cost: Resources
    """What the queue pays."""
    preemptible: bool


@dataclass(slots=True, kw_only=True)
class _Claim:
    """One place of one pod."""

    origin: Origin
    charge: AssumedCharge
    expires_at: float
    uid: PodUid | None = None
    """Of the pod once the watch has shown it."""


class AssumedPods:
    """Who was let through a moment ago. Changed by `add`, `learn` and `end_over` alone.

    Each of them is counted at least once at any time: here from the answer until it has a promise or a node in the
    cache, and there from then on. So no burst gets more places than there are.
    """

    def __init__(self, cache: ClusterCache, *, clock: Callable[[], float]) -> None:
        """Start with none; `clock` is monotonic."""
        self._cache = cache
        self._clock = clock
        self._claims: list[_Claim] = []
        self._charges = Counter[AssumedCharge]()
        """What they take up together: every pod of a burst is placed beside all that came just before it."""
        # The namespace of a claim is here from when its pod came until one of its pods did not; the oldest first.
        self._tried: dict[str, None] = {}

    def has_room(self, raw: RawObject) -> bool:
        """Whether a pod that is about to be created may have a claim, too."""
        unseen = [one.origin[0] for one in self._claims if one.uid is None]
        namespace = _origin(raw)[0]
        if namespace not in self._tried and sum(one not in self._tried for one in unseen) >= MOST_UNTRIED:
            return False
        return len(self._claims) < MOST and unseen.count(namespace) < MOST_OF_ONE

    def add(self, raw: RawObject, charge: AssumedCharge) -> None:
        """Count a pod that is about to be created as if it were on its node."""
        self._claims.append(_Claim(origin=_origin(raw), charge=charge, expires_at=self._clock() + EXPIRES_AFTER_S))
        self._charges[charge] += 1

    def learn(self, raw: RawObject) -> None:
        """Recognise a pod when the watch shows it for the first time; not yet applied to the cache."""
        if not self._claims or self._cache.pods.get(raw["metadata"]["uid"]) is not None:
            return
        origin = _origin(raw)
        claim = next((one for one in self._claims if one.uid is None and one.origin == origin), None)
        if claim is not None:
            claim.uid = PodUid(raw["metadata"]["uid"])
            self._note_tried(origin[0])

    def end_over(self) -> None:
        """Drop the claims whose pods are charged in the cache, or will not come."""
        now, kept = self._clock(), []
        for one in self._claims:
            if one.expires_at > now and not self._is_charged(one):
                kept.append(one)
                continue
            if one.uid is None:
                self._tried.pop(one.origin[0], None)
            self._charges[one.charge] -= 1
            if not self._charges[one.charge]:
                del self._charges[one.charge]
        self._claims = kept

    def _note_tried(self, namespace: str) -> None:
        self._tried.pop(namespace, None)
        self._tried[namespace] = None
        if len(self._tried) > REMEMBERED:
            del self._tried[next(iter(self._tried))]

    def groups(self) -> set[GroupKey]:
        """Return the groups of those that have shown up: they wait, but count as placed."""
        shown = (self._cache.pods.get(one.uid) for one in self._claims if one.uid is not None)
        return {pod.group for pod in shown if pod is not None}

    def charged_on(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot in which all of them hold their places."""
        if not self._claims:
            return snapshot
        free, scalars, usage = snapshot.free.copy(), dict(snapshot.scalars), dict(snapshot.usage)
        for one, count in self._charges.items():
            column = snapshot.nodes.index.get(one.node)
            if column is not None:
                free[:, column] -= (one.request * count).amounts
                for name, amount in one.scalars:
                    # Its node may have lost the resource meanwhile, and with it the place.
                    if name in scalars:
                        scalars[name] = scalars[name].copy()
                        scalars[name][column] -= amount * count
            cost = one.cost * count
            usage[one.queue] = _with(usage.get(one.queue, Usage()), cost, NOTHING if one.preemptible else cost)
        return replace(snapshot, free=free, scalars=scalars, usage=usage)

    def _is_charged(self, one: _Claim) -> bool:
        pod = self._cache.pods.get(one.uid) if one.uid is not None else None
        return pod is not None and (pod.node is not None or self._cache.reservations.get(pod.uid) is not None)


def _origin(raw: RawObject) -> Origin:
    metadata = raw.get("metadata") or {}
    return str(metadata.get("namespace")), str(metadata.get("generateName") or metadata.get("name"))


def _with(usage: Usage, cost: Resources, firm: Resources) -> Usage:
    return Usage(
        allocated=usage.allocated + cost,
        allocated_non_preemptible=usage.allocated_non_preemptible + firm,
        requested=usage.requested + cost,
    )
