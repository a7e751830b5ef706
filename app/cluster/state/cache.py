"""The cluster as the watches showed it, with the reservations in it.

Only the event loop calls the methods that change the state, and never across an await. `apply_*`, `delete_*` and
`fail_*` store what the watches show. The parts are attributes, and readers read them. Every change of a pod, its group
or its reservation ends in `Settlement`, which derives the pod's one charge.
"""

from collections.abc import Collection

from app.cluster.changes import ChangeLog, Changes
from app.cluster.dra.device_claims import DeviceClaims, Followed
from app.cluster.gpus.gpus import Gpus
from app.cluster.groups.membership import Membership
from app.cluster.ledger.assumed_pods import AssumedPods
from app.cluster.ledger.charges import Charges
from app.cluster.ledger.nodes import Nodes, NodeSource
from app.cluster.ledger.reservations import Reservations
from app.cluster.queues.tree import Queues
from app.cluster.queues.usage import UsageHistory
from app.cluster.state.claim_charges import ClaimCharges
from app.cluster.state.findings import SchedulerFindings
from app.cluster.state.payers import Payers
from app.cluster.state.pod_arrivals import PodArrivals
from app.cluster.state.pods import KnownPods
from app.cluster.state.promises import Promises
from app.cluster.state.room import Room
from app.cluster.state.settlement import Settlement
from app.cluster.state.snapshots import Snapshots
from app.cluster.state.started import as_started
from app.cluster.state.topologies import Topologies
from app.cluster.state.unread import UnreadPods
from app.model.device import GpuNode
from app.model.dra import ClaimKey
from app.model.names import GroupKey, NodeName, PodUid, QueueName
from app.model.node import Node
from app.model.pod import Pod
from app.model.podgroup import GroupSpec
from app.model.priority import PriorityClass
from app.model.queue import Queue
from app.model.snapshot import Snapshot


class ClusterCache:
    """The state of the cluster on which all decisions are based. All parts may be read.

    Only the cache and its other parts change `reservations`, `nodes`, `queues`, `charges`, `gpus` and `pods`.
    """

    def __init__(self, history: UsageHistory | None = None, *, overuse_tolerance_mib: int = 0) -> None:
        """Start empty. Without a history, past usage does not count.

        `overuse_tolerance_mib` is how much more of a GPU may be used than is reserved before other pods avoid the GPU.
        """
        self.history = history or UsageHistory()
        """Past usage, which `control/cycle/usage_meter.py` writes."""
        self.changes = ChangeLog()
        self.nodes, self.queues, self.pods = Nodes(), Queues(), KnownPods()
        self.assumed, self.reservations, self.charges = AssumedPods(), Reservations(), Charges()
        self.groups = Membership(self.reservations.place, self.queues, self.changes)
        self.gpus = Gpus(self.nodes, tolerance_mib=overuse_tolerance_mib)
        self.topologies = Topologies(self.changes)
        self.claims = DeviceClaims()
        self.claim_charges = ClaimCharges(self.claims, self.charges, self.changes)
        self.room = Room(self.nodes, self.charges, self.gpus, self.queues, self.claim_charges)
        self._settlement = Settlement(
            changes=self.changes,
            pods=self.pods,
            groups=self.groups,
            assumed=self.assumed,
            reservations=self.reservations,
            nodes=self.nodes,
            queues=self.queues,
            charges=self.charges,
            gpus=self.gpus,
            claim_charges=self.claim_charges,
        )
        self.gpu_books, self.labelled = self._settlement.gpu_books, self._settlement.labelled
        self.promises = Promises(self.changes, self.pods, self.groups, self.reservations, self._settlement)
        """Reserves nodes for pods."""
        self.findings = SchedulerFindings(self.pods, self.groups)
        self.unread = UnreadPods(self.nodes)
        self.arrivals = PodArrivals()
        """What is learnt of the pods that start. `control/cycle/learning.py` makes the typical mix of it."""
        self._payers = Payers()
        self.snapshots = Snapshots(
            changes=self.changes,
            groups=self.groups,
            nodes=self.nodes,
            queues=self.queues,
            charges=self.charges,
            gpus=self.gpus,
            history=self.history,
            topologies=self.topologies,
            labelled=self.labelled,
            findings=self.findings,
            unread=self.unread,
            arrivals=self.arrivals,
            claim_charges=self.claim_charges,
        )
        """The Snapshots for the planner."""

    def snapshot(self) -> Snapshot:
        """Freeze the present state."""
        return self.snapshots.take()

    def drain_changes(self) -> Changes:
        """Return what has changed since the last call; the planning loop is the only reader."""
        self.groups.form_waiting()
        return self.changes.drain()

    # Nodes ----------------------------------------------------------------------------------------------------------

    def apply_node(self, node: Node) -> None:
        """Store a node; a heartbeat changes nothing. A node that accepts no work loses its reservations."""
        before = self.gpu_books.sizes(node.name)
        if self.nodes.put(node):
            if not node.takes_work:
                self._drop_promises(node.name)
            self._follow_node(node.name, before)
            self.changes.relieve(node.name)

    def delete_node(self, name: NodeName) -> None:
        """Forget a node and its reservations; pods bound there are charged to their queues until they are gone."""
        before = self.gpu_books.sizes(name)
        if self.nodes.drop(name):
            self._drop_promises(name)
            self._follow_node(name, before)
            self.changes.relieve()

    def _follow_node(self, name: NodeName, before: tuple[int, int]) -> None:
        """Judge again what pods may hold on a node that is new, changed or gone."""
        self.gpu_books.follow_sizes(name, before)
        self._settlement.settle_each(self.charges.leaving(name))
        for pod in self.pods.fitted_on(name):
            self.apply_pod(pod)

    def apply_gpu_node(self, node: GpuNode, *, heard_at: float) -> None:
        """Store the report of a node's agent, heard at this time of the caller's clock; a heartbeat changes nothing."""
        self.gpu_books.report(node, heard_at=heard_at)
        self._recover_gpus(node.name)

    def delete_gpu_node(self, name: NodeName) -> None:
        """Forget the report of a node's agent: its object is gone."""
        self.gpu_books.forget(name)
        self._recover_gpus(name)

    def _recover_gpus(self, name: NodeName) -> None:
        if self.nodes.recover(name, NodeSource.AGENT):
            self.gpu_books.follow_agent(name)
            self.nodes.reopen(name)
            self.changes.relieve(name)

    def fail_node(self, name: NodeName) -> None:
        """Close a node whose last version could not be processed: its present capacity is unknown."""
        self.nodes.fail(name, NodeSource.KUBELET)
        self.changes.show_node(name)
        self._drop_promises(name)
        self.changes.relieve()

    def fail_gpu_node(self, name: NodeName) -> None:
        """Close a node whose agent's report could not be processed; the agent may send the same report again."""
        self.gpus.agents.forget(name)
        self.nodes.fail(name, NodeSource.AGENT)
        self.changes.show_node(name)
        self._drop_promises(name)
        self.changes.relieve()

    def _drop_promises(self, name: NodeName) -> None:
        self._settlement.lose_promises(self.reservations.on_node(name))

    # Queues, priority classes and PodGroups -------------------------------------------------------------------------

    def apply_queue(self, queue: Queue) -> None:
        """Store a queue."""
        is_new = not self.queues.exists(queue.name)
        if self.queues.put(queue):
            self._follow_queues()
            self._settlement.settle_each(self._payers.of(queue.name) if is_new else ())

    def delete_queue(self, name: QueueName) -> None:
        """Forget a queue; its running pods stay charged to its name, and its other pods lose their reservations."""
        self.history.forget(name)
        if self.queues.drop(name):
            self._follow_queues()
            self._settlement.settle_each(self._payers.of(name))
            self._settlement.lose_unpaid()

    def _follow_queues(self) -> None:
        """Charge again the pods of PodGroups that were moved to a queue: it may be new, deleted or invalid now."""
        self._settlement.settle_groups(self.groups.terms.moved())
        self.changes.relieve()

    def apply_class(self, priority_class: PriorityClass) -> None:
        """Store a priority class; one that cannot be read keeps its last value, or stays unknown."""
        if not priority_class.problem:
            self._resettle(self.groups.set_class(priority_class.name, priority_class.value))

    def delete_class(self, name: str) -> None:
        """Forget a priority class."""
        self._resettle(self.groups.set_class(name, None))

    def apply_group(self, spec: GroupSpec) -> None:
        """Store a PodGroup object."""
        if self.groups.set_spec(spec.key, spec):
            self._resettle([spec.key])

    def delete_group(self, key: GroupKey) -> None:
        """Forget a PodGroup object; its bound pods keep running, and its other pods lose their reservations."""
        if self.groups.set_spec(key, None):
            if self.groups.specs.get(key) is None:
                self._settlement.lose_promises(self.reservations.of_group(key))
            self._resettle([key])

    def derive_group(self, spec: GroupSpec) -> None:
        """Store what the owners of pods state about their group; the caller applies the pods next.

        A group whose owner is suspended loses its reservations at once.
        """
        if self.groups.set_derived(spec.key, spec):
            if spec.suspended:
                self._settlement.lose_promises(self.reservations.of_group(spec.key))
            self._resettle([spec.key])

    def _resettle(self, keys: Collection[GroupKey]) -> None:
        """Charge the pods of these groups again: the terms of their groups have changed."""
        self._settlement.settle_groups(keys)
        if keys:
            self.changes.relieve()

    # Devices of claims ----------------------------------------------------------------------------------------------

    def follow_claims(self, changed: Followed) -> None:
        """Count again what a change of claims, classes or devices affects."""
        for name in changed.nodes:
            before = self.gpu_books.sizes(name)
            if self.nodes.put_devices(name, self.claims.devices(name)):
                self._follow_node(name, before)
                self.changes.relieve(name)
        uids = dict.fromkeys(changed.pods)
        if changed.has_other_names:
            uids.update(dict.fromkeys(pod.uid for pod in self.pods.all() if pod.scalars))
        for uid in uids:
            pod = self.pods.as_shown(uid)
            if pod is not None:
                self.apply_pod(pod)
        for key in changed.claims:
            self.claim_charges.follow(key)

    # Pods -----------------------------------------------------------------------------------------------------------

    def apply_pod(self, pod: Pod, started_at: float | None = None) -> None:
        """Store a pod. A node name on the pod ends its reservation: the watch shows the binding.

        `started_at` is the time since which the pod runs, in seconds since the epoch; None when this event does not
        state it.
        """
        before, pod = self.pods.get(pod.uid), self.pods.hear(pod)
        if before is not None:
            pod = as_started(before, pod, self.reservations.get(pod.uid), self.groups)
        touched: Collection[ClaimKey] = ()
        if self.claims.concerns(pod):
            self.pods.keep_shown(pod)
            touched = self.claims.put_pod(pod)
            pod = self.claims.resolved(pod)
        if pod.node is not None:
            pod = self.pods.fit(pod, self.nodes.get(pod.node))
        if before != pod:
            self._take_over(before, pod)
        elif before.said != pod.said:
            self._hear(before, pod)
        for key in touched:
            self.claim_charges.follow(key)
        if started_at is not None and pod.managed:
            self.groups.note_start(pod, started_at)
            self.changes.show_pod(pod.uid)

    def _take_over(self, before: Pod | None, pod: Pod) -> None:
        keys = dict.fromkeys([pod.group] if before is None else [pod.group, before.group])
        on = {key: self.groups.terms.of(key) for key in keys if self.groups.has_others(key, pod.uid)}
        if before is not None and before.managed:
            self._part(before, pod)
        self.pods.put(pod)
        self._note_holder(before, pod)
        if pod.reserves:
            self.gpu_books.put_reservation(pod.uid, pod)
        self.gpu_books.meet(pod)
        if pod.managed:
            self.groups.join(pod)
            self._settlement.follow_promise(before, pod)
            if pod.node is not None and (before is None or before.node is None):
                self.arrivals.note_start(pod, self._payer(pod), self.nodes.device_mib(pod.node))
        self._settlement.settle(pod.uid)
        for key, terms in on.items():
            self._settlement.follow_terms(key, terms)

    def _payer(self, pod: Pod) -> QueueName:
        terms = self.groups.terms.of(pod.group)
        return pod.queue if terms is None else terms.queue

    def _hear(self, before: Pod, pod: Pod) -> None:
        """Store what kube-scheduler states about a pod in which nothing else has changed."""
        self.pods.put(pod)
        self.changes.note()
        if not pod.managed:
            return
        self.groups.hear(pod)
        if self._settlement.learn_from_condition(before, pod):
            self._settlement.settle(pod.uid)
        else:
            self.findings.hear(pod)

    def delete_pod(self, uid: PodUid) -> None:
        """Forget a deleted pod."""
        pod = self.pods.get(uid)
        if pod is None:
            return
        self.pods.drop(uid)
        touched = self.claims.drop_pod(uid)
        if pod.reserves:
            self.gpu_books.put_reservation(uid, None)
        on = self.groups.terms.of(pod.group)
        self.reservations.drop(uid)
        self.findings.forget(uid)
        self.groups.leave(pod)
        self._settlement.settle(uid)
        self._note_holder(pod, None)
        for key in touched:
            self.claim_charges.follow(key)
        self.gpu_books.part_with(uid)
        self._settlement.follow_terms(pod.group, on)

    def mark_leaving(self, uid: PodUid) -> None:
        """Count a pod whose eviction is ordered as being deleted, before the watch shows it: one eviction is enough."""
        pod = self.pods.tell_to_leave(uid)
        if pod is not None:
            self.apply_pod(pod)

    def unmark_leaving(self, uid: PodUid) -> None:
        """Count a pod as the watch shows it again: its eviction has surely failed."""
        pod = self.pods.let_stay(uid)
        if pod is not None:
            self.apply_pod(pod)

    def _note_holder(self, before: Pod | None, pod: Pod | None) -> None:
        """Note which queue a pod of another scheduler names, and whether Leeboard can read what it holds."""
        self._payers.replace(before, pod)
        for name in self.unread.replace(before, pod):
            self._drop_promises(name)
            self.changes.relieve(name)

    def _part(self, before: Pod, pod: Pod) -> None:
        """Drop the reservation of a pod that has changed its group or its requested part of a GPU."""
        moves = before.group != pod.group or not pod.managed
        if moves:
            self.groups.leave(before)
        if moves or before.sharing != pod.sharing:
            self._settlement.revoke_promise(pod.uid)
