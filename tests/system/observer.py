"""Observes every pod by its own watch, and reports which promises are broken; Leeboard is never queried.

`Observer` records the history in a thread of its own; the checks are functions of a history.
"""

import json
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self, TypeVar

import httpx

from tests.system.api import POD_GROUP_ANNOTATION, PODS, Object
from tests.system.bed import Bed
from tests.system.identities import User
from tests.system.waiting import slowness

T = TypeVar("T")

GPU = "nvidia.com/gpu"
TERMINAL = ("Succeeded", "Failed")
OURS, UNDECIDED = "Leeboard(", "Leeboard(Deciding)"
SILENCE_S = 0.5
"""After this time without a line the thread checks whether it is to end, and continues its watch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """A pod in its state from one moment on."""

    at_s: float
    """Monotonic, when the watch showed it."""
    uid: str
    name: str
    gang: str = ""
    gpus: int = 1
    node: str = ""
    phase: str = "Pending"
    gone: bool = False
    cause: str = ""
    """The cause why it is pending, in its PodScheduled condition."""

    @property
    def holds(self) -> bool:
        """Whether it keeps GPUs of its node from others: bound, and neither finished nor deleted."""
        return bool(self.node) and not self.gone and self.phase not in TERMINAL

    @property
    def counts(self) -> bool:
        """Whether it counts for its gang: bound, or succeeded."""
        return bool(self.node) and not self.gone and self.phase != "Failed"

    @property
    def waits(self) -> bool:
        """Whether it is still pending."""
        return not self.node and not self.gone and self.phase not in TERMINAL

    def __repr__(self) -> str:
        where = "gone" if self.gone else self.node or f"waiting ({self.cause})"
        return f"<{self.name} {self.uid[:8]} {self.phase} {where} at {self.at_s:.3f}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the checks need beside the history."""

    gpus: Mapping[str, int]
    """By node; a node that is not named has none."""
    min_members: Mapping[str, int] = field(default_factory=dict)
    """By gang; a pod of any other group is judged as a pod alone."""
    longest_partial_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A time during which a gang was partially bound."""

    gang: str
    since_s: float
    until_s: float

    @property
    def lasted_s(self) -> float:
        """Return its duration."""
        return self.until_s - self.since_s


def breaches(history: Iterable[Sight], rules: Rules, *, until_s: float) -> list[str]:
    """Return a sentence for each rule broken at any time up to now (`until_s`); see `lost` for the end."""
    seen = list(history)
    partial = [
        f"gang {one.gang} was bound in part for {one.lasted_s:.1f} s"
        for one in partial_stretches(seen, rules.min_members, until_s=until_s)
        if one.lasted_s > rules.longest_partial_s
    ]
    return [*partial, *_overfull(seen, rules.gpus), *_bound_twice(seen)]


def partial_stretches(
    history: Iterable[Sight], min_members: Mapping[str, int], *, until_s: float
) -> tuple[Stretch, ...]:
    """Return when a gang had some of its minimum and not all; a stretch that has not ended ends at `until_s`."""
    has: dict[str, set[str]] = {gang: set() for gang in min_members}
    since_s: dict[str, float] = {}
    ended: list[Stretch] = []
    for sight in history:
        if sight.gang not in has:
            continue
        members = has[sight.gang]
        (members.add if sight.counts else members.discard)(sight.uid)
        if 0 < len(members) < min_members[sight.gang]:
            since_s.setdefault(sight.gang, sight.at_s)
        elif sight.gang in since_s:
            ended.append(Stretch(gang=sight.gang, since_s=since_s.pop(sight.gang), until_s=sight.at_s))
    return (*ended, *(Stretch(gang=gang, since_s=at_s, until_s=until_s) for gang, at_s in since_s.items()))


def lost(history: Iterable[Sight], rules: Rules) -> list[str]:
    """Return a sentence for each pod that is neither bound nor pending for a reported and true cause.

    Queues are assumed to have room: pods that fit on the nodes must run.
    """
    last = list({sight.uid: sight for sight in history}.values())
    free = Counter(dict(rules.gpus))
    free.subtract(_used(sight for sight in last if sight.holds))
    waiting = [sight for sight in last if sight.waits]
    silent = [f"{one.name} waits and is told {one.cause or 'nothing'!r}" for one in waiting if not _is_told(one, free)]
    return silent + [f"{what} would fit and waits" for what in _fitting(waiting, last, free, rules)]


def _is_told(sight: Sight, free: Mapping[str, int]) -> bool:
    if OURS in sight.cause:
        return UNDECIDED not in sight.cause
    # kube-scheduler does not call filter while its own filters leave no node, and reports itself what is missing.
    return f"Insufficient {GPU}" in sight.cause and max(free.values(), default=0) < sight.gpus


def _fitting(waiting: Iterable[Sight], last: Iterable[Sight], free: Mapping[str, int], rules: Rules) -> list[str]:
    has = Counter(sight.gang for sight in last if sight.counts)
    alone = [one for one in waiting if has[one.gang] >= rules.min_members.get(one.gang, 0)]
    found = [f"pod {one.name}" for one in alone if _fit([one], free)]
    for gang in rules.min_members:
        owed = rules.min_members[gang] - has[gang]
        ready = [one for one in waiting if one.gang == gang]
        if 0 < owed <= len(ready) and _fit(ready[:owed], free):
            found.append(f"gang {gang}")
    return found


def _fit(pods: Iterable[Sight], free: Mapping[str, int]) -> bool:
    """Whether all of them find room, the largest first: exact for pods of one size."""
    left = dict(free)
    for one in sorted(pods, key=lambda pod: -pod.gpus):
        node = max(left, key=lambda name: left[name], default=None)
        if node is None or left[node] < one.gpus:
            return False
        left[node] -= one.gpus
    return True


def _used(holders: Iterable[Sight]) -> Counter[str]:
    used: Counter[str] = Counter()
    for sight in holders:
        used[sight.node] += sight.gpus
    return used


def _overfull(history: Iterable[Sight], gpus: Mapping[str, int]) -> list[str]:
    found: list[str] = []
    holding: dict[str, Sight] = {}
    used: Counter[str] = Counter()
    for sight in history:
        before = holding.pop(sight.uid, None)
        if before is not None:
            used[before.node] -= before.gpus
        if not sight.holds:
            continue
        holding[sight.uid] = sight
        used[sight.node] += sight.gpus
        if before is None and used[sight.node] > gpus.get(sight.node, 0):
            size = f"{used[sight.node]} of {gpus.get(sight.node, 0)} GPUs"
            found.append(f"node {sight.node} had {size} in use when {sight.name} was bound at {sight.at_s:.3f}")
    return found


def _bound_twice(history: Iterable[Sight]) -> list[str]:
    nodes: dict[tuple[str, str], dict[str, None]] = {}
    for sight in history:
        if sight.node:
            nodes.setdefault((sight.uid, sight.name), {})[sight.node] = None
    return [f"pod {name} was bound to {' and to '.join(on)}" for (_, name), on in nodes.items() if len(on) > 1]


class Observer:
    """A watch of all pods, recorded; use it as a context manager around what is to be observed."""

    def __init__(self, bed: Bed) -> None:
        self._http = httpx.Client(
            base_url=bed.url,
            verify=ssl.create_default_context(cafile=bed.ca),
            headers={"Authorization": f"Bearer {bed.token(User.ADMIN)}", "User-Agent": "observer/1"},
            timeout=httpx.Timeout(5.0, read=SILENCE_S),
            trust_env=False,
        )
        self._thread = threading.Thread(target=self._run, name="observer", daemon=True)
        self._ending = threading.Event()
        self._told = threading.Condition()
        # Written only by the thread, while it holds `_told`.
        self._history: list[Sight] = []
        self._present: dict[str, Sight] = {}
        self._lists = 0
        # Used by the thread alone: where its watch continues; empty: list first.
        self._version = ""

    def __enter__(self) -> Self:
        """Start to watch, and return once the first list has been read."""
        self._thread.start()
        self._await(lambda: self._lists, within_s=20.0, what="the observer's first list")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the watch."""
        self._ending.set()
        self._thread.join()
        self._http.close()

    @property
    def gaps(self) -> int:
        """Return how often the watch could not continue and had to list again: changes in between were not seen."""
        return self._lists - 1

    def history(self) -> tuple[Sight, ...]:
        """Return everything seen so far, in the order of the API server."""
        with self._told:
            return tuple(self._history)

    def present(self) -> tuple[Sight, ...]:
        """Return the pods that exist."""
        with self._told:
            return tuple(self._present.values())

    def wait_for(self, look: Callable[[Sequence[Sight]], T], *, within_s: float, what: str) -> T:
        """Return what `look` finds in the existing pods, as soon as it is true; called again at every event."""
        return self._await(lambda: look(tuple(self._present.values())), within_s=within_s, what=what)

    def _await(self, look: Callable[[], T], *, within_s: float, what: str) -> T:
        with self._told:
            found = self._told.wait_for(look, within_s * slowness())
            if not found:
                states = Counter((one.gang, bool(one.node), one.cause) for one in self._present.values())
                raise AssertionError(f"{what}: not within {within_s:g} s; pods by gang, bound, cause: {dict(states)}")
            return found

    # -- the thread

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                if not self._version:
                    self._list()
                self._follow()
            except (httpx.TransportError, httpx.HTTPStatusError):
                # The API server is unavailable, or sent nothing for a moment.
                self._ending.wait(0.05)

    def _list(self) -> None:
        answer = self._http.get(PODS, timeout=30.0).raise_for_status().json()
        pods = [_sight(pod) for pod in answer["items"]]
        there = {sight.uid for sight in pods}
        with self._told:
            gone = [replace(one, at_s=time.monotonic(), gone=True) for one in self._present.values()]
            # Deletions first: a node is free before it is used again.
            self._note([one for one in gone if one.uid not in there] + pods)
            self._lists += 1
        self._version = answer["metadata"]["resourceVersion"]

    def _follow(self) -> None:
        query = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": self._version}
        with self._http.stream("GET", PODS, params=query) as stream:
            if stream.status_code == httpx.codes.GONE:
                self._version = ""
                return
            for line in stream.raise_for_status().iter_lines():
                self._take(json.loads(line))
                if self._ending.is_set() or not self._version:
                    return

    def _take(self, event: Object) -> None:
        kind, item = event["type"], event["object"]
        if kind == "ERROR":
            self._version = ""
            return
        self._version = item["metadata"]["resourceVersion"]
        if kind != "BOOKMARK":
            with self._told:
                self._note([replace(_sight(item), gone=kind == "DELETED")])

    def _note(self, sights: Iterable[Sight]) -> None:
        for sight in sights:
            self._history.append(sight)
            if sight.gone:
                self._present.pop(sight.uid, None)
            else:
                self._present[sight.uid] = sight
        self._told.notify_all()


def _sight(pod: Object) -> Sight:
    metadata, spec, status = pod["metadata"], pod["spec"], pod["status"]
    limits = [container.get("resources", {}).get("limits", {}) for container in spec["containers"]]
    conditions = [one for one in status.get("conditions", ()) if one["type"] == "PodScheduled"]
    return Sight(
        at_s=time.monotonic(),
        uid=metadata["uid"],
        name=metadata["name"],
        gang=metadata.get("annotations", {}).get(POD_GROUP_ANNOTATION, ""),
        gpus=sum(int(each.get(GPU, 0)) for each in limits),
        node=spec.get("nodeName", ""),
        phase=status.get("phase", "Pending"),
        cause=next((one.get("message", "") for one in conditions if one["status"] == "False"), ""),
    )
