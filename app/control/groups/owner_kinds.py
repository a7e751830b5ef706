"""Says how it stands with each kind of objects that own pods: followed, listed, denied, or waiting for room.

Kinds that are not installed, or that we may not read, are `denied` until that changes: a walk up the owners ends there.
Pods whose owners are of a kind that cannot be listed for another reason wait, and no others.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from enum import Enum

import structlog

from app.model.owner import Kind

log = structlog.get_logger()

LOSSES_UNTIL_OTHERS_GO_ON = 3
"""Failures in a row before the first list of a kind until only the pods wait that need it."""

MOST_KINDS = 200
"""Kinds that are followed or looked for; whoever invents new ones in ownerReferences must not cost us a task each.

Of more, the first that cannot be read is forgotten for each new one, and the others wait for their turn: invented kinds
must not keep others from being followed.
"""

NO_ANSWER = "the API server has not answered yet"

POD_KIND = Kind("", "v1", "Pod")
POD_PATH = "api/v1/pods"


NEVER_OWNERS = frozenset(
    {
        "scheduling.run.ai",
        "kai.scheduler",
        "leeboard.dev",
        "scheduling.k8s.io",
        "policy",
        "autoscaling.x-k8s.io",
    }
)
"""API groups that we read for other ends: nobody checks who puts labels there, and no workload is of them."""


class Follow(Enum):
    """How it stands with a kind."""

    BEGUN = "begun"
    LISTED = "listed"
    DENIED = "denied"


class OwnerKinds:
    """The kinds that are followed or to be followed. Changed by `OwnerWatch` alone."""

    def __init__(self) -> None:
        """Start with no kind followed but that of pods, which are followed elsewhere."""
        # As owners, pods are looked up in the cache.
        self._kinds: dict[Kind, Follow] = {POD_KIND: Follow.LISTED}
        self._paths: dict[Kind, str] = {POD_KIND: POD_PATH}
        self._losses: Counter[Kind] = Counter()
        """Of kinds that have not been listed yet."""
        self._causes: dict[Kind, str] = {}
        """Why those were lost last."""
        self._late: set[Kind] = set()
        """Those among them whose first list takes too long, until it ends."""
        self._queued: dict[Kind, None] = {}
        """Kinds for which there is no room yet."""
        self.begun: asyncio.Queue[Kind] = asyncio.Queue()
        """Kinds that are to be followed from now on."""

    # What is asked ----------------------------------------------------------------------------------------------------

    def __contains__(self, kind: Kind) -> bool:
        """Return whether a kind is followed, or was denied."""
        return kind in self._kinds

    def all(self) -> list[Kind]:
        """Return the kinds that are followed."""
        return list(self._kinds)

    def state(self, kind: Kind) -> Follow | None:
        """Return how it stands with a kind; None when nobody has asked for it, or it was forgotten."""
        return self._kinds.get(kind)

    def is_denied(self, kind: Kind) -> bool:
        """Return whether objects of this kind are waited for in vain."""
        state = self._kinds.get(kind)
        if state is None:
            return _never_owns(kind) or (len(self._kinds) >= MOST_KINDS and kind not in self._queued)
        return state is Follow.DENIED

    def unlisted(self) -> list[Kind]:
        """Return the kinds of which nothing is known yet, but may be soon."""
        begun = (kind for kind, state in self._kinds.items() if state is Follow.BEGUN)
        return [*filter(self._holds_up_others, begun), *self._queued]

    def unwatchable(self) -> Mapping[Kind, str]:
        """Return the kinds that cannot be listed for now, with why."""
        begun = (kind for kind, state in self._kinds.items() if state is Follow.BEGUN)
        return {kind: self._causes.get(kind, NO_ANSWER) for kind in begun if not self._holds_up_others(kind)}

    def listed(self) -> list[Kind]:
        """Return the kinds whose watch has begun here; that of pods has begun elsewhere."""
        return [kind for kind, state in self._kinds.items() if state is Follow.LISTED and kind != POD_KIND]

    def path_of(self, kind: Kind) -> str:
        """Return where a kind is served that is listed."""
        return self._paths[kind]

    # What is told -----------------------------------------------------------------------------------------------------

    def queue(self, kind: Kind) -> bool:
        """Have a kind followed when there is room, if it is not and may own pods; return whether it is queued now."""
        if kind in self._kinds or _never_owns(kind) or not self._has_turns():
            return False
        self._queued.setdefault(kind)
        return True

    def _has_turns(self) -> bool:
        """Whether there is room for another kind, now or when it is known which of these can be read."""
        return len(self._kinds) < MOST_KINDS or any(state is not Follow.LISTED for state in self._kinds.values())

    def begin(self) -> list[Kind]:
        """Begin with queued kinds as long as there is room; return those that cannot be read and made way for them."""
        forgotten: list[Kind] = []
        while self._queued and (len(self._kinds) < MOST_KINDS or self._forget_one(forgotten)):
            kind = next(iter(self._queued))
            del self._queued[kind]
            self._kinds[kind] = Follow.BEGUN
            self.begun.put_nowait(kind)
        return forgotten

    def _forget_one(self, forgotten: list[Kind]) -> bool:
        """Forget a kind that cannot be read; return whether there is one."""
        kind = next(filter(self._is_in_vain, self._kinds), None)
        if kind is None:
            return False
        del self._kinds[kind]
        for of_kinds in (self._paths, self._losses, self._causes):
            of_kinds.pop(kind, None)
        self._late.discard(kind)
        forgotten.append(kind)
        return True

    def _is_in_vain(self, kind: Kind) -> bool:
        # A kind whose first list only takes long is not: it would have to be listed from the beginning.
        return self._kinds[kind] is Follow.DENIED or self._losses[kind] >= LOSSES_UNTIL_OTHERS_GO_ON

    def _holds_up_others(self, kind: Kind) -> bool:
        """Whether no pod may be decided before this kind is listed, if it is not."""
        return kind not in self._late and self._losses[kind] < LOSSES_UNTIL_OTHERS_GO_ON

    def note_path(self, kind: Kind, path: str) -> None:
        """Note where a kind is served."""
        self._paths[kind] = path

    def lose(self, kind: Kind, cause: str) -> bool:
        """Note that a kind could not be listed that never was; return whether the others go on without it now."""
        if self._kinds[kind] is not Follow.BEGUN:
            return False
        self._losses[kind] += 1
        self._causes[kind] = cause
        return self._losses[kind] == LOSSES_UNTIL_OTHERS_GO_ON

    def tire_of(self, kind: Kind) -> bool:
        """Note that the first list of a kind takes long; return whether that was news."""
        if self._kinds.get(kind) is not Follow.BEGUN:
            return False
        self._late.add(kind)
        return True

    def allow(self, kind: Kind) -> None:
        """Note that a kind has been listed."""
        self._kinds[kind] = Follow.LISTED
        self._forget_failures(kind)

    def deny(self, kind: Kind) -> None:
        """Note that a kind is not installed, or may not be read."""
        if self._kinds[kind] is Follow.DENIED:
            return
        self._kinds[kind] = Follow.DENIED
        self._forget_failures(kind)
        # Whoever invents kinds must not fill the log.
        if len(self._kinds) < MOST_KINDS:
            log.info("owners of this kind are not read: their pods are grouped by what is below", kind=repr(kind))

    def _forget_failures(self, kind: Kind) -> None:
        self._late.discard(kind)
        self._losses.pop(kind, None)
        self._causes.pop(kind, None)


def _never_owns(kind: Kind) -> bool:
    return kind.group in NEVER_OWNERS or (not kind.group and kind != POD_KIND)
