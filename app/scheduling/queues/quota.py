"""What queues may hold: limits and guaranteed shares along the queue tree, charged as one plan goes on.

Who comes next is left to `order`, how the surplus is divided to `fairshare`. Rules: KAI v0.13 (capacity policy).
"""

from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import replace

from app.model.decision import Share
from app.model.names import QueueName
from app.model.pod import Pod
from app.model.podgroup import PodGroup
from app.model.queue import ORPHANED, Queue
from app.model.reason import Reason, Refusal
from app.model.resources import GPU, NOTHING, QUOTA_AXES, UNLIMITED, Resources
from app.model.snapshot import NodeTable, Snapshot
from app.scheduling.copies import Claims, Common, Copied, Owned, Value
from app.scheduling.placement import fit
from app.scheduling.queues import wording
from app.scheduling.queues.accounts import Account, Quantities, QueueLine, quantities, sums_of, tree

_Saying = Callable[[Account, int, int], Refusal]
"""Says that an account refuses an amount on an axis."""


def least_charge(pod: Pod, nodes: NodeTable) -> Resources:
    """Return the least that a queue may have to pay for a pod without a node: on the largest GPU that it may get."""
    return pod.charge(_sizes(pod, nodes)[1] if is_by_memory(pod) else 0)


def most_charge(pod: Pod, nodes: NodeTable) -> Resources:
    """Return the most that a queue may have to pay for a pod without a node: on the smallest GPU that it may get."""
    return pod.charge(_sizes(pod, nodes)[0] if is_by_memory(pod) else 0)


def is_by_memory(pod: Pod) -> bool:
    """Whether the pod asks for GPU memory: what it costs depends on the GPU. All else costs the same everywhere."""
    return pod.sharing is not None and pod.sharing.memory_mib > 0


def _sizes(pod: Pod, nodes: NodeTable) -> tuple[int, int]:
    """Return the memory of the smallest and of the largest GPU of which the pod may get a part."""
    least = 0 if pod.sharing is None else pod.sharing.memory_mib
    known: dict[Hashable, tuple[int, int]] = nodes.memo.setdefault("sizes of GPUs", {})
    found = known.get((pod.constraint, least))
    if found is None:
        may_get = fit.eligible(pod.constraint, nodes) & nodes.shares_devices & (nodes.allocatable[GPU] > 0)
        sizes = nodes.device_memory_mib[may_get & (nodes.device_memory_mib >= least)]
        smallest = nodes.smallest_device_mib
        found = (int(sizes.min()), int(sizes.max())) if sizes.size else (smallest, smallest)
        if len(known) < fit.MOST_REMEMBERED and not pod.constraint.is_long:
            known[pod.constraint, least] = found
    return found


def empty_line(queues: Mapping[QueueName, Queue], name: QueueName) -> tuple[Account, ...] | None:
    """Return the accounts of a queue and its ancestors, itself first, in which nothing is held; not to be charged.

    None for a queue that takes no pods.
    """
    of_queues = tree(queues)
    found = of_queues.lines.get(name)
    if found is None or found.problem or name in of_queues.parents:
        return None
    return tuple(of_queues.accounts[each] for each in found.names)


class QueueLedger(Copied):
    """The queues' accounts during one plan: built from its snapshot, written by its planner, never shared."""

    _lines: Value[Mapping[QueueName, QueueLine]]
    _parents: Value[Container[QueueName | None]]
    accounts: Owned[dict[QueueName, Account]]
    """The accounts by name; read-only for everyone else, and replaced when charged. There is one of `ORPHANED` when
    pods hold something whose queues do not exist."""
    _own: Claims[set[QueueName]]
    """Whose accounts are charged in place; the others are copied before."""
    _said: Common[dict[tuple[object, ...], Refusal]]
    """By all that a refusal is made from: ten thousand pods of one template are refused for one cause."""
    _parting: Common[dict[tuple[QueueName, QueueName], tuple[QueueName, QueueName] | None]]
    """Follows from the lines alone; every start asks about every queue that waits."""
    charged: Owned[list[QueueName]]
    """The leaf queue of every charge so far; readers keep their own place in it."""

    def __init__(self, snapshot: Snapshot) -> None:
        of_queues, usage = tree(snapshot.queues), snapshot.usage
        self._lines, self._parents = of_queues.lines, of_queues.parents
        self.accounts = dict(of_queues.opened(usage))
        orphans = [sums_of(each, sound=False) for name, each in usage.items() if name not in self._lines]
        if any(any(held) for held, _, _ in orphans):
            self.accounts[ORPHANED.name] = lost = Account(ORPHANED)
            for each in orphans:
                lost.add(each)
        self._own, self._said, self._parting, self.charged = set(), {}, {}, []

    def ancestors(self, name: QueueName) -> tuple[Account, ...]:
        """Return the accounts that pay for what is held in a queue: its own and those of its sound ancestors."""
        return tuple(self.accounts[payer] for payer in self._payers(name))

    def parting(self, one: QueueName, other: QueueName) -> tuple[Account, Account] | None:
        """Return the topmost accounts on the lines of two queues in which these differ, where reclaim compares them.

        The queue's own twice where both are the same; None where one is not there, or is above the other.
        """
        pair = one, other
        if pair not in self._parting:
            lines = zip(reversed(self._payers(one)), reversed(self._payers(other)), strict=False)
            differing = ((here, there) for here, there in lines if here != there or one == other == here)
            self._parting[pair] = next(differing, None)
        found = self._parting[pair]
        return None if found is None else (self.accounts[found[0]], self.accounts[found[1]])

    def payer(self, name: QueueName) -> QueueName | None:
        """Return the queue whose account pays first for what is held in a queue, there or not; None where none does."""
        return next(iter(self._payers(name)), None)

    def _payers(self, name: QueueName) -> Sequence[QueueName]:
        found = self._lines.get(name)
        if found is not None:
            return found.charged
        return (ORPHANED.name,) if ORPHANED.name in self.accounts else ()

    def check(self, group: PodGroup, request: Resources) -> Refusal | None:
        """Return why `request` may not be started for the group now, None when it may."""
        return self.standing(group) or self.over_limit(group, request) or self.over_quota(group, request)

    def standing(self, group: PodGroup) -> Refusal | None:
        """Return why the group's queue takes no pods at all (KAI: pods go to leaf queues), None when it does."""
        name = group.queue
        found = self._lines.get(name)
        if found is None:
            return wording.refused(Reason.QUEUE_DOES_NOT_EXIST, f"Queue {name} does not exist.", queue=name)
        if found.problem:
            return wording.refused(Reason.QUEUE_IS_INVALID, f"Queue {name} is not valid: {found.problem}.", queue=name)
        if name in self._parents:
            sentence = f"Queue {name} has child queues; name one of the leaf queues below it."
            return wording.refused(Reason.QUEUE_IS_NOT_A_LEAF, sentence, queue=name)
        return None

    def over_limit(self, group: PodGroup, request: Resources) -> Refusal | None:
        """Judge the limits of the group's queue and every ancestor; the queue must be sound."""
        asked = quantities(request)
        for account in self.ancestors(group.queue):
            axis = account.over_limit(asked)
            if axis is not None:
                return self._refusal(wording.over_limit, account, axis, group, request)
        return None

    def over_quota(self, group: PodGroup, request: Resources) -> Refusal | None:
        """Judge a non-preemptible group by the deserved shares on its line; the queue must be sound."""
        if group.preemptible:
            return None
        asked = quantities(request)
        for account in self.ancestors(group.queue):
            axis = account.over_quota(asked)
            if axis is not None:
                return self._refusal(wording.over_quota, account, axis, group, request)
        return None

    def _refusal(self, said: _Saying, account: Account, axis: int, group: PodGroup, request: Resources) -> Refusal:
        held = tuple(account.allocated), tuple(account.non_preemptible)
        key = said, account.name, axis, group.preemptible, request, held
        if key not in self._said:
            firm = NOTHING if group.preemptible else request
            refusal = said(account, axis, quantities(request)[axis])
            self._said[key] = replace(refusal, queue=account.numbers(request, firm=firm))
        return self._said[key]

    def numbered(self, refusal: Refusal | None, group: PodGroup, request: Resources) -> Refusal | None:
        """Add the numbers of the queue to a refusal that names one but was made without its account."""
        if refusal is not None and refusal.reason is Reason.NON_PREEMPTIBLE_OVER_QUOTA:
            return self.over_quota(group, request) or refusal
        account = self.accounts.get(QueueName(str(refusal.details.get("queue")))) if refusal is not None else None
        if refusal is None or account is None or refusal.queue is not None:
            return refusal
        return replace(refusal, queue=account.numbers(request, firm=NOTHING if group.preemptible else request))

    def bounds_gpus(self, group: PodGroup) -> bool:
        """Whether a limit, or for a non-preemptible group a quota, bounds what its queue may pay for GPUs."""
        line = self.ancestors(group.queue)
        return any(each.limit[GPU] != UNLIMITED for each in line) or (
            not group.preemptible and any(each.deserved[GPU] != UNLIMITED for each in line)
        )

    def is_below_deserved(self, group: PodGroup, request: Resources, *, beside: QueueName) -> bool:
        """Whether a queue holds less than it deserves of all that is requested, as far as it is not `beside` itself.

        Judged on the group's line of queues, up to where it meets that of the queue `beside`.
        """
        theirs = {account.name for account in self.ancestors(beside)}
        mine = [account for account in self.ancestors(group.queue) if account.name not in theirs]
        asked = [axis for axis in QUOTA_AXES if quantities(request)[axis] > 0]
        return bool(mine) and all(each.allocated[axis] < each.deserved[axis] for each in mine for axis in asked)

    def is_within(self, group: PodGroup, request: Resources, shares: Mapping[QueueName, Share]) -> bool:
        """Whether the group's queues stay within these fair shares with the request, in all that is requested."""
        return self._is_within(group, request, shares, alone=False)

    def is_within_alone(self, group: PodGroup, request: Resources, shares: Mapping[QueueName, Share]) -> bool:
        """Say the same as if the queues held nothing."""
        return self._is_within(group, request, shares, alone=True)

    def _is_within(
        self, group: PodGroup, request: Resources, shares: Mapping[QueueName, Share], *, alone: bool
    ) -> bool:
        asked = quantities(request)
        return all(
            (0 if alone else account.allocated[axis]) + asked[axis] <= quantities(shares[account.name].fair_share)[axis]
            for account in self.ancestors(group.queue)
            for axis in QUOTA_AXES
            if asked[axis] > 0
        )

    def charge(self, group: PodGroup, request: Resources) -> None:
        """Count `request` as held by the group's queue and every ancestor."""
        self._add(group, quantities(request))

    def refund(self, group: PodGroup, request: Resources) -> None:
        """Count `request` as no longer held: pods that hold it shall leave."""
        cpu, memory, gpu = quantities(request)
        self._add(group, (-cpu, -memory, -gpu))

    def _add(self, group: PodGroup, amounts: Quantities) -> None:
        for name in self._payers(group.queue):
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
