"""The account of each queue: what the queue may hold, and what it and its descendants hold in a snapshot.

The accounts are made once for a set of queues. Only accounts whose pods changed are counted again, because there may be
ten thousand queues, and a plan may be made for a single pod.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from app.model.names import QueueName
from app.model.queue import LAST_PRIORITY, MOST_LEVELS, UNENTITLED, Queue
from app.model.reason import RefusingQueue
from app.model.resources import CPU, GPU, MEMORY, QUOTA_AXES, UNLIMITED, Resources
from app.model.snapshot import Usage
from app.model.spelling import KnownNames
from app.scheduling.copies import Copied, Owned, Value

Quantities = tuple[int, int, int]
"""Amounts in the order of `QUOTA_AXES`."""


def quantities(amounts: Resources) -> Quantities:
    """Return the amounts in the axes of quota."""
    return amounts.cpu_milli, amounts.memory_bytes, amounts.gpu_milli


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLine:
    """A queue and its ancestors, the queue first, as far up as they exist."""

    names: tuple[QueueName, ...]
    problem: str = ""
    """Why the queue is invalid; empty when the queue and all its ancestors are valid."""
    charged: tuple[QueueName, ...] = ()
    """The valid queues up to the root. They are charged for what the queue's pods hold, even if the queue is invalid.
    """


def line(queues: Mapping[QueueName, Queue], name: QueueName) -> QueueLine:
    """Follow the parents of a queue to the root. A missing parent or a cycle is a problem, never an endless loop."""
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
    """What one queue may hold, and what it and all its descendants hold now. An invalid queue may hold nothing.

    Only `Tree` and `QueueLedger` write the three sums; all other code reads them.
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
        """Add these amounts to what is held and requested; for `Tree` and `QueueLedger`."""
        for total, (cpu, memory, gpu) in zip((self.allocated, self.non_preemptible, self.requested), sums, strict=True):
            total[CPU] += cpu
            total[MEMORY] += memory
            total[GPU] += gpu

    def over_limit(self, request: Quantities) -> int | None:
        """Return the first axis on which `request` exceeds the limit. Axes that are not requested are not judged."""
        return _first_over(self.limit, self.allocated, request)

    def over_quota(self, request: Quantities) -> int | None:
        """Return the first axis on which a non-preemptible `request` exceeds the deserved share."""
        return _first_over(self.deserved, self.non_preemptible, request)

    def numbers(self, asked: Resources, *, firm: Resources) -> RefusingQueue:
        """Return the numbers of the queue beside the request; `firm` is the non-preemptible part."""
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
"""What pods hold, its non-preemptible part, and what pods hold and request."""

NO_USAGE = Usage()


class Tree:
    """What follows from the queues alone, and the accounts of the latest call of `opened`."""

    __slots__ = ("_leaves", "_names", "_opened", "accounts", "lines", "parents", "queues")

    def __init__(self, queues: Mapping[QueueName, Queue], before: "Tree | None" = None) -> None:
        """Validate the queues. For queues that have not changed, the results of the tree `before` are used."""
        kept = before.kept_in(queues) if before is not None else {}
        lines = {name: kept[name] if name in kept else line(queues, name) for name in queues}
        known = before.accounts if before is not None else {}
        self.queues = queues
        self.accounts: Mapping[QueueName, Account] = {
            name: known[name] if name in kept else Account(_judged_queue(queues[name], on))
            for name, on in lines.items()
        }
        """Accounts in which nothing is ever held."""
        unsound = {name: replace(each, charged=(name, *each.charged)) for name, each in lines.items() if each.problem}
        self.lines: Mapping[QueueName, QueueLine] = lines | unsound
        self.parents = frozenset(queue.parent for queue in queues.values())
        # Both are only for refusals, and made for the first of them.
        self._names: KnownNames | None = None
        self._leaves: Mapping[QueueName, Sequence[QueueName]] | None = None
        # Replaced as a whole, because several threads make plans.
        self._opened: tuple[Mapping[QueueName, Usage], Mapping[QueueName, Account]] = {}, self.accounts
        if before is not None and kept:
            usage, accounts = before.opened_without(kept)
            self._opened = usage, {name: accounts[name] if name in kept else self.accounts[name] for name in queues}

    def hint(self, wrong: QueueName) -> str:
        """Return `did you mean ...?` when a queue has a name like this one, which no queue has; otherwise nothing."""
        if self._names is None:
            self._names = KnownNames(self.queues)
        return self._names.hint(wrong)

    def leaves(self, name: QueueName) -> Sequence[QueueName]:
        """Return the child queues of a queue that take pods, by name."""
        if self._leaves is None:
            found: dict[QueueName, list[QueueName]] = {}
            for child in sorted(self.queues):
                parent = self.queues[child].parent
                if parent is not None and child not in self.parents and not self.lines[child].problem:
                    found.setdefault(parent, []).append(child)
            self._leaves = found
        return self._leaves.get(name, ())

    def kept_in(self, queues: Mapping[QueueName, Queue]) -> Mapping[QueueName, QueueLine]:
        """Return the lines of the valid queues that have not changed and whose ancestors have not changed."""
        same = {name for name, queue in queues.items() if self.queues.get(name) is queue}
        return {name: on for name, on in self.lines.items() if not on.problem and same.issuperset(on.names)}

    def opened_without(
        self, kept: Mapping[QueueName, QueueLine]
    ) -> tuple[Mapping[QueueName, Usage], Mapping[QueueName, Account]]:
        """Return the latest accounts, as if pods held something in these queues only."""
        usage, accounts = self._opened
        known = {name: each for name, each in usage.items() if name in kept}
        others = [name for name in usage if name not in kept]
        return known, self._recounted(accounts, others, usage, {}) if others else accounts

    def opened(self, usage: Mapping[QueueName, Usage]) -> Mapping[QueueName, Account]:
        """Return the accounts with what pods hold and request. Callers must not write to them.

        Only queues whose `Usage` differs from the last call are counted again. Queues that do not exist are skipped.
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
    """Return what a queue adds to the accounts that are charged for its pods.

    An invalid queue requests nothing new, but its ancestors are charged for what its pods hold.
    """
    held = quantities(usage.allocated)
    return held, quantities(usage.allocated_non_preemptible), quantities(usage.requested) if sound else held


def _difference(now: Sums, then: Sums) -> Sums:
    held, firm, wanted = ((a - x, b - y, c - z) for (a, b, c), (x, y, z) in zip(now, then, strict=True))
    return held, firm, wanted


class _Trees:
    """The latest trees. Plans that are made in parallel may use different sets of queues."""

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
    """Return the tree of these queues. It is the same object until a queue changes; the mapping itself is immutable."""
    return _TREES.of(queues)


def _judged_queue(queue: Queue, on: QueueLine) -> Queue:
    """Return the queue as it is judged: an invalid one deserves nothing, under the nearest valid ancestor if any."""
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
