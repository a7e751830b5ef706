"""Judges what queues may hold: limits and guaranteed shares along the queue tree, charged as one plan goes on.

`order` gives the order of PodGroups, and `fairshare` divides the surplus. Rules: KAI v0.13 (capacity policy).
"""

from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import replace

from app.model.decision import Share
from app.model.names import QueueName
from app.model.pod import Pod, ResourceClaim
from app.model.podgroup import PodGroup
from app.model.queue import ORPHANED, Queue
from app.model.reason import Reason, Refusal
from app.model.resources import GPU, NOTHING, QUOTA_AXES, UNLIMITED, Resources
from app.model.snapshot import NodeTable, Snapshot
from app.scheduling.copies import Claims, Common, Copied, Owned, Value
from app.scheduling.placement import fit
from app.scheduling.queues import wording
from app.scheduling.queues.accounts import Account, Quantities, QueueLine, Tree, quantities, sums_of, tree
from app.scheduling.queues.shared_claims import SharedClaims, with_milli

Claimed = Sequence[ResourceClaim]
NO_CLAIMS = 0, 0
_Saying = Callable[[Account, int, int], Refusal]
"""A function that words the refusal of an amount on an axis by an account."""


def least_charge(pod: Pod, nodes: NodeTable) -> Resources:
    """Return the smallest charge for a pod that has no node yet: on the largest GPU that the pod may get."""
    return pod.charge(_sizes(pod, nodes)[1] if is_by_memory(pod) else 0)


def most_charge(pod: Pod, nodes: NodeTable) -> Resources:
    """Return the largest charge for a pod that has no node yet: on the smallest GPU that the pod may get."""
    return pod.charge(_sizes(pod, nodes)[0] if is_by_memory(pod) else 0)


def is_by_memory(pod: Pod) -> bool:
    """Whether the pod requests GPU memory. Its charge depends on the GPU; all other charges are the same everywhere."""
    return pod.sharing is not None and pod.sharing.memory_mib > 0


def _sizes(pod: Pod, nodes: NodeTable) -> tuple[int, int]:
    """Return the memory of the smallest and the largest GPU of which the pod may get a part."""
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
    """Return the empty accounts of a queue and its ancestors, the queue first. Callers must not charge them.

    None for a queue that accepts no pods.
    """
    of_queues = tree(queues)
    found = of_queues.lines.get(name)
    if found is None or found.problem or name in of_queues.parents:
        return None
    return tuple(of_queues.accounts[each] for each in found.names)


class QueueLedger(Copied):
    """The accounts of the queues during one plan. Built from the snapshot, written by the planner, never shared."""

    _tree: Common[Tree]
    _lines: Value[Mapping[QueueName, QueueLine]]
    _parents: Value[Container[QueueName | None]]
    accounts: Owned[dict[QueueName, Account]]
    """The accounts by name. Only this class writes them; a charged account is replaced. `ORPHANED` has an account when
    pods hold something whose queues do not exist.
    """
    _own: Claims[set[QueueName]]
    """The queues whose accounts are charged in place. All other accounts are copied first."""
    _said: Common[dict[tuple[object, ...], Refusal]]
    """Refusals by all their inputs: ten thousand pods of one template are refused for one cause."""
    _parting: Common[dict[tuple[QueueName, QueueName], tuple[QueueName, QueueName] | None]]
    """Depends on the queue lines only. Cached because every start compares every queue that has pending PodGroups."""
    claims: Owned[SharedClaims]
    """The users of shared claims. Only this class changes them."""
    charged: Owned[list[QueueName]]
    """The leaf queue of every charge so far. Each reader keeps its own index into this list."""

    def __init__(self, snapshot: Snapshot) -> None:
        of_queues, usage = tree(snapshot.queues), snapshot.usage
        self._tree, self._lines, self._parents = of_queues, of_queues.lines, of_queues.parents
        self.accounts = dict(of_queues.opened(usage))
        orphans = [sums_of(each, sound=False) for name, each in usage.items() if name not in self._lines]
        if any(any(held) for held, _, _ in orphans):
            self.accounts[ORPHANED.name] = lost = Account(ORPHANED)
            for each in orphans:
                lost.add(each)
        self._own, self._said, self._parting, self.charged = set(), {}, {}, []
        self.claims = SharedClaims(snapshot)

    def ancestors(self, name: QueueName) -> tuple[Account, ...]:
        """Return the accounts that are charged for a queue: its own and the accounts of its valid ancestors."""
        return tuple(self.accounts[payer] for payer in self._payers(name))

    def parting(self, one: QueueName, other: QueueName) -> tuple[Account, Account] | None:
        """Return the topmost accounts in which the lines of two queues differ. Reclaim compares these accounts.

        The queue's own account twice where both queues are the same. None where one queue does not exist, or is an
        ancestor of the other one.
        """
        pair = one, other
        if pair not in self._parting:
            lines = zip(reversed(self._payers(one)), reversed(self._payers(other)), strict=False)
            differing = ((here, there) for here, there in lines if here != there or one == other == here)
            self._parting[pair] = next(differing, None)
        found = self._parting[pair]
        return None if found is None else (self.accounts[found[0]], self.accounts[found[1]])

    def payer(self, name: QueueName) -> QueueName | None:
        """Return the first queue that is charged for a queue, which may be missing. None when no queue is charged."""
        return next(iter(self._payers(name)), None)

    def _payers(self, name: QueueName) -> Sequence[QueueName]:
        found = self._lines.get(name)
        if found is not None:
            return found.charged
        return (ORPHANED.name,) if ORPHANED.name in self.accounts else ()

    # In what follows, `request` does not include `claims`: the shared claims of the pods, as often as pods use them.

    def check(self, group: PodGroup, request: Resources, claims: Claimed = ()) -> Refusal | None:
        """Return why pods with this request may not be started for the group now. Return None when they may."""
        return (
            self.standing(group) or self.over_limit(group, request, claims) or self.over_quota(group, request, claims)
        )

    def total(self, group: PodGroup, request: Resources, claims: Claimed) -> Resources:
        """Return what the group's queue pays more when pods with this request start."""
        return with_milli(request, self.claims.unpaid_milli(group.queue, claims))

    def standing(self, group: PodGroup) -> Refusal | None:
        """Return why the group's queue accepts no pods (KAI: pods use leaf queues). None when it accepts pods."""
        name = group.queue
        found = self._lines.get(name)
        if found is None:
            return wording.missing(name, self._tree.hint(name))
        if found.problem:
            return wording.refused(Reason.QUEUE_IS_INVALID, f"Queue {name} is not valid: {found.problem}.", queue=name)
        if name in self._parents:
            return wording.not_a_leaf(name, self._tree.leaves(name))
        return None

    def over_limit(self, group: PodGroup, request: Resources, claims: Claimed = ()) -> Refusal | None:
        """Judge the limits of the group's queue and of every ancestor. The queue must be valid."""
        request = self.total(group, request, claims) if claims else request
        asked = quantities(request)
        for account in self.ancestors(group.queue):
            axis = account.over_limit(asked)
            if axis is not None:
                return self._refusal(wording.over_limit, account, axis, group, request)
        return None

    def over_quota(self, group: PodGroup, request: Resources, claims: Claimed = ()) -> Refusal | None:
        """Judge a non-preemptible group by the deserved shares on its line. The queue must be valid."""
        if group.preemptible:
            return None
        request = with_milli(request, self.claims.unpaid_firm_milli(group.queue, claims)) if claims else request
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
        """Add the numbers of the queue to a refusal that names a queue but was made without its account."""
        if refusal is not None and refusal.reason is Reason.NON_PREEMPTIBLE_OVER_QUOTA:
            return self.over_quota(group, request) or refusal
        account = self.accounts.get(QueueName(str(refusal.details.get("queue")))) if refusal is not None else None
        if refusal is None or account is None or refusal.queue is not None:
            return refusal
        return replace(refusal, queue=account.numbers(request, firm=NOTHING if group.preemptible else request))

    def bounds_gpus(self, group: PodGroup) -> bool:
        """Whether a limit, or a quota for a non-preemptible group, bounds the GPUs of the group's queue."""
        line = self.ancestors(group.queue)
        return any(each.limit[GPU] != UNLIMITED for each in line) or (
            not group.preemptible and any(each.deserved[GPU] != UNLIMITED for each in line)
        )

    def is_below_deserved(self, group: PodGroup, request: Resources, *, beside: QueueName) -> bool:
        """Whether a queue holds less than its deserved share of every requested resource.

        The group's line of queues is judged, up to the queue where it meets the line of the queue `beside`.
        """
        theirs = {account.name for account in self.ancestors(beside)}
        mine = [account for account in self.ancestors(group.queue) if account.name not in theirs]
        asked = [axis for axis in QUOTA_AXES if quantities(request)[axis] > 0]
        return bool(mine) and all(each.allocated[axis] < each.deserved[axis] for each in mine for axis in asked)

    def is_within(self, group: PodGroup, request: Resources, shares: Mapping[QueueName, Share]) -> bool:
        """Whether the group's queues stay within these fair shares with the request, in every requested resource."""
        return self._is_within(group, request, shares, alone=False)

    def is_within_alone(self, group: PodGroup, request: Resources, shares: Mapping[QueueName, Share]) -> bool:
        """Return the same as if the queues held nothing."""
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

    def charge(self, group: PodGroup, request: Resources, claims: Claimed = ()) -> None:
        """Add what pods of the group cost to what its queue and every ancestor hold."""
        self._add(group, quantities(request), self.claims.add(group, claims) if claims else NO_CLAIMS)

    def refund(self, group: PodGroup, request: Resources, claims: Claimed = ()) -> None:
        """Subtract what pods of the group cost from what is held: they will be evicted."""
        cpu, memory, gpu = quantities(request)
        self._add(group, (-cpu, -memory, -gpu), self.claims.remove(group, claims) if claims else NO_CLAIMS)

    def _add(self, group: PodGroup, amounts: Quantities, claimed: tuple[int, int]) -> None:
        for name in self._payers(group.queue):
            account = self._owned(name)
            for axis in QUOTA_AXES:
                account.allocated[axis] += amounts[axis]
                if not group.preemptible:
                    account.non_preemptible[axis] += amounts[axis]
            account.allocated[GPU] += claimed[0]
            account.non_preemptible[GPU] += claimed[1]
        self.charged.append(group.queue)

    def _owned(self, name: QueueName) -> Account:
        if name not in self._own:
            self._own.add(name)
            self.accounts[name] = self.accounts[name].copy()
        return self.accounts[name]
