"""Derives the charge of a pod from everything that is known about it. Every change of a pod ends here.

Every change of the pod's group or reservation ends here too: sums cannot drift from their causes.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from app.cluster.changes import ChangeLog
from app.cluster.gpus.gpu_books import GpuBooks
from app.cluster.gpus.gpus import Gpus
from app.cluster.groups.membership import Membership
from app.cluster.groups.terms import GroupTerms
from app.cluster.ledger.assumed_pods import AssumedPods
from app.cluster.ledger.charge import Charge, Hold, charge_of
from app.cluster.ledger.charges import Charges
from app.cluster.ledger.nodes import Nodes
from app.cluster.ledger.reservations import Reservation, Reservations
from app.cluster.queues.tree import Queues
from app.cluster.state.claim_charges import ClaimCharges
from app.cluster.state.labelled import LabelledPods
from app.cluster.state.pods import KnownPods
from app.model.names import NO_QUEUE, GroupKey, NodeName, PodUid
from app.model.pod import Pod


class Settlement:
    """Charges pods, and drops reservations that are no longer valid. Only other parts of the cache call its methods."""

    def __init__(  # noqa: PLR0913 # every part that a charge follows from
        self,
        *,
        changes: ChangeLog,
        pods: KnownPods,
        groups: Membership,
        assumed: AssumedPods,
        reservations: Reservations,
        nodes: Nodes,
        queues: Queues,
        charges: Charges,
        gpus: Gpus,
        claim_charges: ClaimCharges,
    ) -> None:
        self._changes = changes
        self._pods = pods
        self._groups = groups
        self._assumed = assumed
        self._reservations = reservations
        self._nodes = nodes
        self._queues = queues
        self._charges = charges
        self._claim_charges = claim_charges
        self.gpu_books = GpuBooks(nodes, charges, gpus, changes, recharge=self.settle_each)
        """What nodes and queues pay for shared GPUs."""
        self.labelled = LabelledPods()
        """May be read."""

    def settle(self, uid: PodUid) -> None:
        """Derive the pod's charge again; more room, now or soon, is noted as a change that may let pods run."""
        self.gpu_books.restand(self._recharge(uid))

    def settle_each(self, uids: Iterable[PodUid]) -> None:
        """Settle several pods, and update the nodes where they share GPUs afterwards: once each."""
        nodes: dict[NodeName, None] = {}
        for uid in list(uids):
            nodes.update(dict.fromkeys(self._recharge(uid)))
        self.gpu_books.restand(nodes)

    def settle_groups(self, keys: Iterable[GroupKey]) -> None:
        """Charge the pods of these groups again."""
        for key in keys:
            self.settle_each(pod.uid for pod in self._groups.pods(key))

    def follow_terms(self, key: GroupKey, before: GroupTerms | None) -> None:
        """Charge a group's pods again when a pod that set its terms is new, has changed or is gone."""
        after = self._groups.terms.of(key)
        if after != before and after is not None and before is not None:
            self.settle_groups([key])

    # Reservations that end by what the watches show ------------------------------------------------------------------

    def lose_promise(self, uid: PodUid) -> None:
        """Drop the reservation of a pod; the caller settles the pod next."""
        self._reservations.drop(uid)
        self._changes.lose_promise(uid)

    def revoke_promise(self, uid: PodUid) -> None:
        """Drop the reservation of a pod unless kube-scheduler or Leeboard may be writing the binding."""
        held = self._reservations.get(uid)
        if held is not None and held.is_revocable:
            self.lose_promise(uid)

    def follow_promise(self, before: Pod | None, pod: Pod) -> None:
        """End the reservation of a pod by what the watch shows of the pod: a refusal, its binding, or its deletion."""
        self.learn_from_condition(before, pod)
        held = self._reservations.get(pod.uid)
        was_bound = before is not None and before.node is not None
        if pod.node is not None and not was_bound and (held is None or held.node != pod.node):
            self._changes.take_over_place(pod.node)
        if held is not None and (pod.node is not None or (pod.deleting and not held.is_written)):
            self._reservations.drop(pod.uid)

    def learn_from_condition(self, before: Pod | None, pod: Pod) -> bool:
        """Drop the reservation of a pod that kube-scheduler's own filters refuse everywhere; return whether it did."""
        held = self._reservations.get(pod.uid)
        if held is None or before is None or not held.is_refused(before, pod):
            return False
        self._groups.asked.mark_stuck(pod)
        self.lose_promise(pod.uid)
        return True

    def lose_promises(self, held: Iterable[Reservation]) -> None:
        """Drop these reservations at once, except those whose binding is being written: pods may find another node."""
        for one in held:
            if not one.is_written:
                self.lose_promise(one.pod)
                self.settle(one.pod)

    def lose_unpaid(self) -> None:
        """Drop the reservations of pods whose queue accepts no pods."""
        self.lose_promises([one for one in self._reservations if one.is_revocable and self._is_unpaid(one)])

    def _is_unpaid(self, held: Reservation) -> bool:
        charge = self._charges.get(held.pod)
        return charge is not None and charge.queue is not None and not self._queues.takes_pods(charge.queue)

    # One charge a pod ------------------------------------------------------------------------------------------------

    def _recharge(self, uid: PodUid) -> Collection[NodeName]:
        """Charge a pod again; return the nodes where its use of shared GPUs has changed, for `GpuBooks.restand`."""
        before, pod = self._charges.get(uid), self._pods.get(uid)
        charge = self._charge_of(pod) if pod else None
        if pod is not None and self._has_other_terms(uid, before, charge):
            self.lose_promise(uid)
            charge = self._charge_of(pod)
        if charge != before:
            self._charges.set(uid, charge)
        self._claim_charges.follow_pod(uid, pod, charge)
        if pod is None or (charge is not None and charge.node is not None):
            self._assumed.end(uid)
        nodes = self.gpu_books.share(uid, pod, charge, before=before)
        self.labelled.put(uid, pod, charge.node if charge else None)
        if before is not None and before.node is not None and charge != before and before.frees(charge):
            self._changes.relieve(before.node)
        if pod is not None and pod.managed:
            self._groups.touched.mark(pod.group)
        self._changes.version += 1
        self._changes.show_pod(uid)
        return nodes

    def _charge_of(self, pod: Pod) -> Charge | None:
        if self._is_outside(pod):
            pod = replace(pod, queue=NO_QUEUE)
        held, on = self._reservations.get(pod.uid), self._groups.terms.of(pod.group)
        charge = charge_of(pod, held, on, self._nodes.device_mib)
        if charge is None or charge.hold is not Hold.LEAVING or charge.node is None:
            return charge
        # No kubelet ends the pod there: its queue could not start another pod in its place while the machine is dead.
        return replace(charge, queue=None) if self._nodes.is_lost(charge.node) else charge

    def _is_outside(self, pod: Pod) -> bool:
        """Whether a pod belongs to another scheduler, and the queue that it names does not exist.

        Leeboard cannot reclaim what such a pod holds, so queues must not count on it.
        """
        return bool(pod.queue) and not pod.managed and not self._queues.exists(pod.queue)

    def _has_other_terms(self, uid: PodUid, before: Charge | None, charge: Charge | None) -> bool:
        """Whether the terms of a reservation have changed: another queue, or preemptible then and not now."""
        held = self._reservations.get(uid)
        if held is None or not held.is_revocable or before is None or before.node is None or charge is None:
            return False
        moves = None not in (before.queue, charge.queue) and before.queue != charge.queue
        return moves or (before.preemptible and not charge.preemptible)
