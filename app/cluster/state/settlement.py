"""Derives from what is known of a pod what it is charged with. Every change of a pod ends here.

So does every change of its group or its reservation: sums cannot drift from what caused them.
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
from app.cluster.state.labelled import LabelledPods
from app.cluster.state.pods import KnownPods
from app.model.names import NO_QUEUE, GroupKey, NodeName, PodUid
from app.model.pod import Pod


class Settlement:
    """Charges pods, and takes back promises that are no longer good. Only other parts of the cache call in here."""

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
    ) -> None:
        self._changes = changes
        self._pods = pods
        self._groups = groups
        self._assumed = assumed
        self._reservations = reservations
        self._nodes = nodes
        self._queues = queues
        self._charges = charges
        self.gpu_books = GpuBooks(nodes, charges, gpus, changes, recharge=self.settle_each)
        """What nodes and queues pay for shared GPUs."""
        self.labelled = LabelledPods()
        """Asked freely."""

    def settle(self, uid: PodUid) -> None:
        """Derive the pod's charge again; more room somewhere, now or soon, is relief for those who wait."""
        self.gpu_books.restand(self._recharge(uid))

    def settle_each(self, uids: Iterable[PodUid]) -> None:
        """Do so for several pods, and look only then at the nodes where they share GPUs: once each."""
        nodes: set[NodeName] = set()
        for uid in list(uids):
            nodes.update(self._recharge(uid))
        self.gpu_books.restand(nodes)

    def settle_groups(self, keys: Iterable[GroupKey]) -> None:
        """Charge the pods of these groups again."""
        for key in keys:
            self.settle_each(pod.uid for pod in self._groups.pods(key))

    def follow_terms(self, key: GroupKey, before: GroupTerms | None) -> None:
        """Charge a group's pods again when a pod that set its terms has come, changed or left."""
        after = self._groups.terms.of(key)
        if after != before and after is not None and before is not None:
            self.settle_groups([key])

    # Promises that end by what the watches show ----------------------------------------------------------------------

    def lose_promise(self, uid: PodUid) -> None:
        """Take back what is promised to a pod, which is settled next."""
        self._reservations.drop(uid)
        self._changes.lose_promise(uid)

    def revoke_promise(self, uid: PodUid) -> None:
        """Do so unless kube-scheduler or we may be writing the binding."""
        held = self._reservations.get(uid)
        if held is not None and held.is_revocable:
            self.lose_promise(uid)

    def follow_promise(self, before: Pod | None, pod: Pod) -> None:
        """End the promise to a pod by what the watch shows of it: a refusal, its binding, or its deletion."""
        self.learn_from_condition(before, pod)
        held = self._reservations.get(pod.uid)
        was_bound = before is not None and before.node is not None
        if pod.node is not None and not was_bound and (held is None or held.node != pod.node):
            self._changes.take_over_place(pod.node)
        if held is not None and (pod.node is not None or (pod.deleting and not held.is_written)):
            self._reservations.drop(pod.uid)

    def learn_from_condition(self, before: Pod | None, pod: Pod) -> bool:
        """Take back what is promised to a pod that kube-scheduler's own filters accept nowhere; return whether."""
        held = self._reservations.get(pod.uid)
        if held is None or before is None or not held.is_refused(before, pod):
            return False
        self._groups.asked.mark_stuck(pod)
        self.lose_promise(pod.uid)
        return True

    def lose_promises(self, held: Iterable[Reservation]) -> None:
        """Take back these promises at once, except those that are being written: pods may find another place."""
        for one in held:
            if not one.is_written:
                self.lose_promise(one.pod)
                self.settle(one.pod)

    def lose_unpaid(self) -> None:
        """Take back the promises to pods whose queue takes no pods."""
        self.lose_promises([one for one in self._reservations if one.is_revocable and self._is_unpaid(one)])

    def _is_unpaid(self, held: Reservation) -> bool:
        charge = self._charges.get(held.pod)
        return charge is not None and charge.queue is not None and not self._queues.takes_pods(charge.queue)

    # One charge a pod ------------------------------------------------------------------------------------------------

    def _recharge(self, uid: PodUid) -> Collection[NodeName]:
        """Return the nodes on which the pod shares GPUs otherwise than before, for `GpuBooks.restand`."""
        before, pod = self._charges.get(uid), self._pods.get(uid)
        charge = self._charge_of(pod) if pod else None
        if pod is not None and self._has_other_terms(uid, before, charge):
            self.lose_promise(uid)
            charge = self._charge_of(pod)
        if charge != before:
            self._charges.set(uid, charge)
        if pod is None or (charge is not None and charge.node is not None):
            self._assumed.end(uid)
        nodes = self.gpu_books.share(uid, pod, charge)
        self.labelled.put(uid, pod, charge.node if charge else None)
        if before is not None and before.node is not None and charge != before and before.frees(charge):
            self._changes.relieve(before.node)
        if pod is not None and pod.managed:
            self._groups.touched.mark(pod.group)
        self._changes.version += 1
        return nodes

    def _charge_of(self, pod: Pod) -> Charge | None:
        if self._is_outside(pod):
            pod = replace(pod, queue=NO_QUEUE)
        held, on = self._reservations.get(pod.uid), self._groups.terms.of(pod.group)
        charge = charge_of(pod, held, on, self._nodes.device_mib)
        if charge is None or charge.hold is not Hold.LEAVING or charge.node is None:
            return charge
        # Nobody ends it there: its queue could not start another in its place for as long as the machine is dead.
        return replace(charge, queue=None) if self._nodes.is_lost(charge.node) else charge

    def _is_outside(self, pod: Pod) -> bool:
        """Whether a pod is of another scheduler, and the queue that it names does not exist.

        Nobody could reclaim what it holds, so queues must not count on that.
        """
        return bool(pod.queue) and not pod.managed and not self._queues.exists(pod.queue)

    def _has_other_terms(self, uid: PodUid, before: Charge | None, charge: Charge | None) -> bool:
        """Whether a pod is promised a node on terms on which it would not be bound: in its queue, or as preemptible."""
        held = self._reservations.get(uid)
        if held is None or not held.is_revocable or before is None or before.node is None or charge is None:
            return False
        moves = None not in (before.queue, charge.queue) and before.queue != charge.queue
        return moves or (before.preemptible and not charge.preemptible)
