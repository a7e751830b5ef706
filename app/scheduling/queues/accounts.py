"""The account of each queue: what it may hold, and what it and all its descendants hold as a snapshot shows it.

They are made once for a set of queues, and counted anew only where what the pods of a queue hold has changed: there may
be ten thousand, and a plan is made for one pod.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from app.model.names import QueueName
from app.model.queue import LAST_PRIORITY, MOST_LEVELS, UNENTITLED, Queue
from app.model.reason import RefusingQueue
from app.model.resources import CPU, GPU, MEMORY, QUOTA_AXES, UNLIMITED, Resources
from app.model.snapshot import Usage
from app.scheduling.copies import Copied, Owned, Value

Quantities = tuple[int, int, int]
"""Amounts in the order of `QUOTA_AXES`."""


def quantities(amounts: Resources) -> Quantities:
    """Return what quota judges of `amounts`."""
    return amounts.cpu_milli, amounts.memory_bytes, amounts.gpu_milli


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLine:
    """A queue and its ancestors, itself first, as far up as they exist."""

    names: tuple[QueueName, ...]
    problem: str = ""
    """Why the queue takes part in nothing; empty when it and all its ancestors are sound."""
    charged: tuple[QueueName, ...] = ()
    """The sound ones up to the top: they pay for what the queue's pods hold, even if it is itself unsound."""


def line(queues: Mapping[QueueName, Queue], name: QueueName) -> QueueLine:
    """Follow the parents of a queue to the top; a missing parent or a circle is a problem, never a loop."""
    names: dict[QueueName, None] = {}
    at: QueueName | None = name
    while at is not None:
        if at in names:
            return QueueLine(names=tuple(names), problem=f"its parents form a circle through {at}")
        if at not in queues:
            return QueueLine(names=tuple(names), problem=f"its parent {at} does not exist")
        if len(names) == MOST_LEVELS:
            return QueueLine(names=tuple(names), problem=f"it is more than {MOST_LEVELS} levels deep")
        names[at] = None
        at = queues[at].parent
    return _judged(queues, tuple(names))


def _judged(queues: Mapping[QueueName, Queue], names: tuple[QueueName, ...]) -> QueueLine:
    unsound = [depth for depth, name in enumerate(names) if queues[name].problem]
    if not unsound:
        return QueueLine(names=names, charged=names)
    nearest, farthest = names[unsound[0]], unsound[-1]
    problem = queues[nearest].problem
    if nearest != names[0]:
        problem = f"its parent {nearest} is not valid: {problem}"
    return QueueLine(names=names, problem=problem, charged=names[farthest + 1 :])


class Account(Copied):
    """What one queue may hold and what it and all its descendants hold now; an unsound one may hold nothing.

    The three sums are written by `Tree` and `QueueLedger` alone; everyone else reads them.
    """

    queue: Value[Queue]
    name: Value[QueueName]
    deserved: Value[Sequence[int]]
    limit: Value[Sequence[int]]
    allocated: Owned[list[int]]
    non_preemptible: Owned[list[int]]
    requested: Owned[list[int]]

    def __init__(self, queue: Queue) -> None:
        entitlements = [queue.entitlement(axis) for axis in QUOTA_AXES]
        self.queue = queue
        self.name = queue.name
        self.deserved = [each.deserved for each in entitlements]
        self.limit = [each.limit for each in entitlements]
        self.allocated = [0, 0, 0]
        self.non_preemptible = [0, 0, 0]
        self.requested = [0, 0, 0]

    def add(self, sums: "Sums") -> None:
        """Count this as held and asked for beside what was; for `Tree` and `QueueLedger`."""
        for total, (cpu, memory, gpu) in zip((self.allocated, self.non_preemptible, self.requested), sums, strict=True):
            total[CPU] += cpu
            total[MEMORY] += memory
            total[GPU] += gpu

    def over_limit(self, request: Quantities) -> int | None:
        """Return the first axis on which `request` passes the limit; an axis not asked for is not judged."""
        return _first_over(self.limit, self.allocated, request)

    def over_quota(self, request: Quantities) -> int | None:
        """Return the first axis on which a non-preemptible `request` passes the deserved share."""
        return _first_over(self.deserved, self.non_preemptible, request)

    def numbers(self, asked: Resources, *, firm: Resources) -> RefusingQueue:
        """Return how it stands beside what is asked of it; `firm` is the non-preemptible part."""
        return RefusingQueue(
            name=self.name,
            requested=_resources(self.requested),
            deserved=_resources(self.deserved),
            allocated=_resources(self.allocated),
            allocated_non_preemptible=_resources(self.non_preemptible),
            limit=_resources(self.limit),
            asked=asked,
            asked_non_preemptible=firm,
        )

    def __repr__(self) -> str:
        return f"<Account {self.name} gpu={self.allocated[GPU]}m>"


def _resources(amounts: Sequence[int]) -> Resources:
    cpu, memory, gpu = amounts
    return Resources(cpu_milli=cpu, memory_bytes=memory, gpu_milli=gpu)


def _first_over(ceiling: Sequence[int], held: Sequence[int], request: Quantities) -> int | None:
    for axis in QUOTA_AXES:
        if request[axis] > 0 and held[axis] + request[axis] > ceiling[axis] != UNLIMITED:
            return axis
    return None


Sums = tuple[Quantities, Quantities, Quantities]
"""What pods hold, the non-preemptible part of it, and what they hold and ask for."""

NO_USAGE = Usage()


class Tree:
    """What follows from the queues alone, and their accounts as they were opened last."""

    __slots__ = ("_opened", "accounts", "lines", "parents", "queues")

    def __init__(self, queues: Mapping[QueueName, Queue], before: "Tree | None" = None) -> None:
        """Judge the queues. What the tree `before` knows of queues that have not changed is taken from there."""
        kept = before.kept_in(queues) if before is not None else {}
        lines = {name: kept[name] if name in kept else line(queues, name) for name in queues}
        known = before.accounts if before is not None else {}
        self.queues = queues
        self.accounts: Mapping[QueueName, Account] = {
            name: known[name] if name in kept else Account(_judged_queue(queues[name], on))
            for name, on in lines.items()
        }
        """Nothing is held in these, ever."""
        unsound = {name: replace(each, charged=(name, *each.charged)) for name, each in lines.items() if each.problem}
        self.lines: Mapping[QueueName, QueueLine] = lines | unsound
        self.parents = frozenset(queue.parent for queue in queues.values())
        # Replaced as a whole: plans are made in several threads.
        self._opened: tuple[Mapping[QueueName, Usage], Mapping[QueueName, Account]] = {}, self.accounts
        if before is not None and kept:
            usage, accounts = before.opened_without(kept)
            self._opened = usage, {name: accounts[name] if name in kept else self.accounts[name] for name in queues}

    def kept_in(self, queues: Mapping[QueueName, Queue]) -> Mapping[QueueName, QueueLine]:
        """Return the lines of the sound queues that have not changed, nor anything above them."""
        same = {name for name, queue in queues.items() if self.queues.get(name) is queue}
        return {name: on for name, on in self.lines.items() if not on.problem and same.issuperset(on.names)}

    def opened_without(
        self, kept: Mapping[QueueName, QueueLine]
    ) -> tuple[Mapping[QueueName, Usage], Mapping[QueueName, Account]]:
        """Return the accounts as they were opened last, as if pods held something in these queues alone."""
        usage, accounts = self._opened
        known = {name: each for name, each in usage.items() if name in kept}
        others = [name for name in usage if name not in kept]
        return known, self._recounted(accounts, others, usage, {}) if others else accounts

    def opened(self, usage: Mapping[QueueName, Usage]) -> Mapping[QueueName, Account]:
        """Return the accounts with what pods hold and ask for, never to be written to.

        Only for queues with another `Usage` than last time anything is counted anew. Queues that do not exist are left
        out.
        """
        before, accounts = self._opened
        changed = [name for name, each in usage.items() if before.get(name) is not each]
        changed += [name for name in before if name not in usage]
        if changed:
            accounts = self._recounted(accounts, changed, before, usage)
            self._opened = usage, accounts
        return accounts

    def _recounted(
        self,
        accounts: Mapping[QueueName, Account],
        changed: Iterable[QueueName],
        before: Mapping[QueueName, Usage],
        usage: Mapping[QueueName, Usage],
    ) -> Mapping[QueueName, Account]:
        recounted, own = dict(accounts), set[QueueName]()
        for name in changed:
            on = self.lines.get(name)
            if on is None:
                continue
            more = sums_of(usage.get(name, NO_USAGE), sound=not on.problem)
            if name in before:
                more = _difference(more, sums_of(before[name], sound=not on.problem))
            for payer in on.charged:
                if payer not in own:
                    own.add(payer)
                    recounted[payer] = recounted[payer].copy()
                recounted[payer].add(more)
        return recounted


def sums_of(usage: Usage, *, sound: bool) -> Sums:
    """Return what a queue counts for those that pay for its pods.

    An unsound queue claims nothing new, but what its pods hold is really gone for its ancestors.
    """
    held = quantities(usage.allocated)
    return held, quantities(usage.allocated_non_preemptible), quantities(usage.requested) if sound else held


def _difference(now: Sums, then: Sums) -> Sums:
    held, firm, wanted = ((a - x, b - y, c - z) for (a, b, c), (x, y, z) in zip(now, then, strict=True))
    return held, firm, wanted


class _Trees:
    """The trees that were asked for last: plans that are made beside each other may look at different queues."""

    def __init__(self) -> None:
        self._known: tuple[Tree, ...] = ()

    def of(self, queues: Mapping[QueueName, Queue]) -> Tree:
        known = self._known
        found = next((each for each in known if each.queues is queues), None)
        if found is None:
            found = Tree(queues, known[0] if known else None)
            self._known = (found, *known[:1])
        return found


_TREES = _Trees()


def tree(queues: Mapping[QueueName, Queue]) -> Tree:
    """Return the tree of these queues: the same one as long as none has changed, which their mapping never does."""
    return _TREES.of(queues)


def _judged_queue(queue: Queue, on: QueueLine) -> Queue:
    """Return a queue as it counts: an unsound one deserves nothing, below the nearest that is sound, if any is."""
    if not on.problem:
        return queue
    return replace(
        queue,
        parent=on.charged[0] if on.charged else None,
        priority=LAST_PRIORITY,
        cpu_milli=UNENTITLED,
        memory_bytes=UNENTITLED,
        gpu_milli=UNENTITLED,
        problem=on.problem,
    )
