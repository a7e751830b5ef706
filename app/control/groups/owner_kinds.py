"""Holds the state of each kind of owner objects: followed, listed, denied, or queued for a free slot.

Kinds that are not installed, or that we may not read, are `denied` until that changes: a walk up the owners ends there.
Where a kind cannot be listed for another reason, only the pods with owners of this kind wait.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from enum import Enum

import structlog

from app.model.owner import Kind

log = structlog.get_logger()

LOSSES_UNTIL_OTHERS_GO_ON = 3
"""Failures in a row before the first list of a kind, after which only the pods that need the kind wait."""

MOST_KINDS = 200
"""Kinds that are followed or looked for at most: invented kinds in ownerReferences must not cost one task each.

Above this number, each new kind replaces the first kind that cannot be read; other new kinds stay queued. So invented
kinds cannot keep real kinds from being followed.
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
        "resource.k8s.io",
    }
)
"""API groups that Leeboard reads for other purposes: their labels are not validated, and none of them is a workload."""


class Follow(Enum):
    """The state of a kind."""

    BEGUN = "begun"
    LISTED = "listed"
    DENIED = "denied"


class OwnerKinds:
    """The kinds that are followed or to be followed. Only `OwnerWatch` changes them."""

    def __init__(self) -> None:
        """Start without kinds, except pods, which are followed elsewhere."""
        # Pods that own pods are looked up in the cache.
        self._kinds: dict[Kind, Follow] = {POD_KIND: Follow.LISTED}
        self._paths: dict[Kind, str] = {POD_KIND: POD_PATH}
        self._losses: Counter[Kind] = Counter()
        """Failures of kinds that have not been listed yet."""
        self._causes: dict[Kind, str] = {}
        """The last error of each of these kinds."""
        self._late: set[Kind] = set()
        """The kinds among them whose first list takes too long, until it ends."""
        self._queued: dict[Kind, None] = {}
        """Kinds that wait for a free slot."""
        self.begun: asyncio.Queue[Kind] = asyncio.Queue()
        """Kinds that are to be followed from now on."""

    # Queries ----------------------------------------------------------------------------------------------------------

    def __contains__(self, kind: Kind) -> bool:
        """Return whether a kind is followed or was denied."""
        return kind in self._kinds

    def all(self) -> list[Kind]:
        """Return the kinds that are followed."""
        return list(self._kinds)

    def state(self, kind: Kind) -> Follow | None:
        """Return the state of a kind; None when the kind was never requested or was forgotten."""
        return self._kinds.get(kind)

    def is_denied(self, kind: Kind) -> bool:
        """Return whether a kind is denied, so that its objects will not be read."""
        state = self._kinds.get(kind)
        if state is None:
            return _never_owns(kind) or (len(self._kinds) >= MOST_KINDS and kind not in self._queued)
        return state is Follow.DENIED

    def unlisted(self) -> list[Kind]:
        """Return the kinds that are not listed yet but may be soon."""
        begun = (kind for kind, state in self._kinds.items() if state is Follow.BEGUN)
        return [*filter(self._holds_up_others, begun), *self._queued]

    def unwatchable(self) -> Mapping[Kind, str]:
        """Return the kinds that cannot be listed for now, with the cause."""
        begun = (kind for kind, state in self._kinds.items() if state is Follow.BEGUN)
        return {kind: self._causes.get(kind, NO_ANSWER) for kind in begun if not self._holds_up_others(kind)}

    def listed(self) -> list[Kind]:
        """Return the kinds whose watch this package has begun; pods are followed elsewhere."""
        return [kind for kind, state in self._kinds.items() if state is Follow.LISTED and kind != POD_KIND]

    def path_of(self, kind: Kind) -> str:
        """Return the API path of a listed kind."""
        return self._paths[kind]

    # Updates ----------------------------------------------------------------------------------------------------------

    def queue(self, kind: Kind) -> bool:
        """Queue a kind if it is not followed yet and may own pods; return whether the kind is queued."""
        if kind in self._kinds or _never_owns(kind) or not self._has_turns():
            return False
        self._queued.setdefault(kind)
        return True

    def _has_turns(self) -> bool:
        """Whether there is a free slot for another kind, or may be once the state of all kinds is known."""
        return len(self._kinds) < MOST_KINDS or any(state is not Follow.LISTED for state in self._kinds.values())

    def begin(self) -> list[Kind]:
        """Begin queued kinds while there are free slots; return the unreadable kinds that were dropped for them."""
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
        # A kind whose first list is only slow stays: otherwise its list would start from the beginning.
        return self._kinds[kind] is Follow.DENIED or self._losses[kind] >= LOSSES_UNTIL_OTHERS_GO_ON

    def _holds_up_others(self, kind: Kind) -> bool:
        """Whether no pod may be decided before this kind is listed."""
        return kind not in self._late and self._losses[kind] < LOSSES_UNTIL_OTHERS_GO_ON

    def note_path(self, kind: Kind, path: str) -> None:
        """Note the API path of a kind."""
        self._paths[kind] = path

    def lose(self, kind: Kind, cause: str) -> bool:
        """Note a failure before the first list of a kind; return whether other pods stop waiting for the kind now."""
        if self._kinds[kind] is not Follow.BEGUN:
            return False
        self._losses[kind] += 1
        self._causes[kind] = cause
        return self._losses[kind] == LOSSES_UNTIL_OTHERS_GO_ON

    def tire_of(self, kind: Kind) -> bool:
        """Note that the first list of a kind is slow; return false when it is already over."""
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
        # Invented kinds must not fill the log.
        if len(self._kinds) < MOST_KINDS:
            log.info("owners of this kind cannot be read: pods are grouped by the owners below them", kind=repr(kind))

    def _forget_failures(self, kind: Kind) -> None:
        self._late.discard(kind)
        self._losses.pop(kind, None)
        self._causes.pop(kind, None)


def _never_owns(kind: Kind) -> bool:
    return kind.group in NEVER_OWNERS or (not kind.group and kind != POD_KIND)
