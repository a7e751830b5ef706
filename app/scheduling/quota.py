"""What queues may hold: limits and guaranteed shares along the queue tree, charged as one plan goes on.

Who comes next is left to `order`, how the surplus is divided to `fairshare`. Rules: KAI v0.13 (capacity policy).
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

from app.model.names import QueueName
from app.model.podgroup import PodGroup
from app.model.queue import Queue
from app.model.reason import QueueNumbers, Reason, Refusal
from app.model.resources import CPU, GPU, MEMORY, NOTHING, QUOTA_AXES, UNLIMITED, Resources
from app.model.snapshot import Snapshot

Quantities = tuple[int, int, int]
"""Amounts in the order of `QUOTA_AXES`."""


def quantities(amounts: Resources) -> Quantities:
    """Return what quota judges of `amounts`."""
    return amounts.cpu_milli, amounts.memory_bytes, amounts.gpu_milli


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A queue and its ancestors, itself first, as far up as they exist."""

    names: tuple[QueueName, ...]
    problem: str = ""
    """Why the queue takes part in nothing; empty when it and all its ancestors are sound."""
    charged: tuple[QueueName, ...] = ()
    """The sound ones up to the top: they pay for what the queue's pods hold, even if it is itself unsound."""


def line(queues: Mapping[QueueName, Queue], name: QueueName) -> Line:
    """Follow the parents of a queue to the top; a missing parent or a circle is a problem, never a loop."""
    names: dict[QueueName, None] = {}
    at: QueueName | None = name
    while at is not None:
        if at in names:
            return Line(names=tuple(names), problem=f"its parents form a circle through {at}")
        if at not in queues:
            return Line(names=tuple(names), problem=f"its parent {at} does not exist")
        names[at] = None
        at = queues[at].parent
    return _judged(queues, tuple(names))


def _judged(queues: Mapping[QueueName, Queue], names: tuple[QueueName, ...]) -> Line:
    unsound = [depth for depth, name in enumerate(names) if queues[name].problem]
    if not unsound:
        return Line(names=names, charged=names)
    nearest, farthest = names[unsound[0]], unsound[-1]
    problem = queues[nearest].problem
    if nearest != names[0]:
        problem = f"its parent {nearest} is not valid: {problem}"
    return Line(names=names, problem=problem, charged=names[farthest + 1 :])


class Account:
    """What one sound queue may hold and what it and all its descendants hold now."""

    __slots__ = ("allocated", "deserved", "limit", "name", "non_preemptible", "queue", "requested")

    def __init__(self, queue: Queue) -> None:
        entitlements = [queue.entitlement(axis) for axis in QUOTA_AXES]
        self.queue = queue
        self.name = queue.name
        self.deserved = [each.deserved for each in entitlements]
        self.limit = [each.limit for each in entitlements]
        # The three sums are written by `Ledger` alone; everyone else reads them.
        self.allocated = [0, 0, 0]
        self.non_preemptible = [0, 0, 0]
        self.requested = [0, 0, 0]

    def copy(self) -> "Account":
        """Return an account with sums of its own."""
        twin = self._of_the_same_queue()
        twin.allocated, twin.non_preemptible = list(self.allocated), list(self.non_preemptible)
        twin.requested = self.requested
        return twin

    def opened(self) -> "Account":
        """Return an account of the same queue in which nothing is held yet."""
        twin = self._of_the_same_queue()
        twin.allocated, twin.non_preemptible, twin.requested = [0, 0, 0], [0, 0, 0], [0, 0, 0]
        return twin

    def _of_the_same_queue(self) -> "Account":
        twin = Account.__new__(Account)
        twin.queue, twin.name, twin.deserved, twin.limit = self.queue, self.name, self.deserved, self.limit
        return twin

    def over_limit(self, request: Quantities) -> int | None:
        """Return the first axis on which `request` passes the limit; an axis not asked for is not judged."""
        return _first_over(self.limit, self.allocated, request)

    def over_quota(self, request: Quantities) -> int | None:
        """Return the first axis on which a non-preemptible `request` passes the deserved share."""
        return _first_over(self.deserved, self.non_preemptible, request)

    def numbers(self, asked: Resources, *, firm: Resources) -> QueueNumbers:
        """Return how it stands beside what is asked of it; `firm` is the non-preemptible part."""
        return QueueNumbers(
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


@dataclass(frozen=True, slots=True)
class _Tree:
    """What follows from the queues alone."""

    lines: Mapping[QueueName, Line]
    parents: frozenset[QueueName | None]
    sound: Mapping[QueueName, Account]
    """Accounts to make others like; nothing is held in these."""


class _Same:
    """Queues that are the same as long as none of them has changed, which their mapping never does."""

    __slots__ = ("queues",)

    def __init__(self, queues: Mapping[QueueName, Queue]) -> None:
        self.queues = queues

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.queues is self.queues

    def __hash__(self) -> int:
        return id(self.queues)


# With a thousand queues this is half of a plan for one pod, and queues seldom change.
@lru_cache(maxsize=2)
def _tree(same: _Same) -> _Tree:
    queues = same.queues
    lines = {name: line(queues, name) for name in queues}
    sound = {name: Account(queues[name]) for name, each in lines.items() if not each.problem}
    return _Tree(lines, frozenset(queue.parent for queue in queues.values()), sound)


class Ledger:
    """The queues' accounts during one plan: built from its snapshot, written by its planner, never shared."""

    def __init__(self, snapshot: Snapshot) -> None:
        tree = _tree(_Same(snapshot.queues))
        self._lines, self._parents = tree.lines, tree.parents
        self.accounts = {name: account.opened() for name, account in tree.sound.items()}
        """The accounts of the sound queues, by name; read-only for everyone else, and replaced when charged."""
        # Those that no copy of this ledger reads as well: the others are copied before they are charged.
        self._own = set(self.accounts)
        # Ten thousand pods of one template are refused for one cause: by all that a refusal is made from.
        self._said: dict[tuple[object, ...], Refusal] = {}
        self.charged: list[QueueName] = []
        """The leaf queue of every charge so far; readers keep their own place in it."""
        for name in snapshot.usage.keys() & snapshot.queues.keys():
            self._open(name, snapshot)

    def _open(self, name: QueueName, snapshot: Snapshot) -> None:
        usage = snapshot.usage[name]
        held, firm = quantities(usage.allocated), quantities(usage.allocated_non_preemptible)
        # An unsound queue claims nothing new, but what its pods hold is really gone for its ancestors.
        wanted = held if self._lines[name].problem else quantities(usage.requested)
        for account in self.ancestors(name):
            for axis in QUOTA_AXES:
                account.allocated[axis] += held[axis]
                account.non_preemptible[axis] += firm[axis]
                account.requested[axis] += wanted[axis]

    def adopt(self, other: Self) -> None:
        """Become what a copy has become; whoever reads this ledger sees it."""
        self.accounts, self._own = other.copy().accounts, set()
        self.charged[:] = other.charged

    def ancestors(self, name: QueueName) -> tuple[Account, ...]:
        """Return the accounts of a sound queue and its ancestors, itself first."""
        return tuple(self.accounts[payer] for payer in self._lines[name].charged)

    def copy(self) -> Self:
        """Return a ledger that may be charged without charging this one."""
        self._own.clear()
        twin = copy(self)
        twin.detach()
        return twin

    def detach(self) -> None:
        """Share nothing that changes with the ledger that this one was copied from."""
        self.accounts, self.charged, self._own = dict(self.accounts), list(self.charged), set()

    def check(self, group: PodGroup, request: Resources) -> Refusal | None:
        """Return why `request` may not be started for the group now, None when it may."""
        return self.standing(group) or self.over_limit(group, request) or self.over_quota(group, request)

    def standing(self, group: PodGroup) -> Refusal | None:
        """Return why the group's queue takes no pods at all (KAI: pods go to leaf queues), None when it does."""
        name = group.queue
        found = self._lines.get(name)
        if found is None:
            return _refused(Reason.QUEUE_DOES_NOT_EXIST, f"Queue {name} does not exist.", queue=name)
        if found.problem:
            return _refused(Reason.QUEUE_IS_INVALID, f"Queue {name} is not valid: {found.problem}.", queue=name)
        if name in self._parents:
            sentence = f"Queue {name} has child queues; name one of the leaf queues below it."
            return _refused(Reason.QUEUE_IS_NOT_A_LEAF, sentence, queue=name)
        return None

    def over_limit(self, group: PodGroup, request: Resources) -> Refusal | None:
        """Judge the limits of the group's queue and every ancestor; the queue must be sound."""
        asked = quantities(request)
        for account in self.ancestors(group.queue):
            axis = account.over_limit(asked)
            if axis is not None:
                return self._refusal(_over_limit, account, axis, group, request)
        return None

    def over_quota(self, group: PodGroup, request: Resources) -> Refusal | None:
        """Judge a non-preemptible group by the deserved shares on its line; the queue must be sound."""
        if group.preemptible:
            return None
        asked = quantities(request)
        for account in self.ancestors(group.queue):
            axis = account.over_quota(asked)
            if axis is not None:
                return self._refusal(_over_quota, account, axis, group, request)
        return None

    def _refusal(self, said: "_Saying", account: Account, axis: int, group: PodGroup, request: Resources) -> Refusal:
        held = tuple(account.allocated), tuple(account.non_preemptible)
        key = said, account.name, axis, group.preemptible, request, held
        if key not in self._said:
            firm = NOTHING if group.preemptible else request
            refusal = said(account, axis, quantities(request)[axis])
            self._said[key] = replace(refusal, queue=account.numbers(request, firm=firm))
        return self._said[key]

    def charge(self, group: PodGroup, request: Resources) -> None:
        """Count `request` as held by the group's queue and every ancestor."""
        self._add(group, quantities(request))

    def refund(self, group: PodGroup, request: Resources) -> None:
        """Count `request` as no longer held: pods that hold it shall leave."""
        cpu, memory, gpu = quantities(request)
        self._add(group, (-cpu, -memory, -gpu))

    def _add(self, group: PodGroup, amounts: Quantities) -> None:
        # Pods may run on in a queue that is gone or unsound; then only its sound ancestors pay, or nobody.
        if group.queue not in self._lines:
            return
        for name in self._lines[group.queue].charged:
            account = self._owned(name)
            for axis in QUOTA_AXES:
                account.allocated[axis] += amounts[axis]
                if not group.preemptible:
                    account.non_preemptible[axis] += amounts[axis]
        self.charged.append(group.queue)

    def _owned(self, name: QueueName) -> Account:
        if name not in self._own:
            self._own.add(name)
            self.accounts[name] = self.accounts[name].copy()
        return self.accounts[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Words:
    """How people name a resource; `milli` amounts make a thousandth of `unit`."""

    kind: str
    asked: str
    unit: str
    milli: int

    def said(self, amount: int) -> str:
        """Write an amount in the unit, cut to three digits as KAI does."""
        sign, whole = ("-" if amount < 0 else ""), abs(amount) // self.milli
        return sign + f"{whole // 1000}.{whole % 1000:03d}".rstrip("0").rstrip(".")


_WORDS = {
    CPU: _Words(kind="CPU cores", asked="CPU cores", unit="cores", milli=1),
    MEMORY: _Words(kind="memory", asked="GB memory", unit="GB", milli=1_000_000),
    GPU: _Words(kind="GPUs", asked="GPUs", unit="GPUs", milli=1),
}


def amount_text(axis: int, amount: int) -> str:
    """Return an amount of one of `QUOTA_AXES` as people say it."""
    return f"{_WORDS[axis].said(amount)} {_WORDS[axis].unit}"


_Saying = Callable[[Account, int, int], Refusal]
"""Says that an account refuses an amount on an axis."""


def _over_limit(account: Account, axis: int, requested: int) -> Refusal:
    words = _WORDS[axis]
    limit, held, asked = (words.said(each) for each in (account.limit[axis], account.allocated[axis], requested))
    sentence = (
        f"{account.name} quota has reached the allowable limit of {words.kind}. Limit is {limit} {words.unit}, "
        f"currently {held} {words.unit} allocated and workload requested {asked} {words.unit}"
    )
    numbers = {"resource": words.asked, "limit": limit, "allocated": held, "requested": asked}
    return _refused(Reason.OVER_LIMIT, sentence, queue=account.name, **numbers)


def _over_quota(account: Account, axis: int, requested: int) -> Refusal:
    words = _WORDS[axis]
    firm = account.non_preemptible[axis]
    deserved, held, asked = (words.said(each) for each in (account.deserved[axis], firm, requested))
    sentence = (
        f"Non-preemptible workload is over quota. Workload requested {asked} {words.asked}, "
        f"but {account.name} quota is {deserved} {words.unit}, while {held} {words.unit} are already allocated "
        "for non-preemptible pods. Use a preemptible workload to go over quota."
    )
    numbers = {"resource": words.asked, "deserved": deserved, "allocated": held, "requested": asked}
    return _refused(Reason.NON_PREEMPTIBLE_OVER_QUOTA, sentence, queue=account.name, **numbers)


def _refused(reason: Reason, sentence: str, **details: str) -> Refusal:
    return Refusal(reason=reason, sentence=sentence, details=details)
