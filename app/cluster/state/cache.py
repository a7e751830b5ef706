"""Remembers the cluster as the watches showed it, with our promises in it, and freezes it into Snapshots.

One writer: only the event loop calls what changes it, and never across an await. Every change of a pod, its group or
its reservation ends in `_settle`, which derives the pod's one charge anew, so sums cannot drift from what caused them.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from app.cluster.gpus.gpu_books import GpuBooks
from app.cluster.gpus.gpus import Gpus
from app.cluster.groups.groups import GroupTerms, Place
from app.cluster.groups.membership import Membership
from app.cluster.ledger.charges import Charge, Charges, Hold, charge_of
from app.cluster.ledger.nodes import Nodes, NodeSource
from app.cluster.ledger.reservations import Reservation, Reservations, ReservationState
from app.cluster.queues.tree import Queues
from app.cluster.queues.usage import UsageHistory
from app.cluster.state.fitted import Fitted
from app.cluster.state.labelled import LabelledPods
from app.cluster.state.refusals import NONE, RefusedNodes
from app.cluster.state.room import Room
from app.model.device import GpuNode
from app.model.names import NO_QUEUE, GroupKey, NodeName, PodUid, QueueName
from app.model.node import Node
from app.model.pod import Pod
from app.model.podgroup import GroupSpec, PodGroup
from app.model.priority import PriorityClass
from app.model.queue import Queue
from app.model.reason import Refusal
from app.model.resources import NOTHING, Amounts
from app.model.snapshot import NodeTable, Snapshot, Usage
from app.model.topology import Topology, UnknownTopologies

FIXED_BY_BIND = "bound_queue", "started_firm", "sharing", "devices", "device_uuids", "group", "names_group"
"""Fields of a pod that nothing changes any more once bind has written on it what they follow from."""

UNLISTED_TOPOLOGIES = "Leeboard cannot list Topologies now; its /readyz says why"
UNLISTED_GPUS = "It waits until Leeboard knows which GPUs work: it cannot list GpuNodes now, and its /readyz says why."
UNREAD_PODS = "a pod on it holds amounts that cannot be read"


@dataclass(frozen=True, slots=True)
class Changes:
    """What has changed in the cache that is followed up once."""

    bereft: set[PodUid]
    """Pods whose promise ended by what the watch showed: a nomination may outlive it."""
    relieved: set[NodeName]
    """Nodes that have changed, or on which less is held or will be soon."""
    taken_by_others: set[NodeName]
    """Nodes to which others have bound pods of ours, which we had not promised them."""
    gone: set[GroupKey]
    """Groups that have stopped waiting; some may wait again."""


class ClusterCache:
    """The picture of the cluster that everything decides from."""

    def __init__(self, history: UsageHistory | None = None, *, overuse_tolerance_mib: int = 0) -> None:
        """Start empty; `feed` fills it, `planning` and `extender` promise in it. Without a history no past matters.

        `overuse_tolerance_mib` is what of a GPU may be used beyond what is promised before nobody else gets any of it.
        """
        self.history = history or UsageHistory()
        """Asked freely; `control.usage` writes it, and has it told through this cache."""
        self.version = 0
        """Grows with every change."""
        self.relief = 0
        """Grows with every change that may let somebody run who could not before."""
        self.refusals = 0
        """Grows whenever somebody may have been refused who waits now."""
        self.unsettled: dict[GroupKey, int] = {}
        """Waiting groups that changed since a plan considered them, with the version of the change."""
        self._gone: set[GroupKey] = set()
        """Groups that have stopped waiting since somebody last asked for them."""
        self.reservations = Reservations()
        self.groups = Membership(self._place, self._takes_pods)
        """Asked freely; changed through this cache alone."""
        self._nodes = Nodes()
        self._queues = Queues()
        self._pods: dict[PodUid, Pod] = {}
        self._charges = Charges()
        self.gpus = Gpus(self._nodes.gpus, tolerance_mib=overuse_tolerance_mib, divides=self._nodes.divides)
        """Asked freely; changed through this cache alone."""
        self.room = Room(self._nodes, self._charges, self.gpus, self._queues)
        """Asked freely."""
        self._gpu_books = GpuBooks(
            self._nodes,
            self._charges,
            self.gpus,
            recharge=self._settle_each,
            on_change=self._note_gpus,
            on_relief=self._relieve,
        )
        self._refused = RefusedNodes()
        self._labelled = LabelledPods()
        self._topologies: Mapping[str, Topology] = {}
        self._payers: dict[QueueName, set[PodUid]] = {}
        """Pods of other schedulers, by the queue that they name."""
        self._unread: dict[NodeName, set[PodUid]] = {}
        """Who holds amounts on a node that cannot be read."""
        self._bereft: set[PodUid] = set()
        self._relieved: set[NodeName] = set()
        self._taken_by_others: set[NodeName] = set()
        self._fitted = Fitted()
        self._told_to_leave: dict[PodUid, Pod] = {}
        """As the watch shows them, which may not know yet that they leave."""

    # What the watches show ------------------------------------------------------------------------------------------

    def apply_node(self, node: Node) -> None:
        """Take over a node as it is now; a heartbeat changes nothing. What takes no work keeps no promise."""
        before = self._gpu_books.sizes(node.name)
        if self._nodes.put(node):
            if not node.takes_work:
                self._drop_promises(node.name)
            self._gpu_books.follow_sizes(node.name, before)
            self._settle_each(self._charges.leaving(node.name))
            self._refit(node.name)
            self._relieved.add(node.name)
            self._relieve()

    def delete_node(self, name: NodeName) -> None:
        """Forget a node and what was promised there; pods bound there are charged to their queues until they leave."""
        before = self._gpu_books.sizes(name)
        if self._nodes.drop(name):
            self._drop_promises(name)
            self._gpu_books.follow_sizes(name, before)
            self._settle_each(self._charges.leaving(name))
            self._refit(name)
            self._relieve()

    def _refit(self, name: NodeName) -> None:
        """Judge again what pods may hold on a node that has come, changed or gone."""
        for pod in self._fitted.on(name):
            self.apply_pod(pod)

    def apply_gpu_node(self, node: GpuNode, *, heard_at: float) -> None:
        """Take over what a node's agent says, heard at this time on the caller's clock; a heartbeat changes nothing."""
        self._gpu_books.report(node, heard_at=heard_at)
        self._recover_gpus(node.name)

    def delete_gpu_node(self, name: NodeName) -> None:
        """Forget what a node's agent has said: it is gone, or somebody has deleted its object."""
        self._gpu_books.forget(name)
        self._recover_gpus(name)

    def _recover_gpus(self, name: NodeName) -> None:
        if self._nodes.recover(name, NodeSource.AGENT):
            self._gpu_books.follow_agent(name)
            self._nodes.reopen(name)
            self._relieved.add(name)
            self._relieve()

    def fail_node(self, name: NodeName) -> None:
        """Close a node of which the last version could not be taken over: what it has is not known any more."""
        self._nodes.fail(name, NodeSource.KUBELET)
        self._drop_promises(name)
        self._relieve()

    def fail_gpu_node(self, name: NodeName) -> None:
        """Close a node for which what its agent said could not be taken over, and let it say that anew."""
        self.gpus.forget(name)
        self._nodes.fail(name, NodeSource.AGENT)
        self._drop_promises(name)
        self._relieve()

    def age_agents(self, since: float) -> None:
        """Trust no agent any more that has not been heard since this time on the caller's clock."""
        self._gpu_books.age(since)

    def close_gpu(self, node: NodeName, name: str) -> None:
        """Let nobody on a shared GPU any more whose reservation is being removed."""
        self.gpus.close(node, name)
        self._gpu_books.restand([node])

    def reopen_gpu(self, node: NodeName, name: str) -> None:
        """Take that back: its reservation could not be removed, or has been."""
        self.gpus.reopen(node, name)
        self._gpu_books.restand([node])

    def doubt_gpu(self, node: NodeName, name: str) -> None:
        """Let nobody else wait for a shared GPU that its node has given no device in time."""
        self.gpus.doubt(node, name)
        self._gpu_books.restand([node])

    def apply_queue(self, queue: Queue) -> None:
        """Take over a queue as it is now."""
        is_new = not self._queues.exists(queue.name)
        if self._queues.put(queue):
            self._follow_queues()
            self._settle_each(self._payers.get(queue.name, ()) if is_new else ())

    def delete_queue(self, name: QueueName) -> None:
        """Forget a queue; its running pods stay charged to its name, and the others are promised nothing any more."""
        self.history.forget(name)
        if self._queues.drop(name):
            self._follow_queues()
            self._settle_each(self._payers.get(name, ()))
            self._lose_promises([one for one in self.reservations if one.is_revocable and self._is_unpaid(one)])

    def apply_topology(self, topology: Topology) -> None:
        """Take over a Topology as it is now."""
        if self._topologies.get(topology.name) != topology:
            self._topologies = {**self._topologies, topology.name: topology}
            self._relieve()

    def doubt_topologies(self) -> None:
        """Refuse whoever names a Topology until `trust_topologies`: which there are is not known yet."""
        self._topologies = UnknownTopologies(UNLISTED_TOPOLOGIES)

    def trust_topologies(self) -> None:
        """Note that all Topologies there are have been told."""
        self._topologies = dict(self._topologies)
        self._relieve()

    def doubt_gpus(self) -> None:
        """Refuse whoever asks for GPUs until `trust_gpus`: which of them are sick is not known yet."""
        self.groups.doubt_gpus(UNLISTED_GPUS)

    def trust_gpus(self) -> Collection[GroupKey]:
        """Note that all agents there are have been heard, or that nobody waits for them any longer.

        Returns the groups that were refused for it, thousands maybe: each is judged again once it is touched.
        """
        return self.groups.trust_gpus()

    def touch(self, key: GroupKey) -> None:
        """Have a group formed anew, and considered again if that makes it another."""
        self.groups.touch(key)
        self.version += 1

    def delete_topology(self, name: str) -> None:
        """Forget a Topology; what already runs by it goes on."""
        if name in self._topologies:
            self._topologies = {key: one for key, one in self._topologies.items() if key != name}
            self._relieve()

    def apply_class(self, priority_class: PriorityClass) -> None:
        """Take over a priority class as it is now; one that cannot be read is as it was, or not there."""
        if not priority_class.problem:
            self._resettle(self.groups.set_class(priority_class.name, priority_class.value))

    def delete_class(self, name: str) -> None:
        """Forget a priority class."""
        self._resettle(self.groups.set_class(name, None))

    def apply_group(self, spec: GroupSpec) -> None:
        """Take over a PodGroup object as it is now."""
        if self.groups.set_spec(spec.key, spec):
            self._resettle([spec.key])

    def delete_group(self, key: GroupKey) -> None:
        """Forget a PodGroup object; its bound pods keep running, and the others are promised nothing any more."""
        if self.groups.set_spec(key, None):
            if self.groups.spec(key) is None:
                self._lose_promises(self.reservations.of_group(key))
            self._resettle([key])

    def derive_group(self, spec: GroupSpec) -> None:
        """Take over what the owners of pods say of their group; the pods are applied next.

        What was promised to a group whose owner is suspended is free for others at once.
        """
        if self.groups.set_derived(spec.key, spec):
            if spec.suspended:
                self._lose_promises(self.reservations.of_group(spec.key))
            self._resettle([spec.key])

    def apply_pod(self, pod: Pod, started_at: float | None = None) -> None:
        """Take over a pod as it is now. A node name on it ends its reservation: the watch has echoed the binding.

        `started_at` is since when it runs, in seconds since the epoch, None when this event does not tell.
        """
        before = self._pods.get(pod.uid)
        if pod.uid in self._told_to_leave:
            self._told_to_leave[pod.uid] = pod
            pod = replace(pod, deleting=True)
        if before is not None:
            pod = self._as_started(before, pod)
        if pod.node is not None:
            pod = self._fitted.put(pod, self._nodes.shown(pod.node))
        if before != pod:
            self._take_over(before, pod)
        elif before.said != pod.said:
            self._hear(before, pod)
        if started_at is not None and pod.managed and self.groups.note_start(pod, started_at):
            self.version += 1

    def _take_over(self, before: Pod | None, pod: Pod) -> None:
        keys = {pod.group} if before is None else {pod.group, before.group}
        on = {key: self.groups.terms(key) for key in keys}
        if before is not None and before.managed:
            self._part(before, pod)
        self._pods[pod.uid] = pod
        self._note_payer(before, pod)
        self._close_unread(before, pod)
        if pod.reserves:
            self._gpu_books.put_reservation(pod.uid, pod)
        self._gpu_books.meet(pod)
        if pod.managed:
            self.groups.join(pod)
            self._learn_from_condition(before, pod)
            if pod.node is not None and (before is None or before.node is None):
                self._note_place(pod.uid, pod.node)
            self._end_reservation(pod)
        self._settle(pod.uid)
        for key in keys:
            self._follow_terms(key, on[key])

    def _hear(self, before: Pod, pod: Pod) -> None:
        """Take over what kube-scheduler has said of a pod, about which nothing else has changed."""
        self._pods[pod.uid] = pod
        self.version += 1
        if not pod.managed:
            return
        self.groups.hear(pod)
        if self._learn_from_condition(before, pod):
            self._settle(pod.uid)
        elif self._refused.of(pod.uid) or self.groups.is_stuck(pod):
            # Why it waits is told in these words.
            self._unsettle_in_new_words(pod.group)

    def _as_started(self, before: Pod, pod: Pod) -> Pod:
        """Return a pod as it is now, on the terms on which it has started: no policy may guard what is noted on it."""
        if self._stays_preemptible(before, pod):
            pod = replace(pod, started_preemptible=True)
        if not before.bound_queue:
            return self._in_its_queue(before, pod)
        if before.node is None:
            return replace(pod, bound_queue=before.bound_queue)
        fixed = {name: getattr(before, name) for name in FIXED_BY_BIND}
        # Its owners may tell its sub-group, and be known later.
        fixed["subgroup"] = pod.subgroup if before.ungrouped else before.subgroup
        return pod if all(getattr(pod, name) == value for name, value in fixed.items()) else replace(pod, **fixed)

    def _stays_preemptible(self, before: Pod, pod: Pod) -> bool:
        """Whether a pod was preemptible when it got its place and nothing on it says so: admission has not seen it.

        That is known until we are started anew.
        """
        if pod.started_preemptible or not (pod.managed and before.managed):
            return False
        if not self._has_started(pod):
            return False
        if before.node is not None:
            return before.started_preemptible
        on = self.groups.terms(before.group)
        return on is not None and on.preemptible

    def _in_its_queue(self, before: Pod, pod: Pod) -> Pod:
        """Return a pod on which no queue is noted in the one that its label named when it got its place.

        That is known until we are started anew. Its PodGroup may still be moved to another queue.
        """
        if not (pod.managed and before.managed and self._has_started(pod)):
            return pod
        return replace(pod, queue=before.queue) if pod.queue != before.queue else pod

    def _has_started(self, pod: Pod) -> bool:
        """Whether a pod has a node, or kube-scheduler was told that it may have one."""
        held = self.reservations.get(pod.uid)
        return pod.node is not None or (held is not None and held.state is ReservationState.ANSWERED)

    def delete_pod(self, uid: PodUid) -> None:
        """Forget a pod that is gone."""
        pod = self._pods.pop(uid, None)
        if pod is None:
            return
        if pod.reserves:
            self._gpu_books.put_reservation(uid, None)
        on = self.groups.terms(pod.group)
        self._told_to_leave.pop(uid, None)
        self._fitted.drop(uid)
        self.reservations.drop(uid)
        self._refused.set(uid, NONE)
        self.groups.leave(pod)
        self._settle(uid)
        self._note_payer(pod, None)
        self._close_unread(pod, None)
        self._gpu_books.part_with(uid)
        self._follow_terms(pod.group, on)

    def count_success(self, key: GroupKey, uid: PodUid, subgroup: str = "") -> None:
        """Count a pod that is gone because it finished well as satisfied in its gang."""
        self.groups.count_success(key, uid, subgroup)
        self.version += 1

    def doubt_ending(self, key: GroupKey, uid: PodUid) -> None:
        """Call a gang stale no more until it is known how this member ended, which is gone."""
        self.groups.doubt_ending(key, uid)
        self.version += 1

    def trust_ending(self, key: GroupKey, uid: PodUid) -> None:
        """Take that back: it is known, or will never be."""
        self.groups.trust_ending(key, uid)
        self.version += 1

    def spare(self, key: GroupKey) -> None:
        """Have a gang not leave as stale until `unspare`: a pod of it could not be evicted."""
        self.groups.spare(key)
        self.version += 1

    def unspare(self, key: GroupKey) -> None:
        """Take that back: enough time has passed."""
        self.groups.unspare(key)
        self.version += 1

    def doubt_endings(self) -> None:
        """Call no gang stale until `trust_endings`: which members had finished well before is not known yet."""
        self.groups.doubt_endings()

    def trust_endings(self) -> None:
        """Take that back."""
        self.groups.trust_endings()
        self.version += 1

    # What we promise ------------------------------------------------------------------------------------------------

    def promise(self, uid: PodUid, node: NodeName, devices: tuple[str, ...] = (), *, expires_at: float) -> None:
        """Hold a node for a pod, and parts of shared GPUs there, in place of what was held for it before."""
        self._hold(uid, Place(node, devices), ReservationState.PROMISED, expires_at)

    def move(self, uid: PodUid, node: NodeName, *, expires_at: float) -> None:
        """Hold another node for a pod than the one that it was promised.

        The room that is given back is relief only if somebody may have been refused since it was promised: those who
        were refused before did not fit into it. Else each move behind a backlog would have all of it planned anew.
        """
        before, relief = self.reservations.get(uid), self.relief
        self.promise(uid, node, expires_at=expires_at)
        if before is not None and before.refusals == self.refusals:
            self.relief = relief

    def await_release(self, uid: PodUid, node: NodeName, devices: tuple[str, ...] = (), *, expires_at: float) -> None:
        """Hold room on a node for a pod that others have yet to leave; `fulfil` it when `room.suffices`.

        What is free there is less than nothing meanwhile, unless they leave more than the pod needs. Shared GPUs
        have to be made ready besides (`gpus.not_ready`).
        """
        self._hold(uid, Place(node, devices), ReservationState.AWAITING, expires_at)

    def fulfil(self, uid: PodUid) -> None:
        """Make a promise of what a pod was waiting for: its room is free now."""
        held = self.reservations.get(uid)
        if held is not None and held.state is ReservationState.AWAITING:
            self._hold(uid, Place(held.node, held.devices), ReservationState.PROMISED, held.expires_at)

    def _hold(self, uid: PodUid, at: Place, state: ReservationState, expires_at: float) -> None:
        held = Reservation(
            pod=uid,
            group=self._pods[uid].group,
            node=at.node,
            devices=at.devices,
            state=state,
            expires_at=expires_at,
            refusals=self.refusals,
        )
        self.reservations.put(held)
        self._settle(uid)

    def drop_promise(self, uid: PodUid) -> None:
        """Give up what is held for a pod; the caller is sure that no binding was or will be written."""
        self.reservations.drop(uid)
        self._settle(uid)

    def note_failed_bind(self, uid: PodUid, error: str) -> None:
        """Note what the last try to bind a pod failed by, which is tried again."""
        if self.reservations.note_failure(uid, error):
            self.touch(self._pods[uid].group)

    def drain_changes(self) -> Changes:
        """Return what has changed since last asked, for one reader: the planning loop."""
        self.waiting()
        changes = Changes(self._bereft, self._relieved, self._taken_by_others, self._gone)
        self._bereft, self._relieved, self._taken_by_others, self._gone = set(), set(), set(), set()
        return changes

    def mark_leaving(self, uid: PodUid) -> None:
        """Count a pod as leaving whose eviction is ordered, before the watch shows it: nobody may order another."""
        pod = self.pod_as_shown(uid)
        if pod is not None and not pod.deleting:
            self._told_to_leave[uid] = pod
            self.apply_pod(pod)

    def unmark_leaving(self, uid: PodUid) -> None:
        """Take a pod as the watch shows it again: its eviction has surely failed."""
        pod = self._told_to_leave.pop(uid, None)
        if pod is not None:
            self.apply_pod(pod)

    # What kube-scheduler tells ---------------------------------------------------------------------------------------

    def accept(self, uid: PodUid) -> None:
        """Note that kube-scheduler offers nodes for a pod: if it refused them all before, that is over."""
        pod = self._pods.get(uid)
        if pod is not None and self.groups.unmark_stuck(pod):
            self.version += 1

    def overlook(self, uid: PodUid) -> None:
        """Note that kube-scheduler did not ask about a pod while it had a place.

        It gets none until `note_asked` or `reconsider`.
        """
        pod = self._pods.get(uid)
        if pod is not None and pod.managed:
            self.groups.overlook(pod)
            self.version += 1

    def note_asked(self, uid: PodUid) -> None:
        """Note that kube-scheduler asks about a pod: it gets places again."""
        pod = self._pods.get(uid)
        if pod is not None and self.groups.note_asked(pod):
            self.version += 1

    def reconsider(self, uid: PodUid) -> None:
        """Let a pod get a place again, since enough time has passed."""
        pod = self._pods.get(uid)
        if pod is not None and self.groups.reconsider(pod):
            self.version += 1

    def refused(self, uid: PodUid) -> frozenset[NodeName]:
        """Return the nodes that kube-scheduler's own filters refuse for a pod, as far as is known."""
        return self._refused.of(uid)

    def refuse_only(self, uid: PodUid, nodes: frozenset[NodeName]) -> None:
        """Note that kube-scheduler's own filters refuse just these nodes for a pod, for causes we cannot see."""
        pod = self._pods.get(uid)
        if pod is not None and self._refused.set(uid, nodes):
            self._unsettle_in_new_words(pod.group)

    def refuse_node(self, uid: PodUid, node: NodeName) -> None:
        """Note that kube-scheduler's own filters refuse one more node for a pod."""
        self.refuse_only(uid, self._refused.of(uid) | {node})

    def forget_refused_nodes(self) -> None:
        """Let every pod be tried everywhere again: what kube-scheduler refused a while ago it may accept now."""
        for uid in self._refused.pods():
            self.refuse_only(uid, NONE)

    # Who takes part --------------------------------------------------------------------------------------------------

    def set_aside(self, key: GroupKey, refusal: Refusal) -> None:
        """Leave a group out of planning for a while."""
        self.groups.set_aside(key, refusal)
        self.version += 1

    def readmit(self, key: GroupKey) -> None:
        """Let a group that was set aside take part again, on every node."""
        for pod in self.groups.pods(key):
            self.refuse_only(pod.uid, NONE)
        if self.groups.readmit(key):
            self.version += 1

    def unsettle(self, key: GroupKey) -> None:
        """Have a waiting group considered again although it did not change."""
        self.version += 1
        self.unsettled[key] = self.version

    def _unsettle_in_new_words(self, key: GroupKey) -> None:
        """Have a group formed anew of its pods as they are, and considered again if it waits."""
        self.touch(key)
        if key in self.waiting():
            self.unsettle(key)

    def considered(self, keys: Iterable[GroupKey], version: int) -> None:
        """Note that a plan of this version has considered these groups."""
        for key in keys:
            if self.unsettled.get(key, version + 1) <= version:
                del self.unsettled[key]

    def note_refusals(self) -> None:
        """Note that somebody was refused with what is held now, or may be, by a plan that has begun."""
        self.refusals += 1

    # What there is --------------------------------------------------------------------------------------------------

    def pod(self, uid: PodUid) -> Pod | None:
        """Return the pod of this uid."""
        return self._pods.get(uid)

    def pod_as_shown(self, uid: PodUid) -> Pod | None:
        """Return the pod as the watch shows it, which may not know yet that it leaves."""
        return self._told_to_leave.get(uid) or self._fitted.shown(uid) or self._pods.get(uid)

    def pods(self) -> Collection[Pod]:
        """Return all pods that are known; not to be kept across an await."""
        return self._pods.values()

    def waiting(self) -> Mapping[GroupKey, PodGroup]:
        """Return the groups with pods that have no place; not to be kept across an await."""
        return self.groups.waiting(self._note_change)

    def form_groups(self) -> None:
        """Form the groups now that have changed, so that the next snapshot need not."""
        self.waiting()
        self.groups.running()

    def queues(self) -> Mapping[QueueName, Queue]:
        """Return the queues, judged as a tree."""
        return self._queues.tree()

    def usage(self) -> Mapping[QueueName, Usage]:
        """Return what the pods of each queue that has any hold and ask for."""
        return self._charges.usage()

    def node_as_shown(self, name: NodeName) -> Node | None:
        """Return a node as the watch shows it, without what its agent adds."""
        return self._nodes.shown(name)

    def table(self) -> NodeTable:
        """Return the nodes as columns."""
        table = self._nodes.table()
        self._charges.use_table(table, self._nodes.scalars())
        return table

    @property
    def topologies(self) -> Mapping[str, Topology]:
        """Return the Topologies by name."""
        return self._topologies

    @property
    def neighbours(self) -> int:
        """Return how many pods have a place and labels to which an affinity may refer."""
        return self._labelled.number

    def free(self) -> Amounts:
        """Return what is free on each node of the table, shape [resource, node]."""
        self.table()
        return self._charges.free()

    def residents(self) -> Amounts:
        """Return what pods hold that belong to their nodes, shape [resource, node]."""
        self.table()
        return self._charges.residents()

    def age_stale(self, now: float) -> None:
        """Note the time, in seconds since the epoch, for gangs that have lost members below their minimum since.

        To be called before a snapshot is planned from, and not before every kind has been listed: until then gangs
        look as if their members were gone. Costs what the groups cost that have changed.
        """
        self.waiting()
        if self.groups.age_stale(now):
            self.version += 1

    def snapshot(self) -> Snapshot:
        """Freeze what is known now."""
        return self._seen_with(dict(self.waiting()))

    def glance(self) -> Snapshot:
        """Return what is known now, not to be kept across an await: who waits, thousands maybe, is not copied."""
        return self._seen_with(self.waiting())

    def _seen_with(self, waiting: Mapping[GroupKey, PodGroup]) -> Snapshot:
        table, charges = self.table(), self._charges
        return Snapshot(
            version=self.version,
            nodes=table,
            free=charges.free(),
            residents=charges.residents(),
            releasing=charges.releasing(),
            scalars=charges.free_scalars(),
            releasing_scalars=charges.releasing_scalars(),
            queues=self.queues(),
            usage=charges.usage(),
            groups=waiting,
            running=self.groups.running(),
            total=charges.divided(self._closed_by_pods()),
            topologies=self._topologies,
            past=self.history.past(),
            labelled=self._labelled.freeze(),
            refused=self._refused.freeze(),
            shared=self.gpus.listed(),
            idle_devices=self.gpus.idle(table),
            blocked_devices=self.gpus.blocked(),
        )

    def places_without(self, pod: Pod, node: NodeName) -> Snapshot:
        """Freeze what a place for one pod alone is chosen by, as if it held none on this node: nobody else's turn.

        Forming all groups anew would be half of what kube-scheduler waits for whenever it offers other nodes.
        """
        if pod.near or pod.labels is not None:
            return self.snapshot().without([(pod, node)])
        table, free = self.table(), self._charges.free()
        if node in table.index:
            free[:, table.index[node]] += pod.request.amounts
        return Snapshot(
            version=self.version,
            nodes=table,
            free=free,
            scalars=self._charges.free_scalars(),
            queues={},
            usage={},
            groups={},
            total=NOTHING,
            topologies=self._topologies,
            refused=self._refused.freeze(),
            shared=self.gpus.listed(),
            idle_devices=self.gpus.idle(table),
            blocked_devices=self.gpus.blocked(),
        )

    def tell_usage(self) -> None:
        """Have fair shares make up for what queues have used until now; no relief: it frees nothing."""
        if self.history.tell():
            self.version += 1

    def unreadable_nodes(self) -> Collection[NodeName]:
        """Return the nodes that give out nothing more because of pods there; not to be kept."""
        return self._unread

    # How it stays consistent ----------------------------------------------------------------------------------------

    def _settle(self, uid: PodUid) -> None:
        """Derive the pod's charge anew; more room somewhere, now or soon, is relief for those who wait."""
        self._gpu_books.restand(self._recharge(uid))

    def _settle_each(self, uids: Iterable[PodUid]) -> None:
        """Do so for several pods, and look only then at the nodes where they share GPUs: once each."""
        nodes: set[NodeName] = set()
        for uid in list(uids):
            nodes.update(self._recharge(uid))
        self._gpu_books.restand(nodes)

    def _recharge(self, uid: PodUid) -> Collection[NodeName]:
        """Return the nodes on which the pod shares GPUs otherwise than before, for `GpuBooks.restand`."""
        before, pod = self._charges.get(uid), self._pods.get(uid)
        charge = self._charge_of(pod) if pod else None
        if pod is not None and self._has_other_terms(uid, before, charge):
            self._lose_promise(uid)
            charge = self._charge_of(pod)
        if charge != before:
            self._charges.set(uid, charge)
        nodes = self._gpu_books.share(uid, pod, charge)
        self._labelled.put(uid, pod, charge.node if charge else None)
        if before is not None and before.node is not None and charge != before and before.frees(charge):
            self.relief += 1
            self._relieved.add(before.node)
        if pod is not None and pod.managed:
            self.groups.touch(pod.group)
        self.version += 1
        return nodes

    def _charge_of(self, pod: Pod) -> Charge | None:
        if self._is_outside(pod):
            pod = replace(pod, queue=NO_QUEUE)
        held, on = self.reservations.get(pod.uid), self.groups.terms(pod.group)
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

    def _note_payer(self, before: Pod | None, pod: Pod | None) -> None:
        """Note which queue a pod of another scheduler names: it may come or go."""
        if before is not None and (pods := self._payers.get(before.queue)):
            pods.discard(before.uid)
            if not pods:
                del self._payers[before.queue]
        if pod is not None and pod.queue and not pod.managed:
            self._payers.setdefault(pod.queue, set()).add(pod.uid)

    def _close_unread(self, before: Pod | None, pod: Pod | None) -> None:
        """Close the node of a pod that holds more there than can be read, for as long as it does."""
        for one, is_there in ((before, False), (pod, True)):
            if one is None or not one.unread or one.node is None:
                continue
            uids = self._unread.setdefault(one.node, set())
            (uids.add if is_there else uids.discard)(one.uid)
            if not uids:
                del self._unread[one.node]
        for name in {one.node for one in (before, pod) if one is not None and one.unread and one.node is not None}:
            if self._nodes.close(name, UNREAD_PODS if name in self._unread else ""):
                self._drop_promises(name)
                self._relieved.add(name)
                self._relieve()

    def _closed_by_pods(self) -> list[NodeName]:
        """Return the nodes that would take work but for pods of which not all can be read."""
        nodes = (self._nodes.get(name) for name in self._unread)
        closed = [node for node in nodes if node is not None and node.problem == UNREAD_PODS]
        return [node.name for node in closed if replace(node, problem="").takes_work]

    def _note_gpus(self, node: NodeName, frees: bool) -> None:  # noqa: FBT001 - a callback's only word
        self._relieved.add(node)
        self.version += 1
        self.relief += frees

    def _has_other_terms(self, uid: PodUid, before: Charge | None, charge: Charge | None) -> bool:
        """Whether a pod is promised a node on terms on which it would not be bound: in its queue, or as preemptible."""
        held = self.reservations.get(uid)
        if held is None or not held.is_revocable or before is None or before.node is None or charge is None:
            return False
        moves = None not in (before.queue, charge.queue) and before.queue != charge.queue
        return moves or (before.preemptible and not charge.preemptible)

    def _place(self, pod: Pod) -> Place | None:
        if pod.node is not None:
            return Place(pod.node, pod.devices)
        held = self.reservations.get(pod.uid)
        return Place(held.node, held.devices) if held else None

    def _part(self, before: Pod, pod: Pod) -> None:
        """Take back the promise to a pod that is in another group now, or asks for another part of a GPU."""
        moves = before.group != pod.group or not pod.managed
        if moves:
            self.groups.leave(before)
        if moves or before.sharing != pod.sharing:
            held = self.reservations.get(pod.uid)
            if held is not None and held.is_revocable:
                self._lose_promise(pod.uid)

    def _lose_promise(self, uid: PodUid) -> None:
        self.reservations.drop(uid)
        self._bereft.add(uid)

    def _note_place(self, uid: PodUid, node: NodeName) -> None:
        held = self.reservations.get(uid)
        if held is None or held.node != node:
            self._taken_by_others.add(node)

    def _end_reservation(self, pod: Pod) -> None:
        held = self.reservations.get(pod.uid)
        if held is not None and (pod.node is not None or (pod.deleting and not held.is_written)):
            self.reservations.drop(pod.uid)

    def _learn_from_condition(self, before: Pod | None, pod: Pod) -> bool:
        """Take back what is promised to a pod that kube-scheduler's own filters accept nowhere; return whether."""
        held = self.reservations.get(pod.uid)
        if held is None or before is None or not held.is_refused(before, pod):
            return False
        self.groups.mark_stuck(pod)
        self._lose_promise(pod.uid)
        return True

    def _note_change(self, key: GroupKey, group: PodGroup | None) -> None:
        if group is None:
            self.unsettled.pop(key, None)
            self._gone.add(key)
        else:
            self.unsettled[key] = self.version

    def _follow_terms(self, key: GroupKey, before: GroupTerms | None) -> None:
        """Charge a group's pods anew when a pod that set its terms has come, changed or left."""
        after = self.groups.terms(key)
        if after != before and after is not None and before is not None:
            self._settle_all(key)

    def _takes_pods(self, name: QueueName) -> bool:
        queue = self._queues.tree().get(name)
        return queue is not None and not queue.problem

    def _is_unpaid(self, held: Reservation) -> bool:
        """Whether the queue that would pay for a pod takes no pods."""
        charge = self._charges.get(held.pod)
        return charge is not None and charge.queue is not None and not self._takes_pods(charge.queue)

    def _follow_queues(self) -> None:
        """Charge anew the pods of PodGroups that were moved to a queue: it may have come, gone, or broken."""
        for key in self.groups.moved():
            self._settle_all(key)
        self._relieve()

    def _resettle(self, keys: Collection[GroupKey]) -> None:
        """Charge the pods of these groups anew: the terms of their groups have changed."""
        for key in keys:
            self._settle_all(key)
        if keys:
            self._relieve()

    def _settle_all(self, key: GroupKey) -> None:
        self._settle_each(pod.uid for pod in self.groups.pods(key))

    def _relieve(self) -> None:
        self.relief += 1
        self.version += 1

    def _drop_promises(self, name: NodeName) -> None:
        """Take back what is promised on a node, at once: who is planned anew may find another."""
        self._lose_promises(self.reservations.on_node(name))

    def _lose_promises(self, held: Iterable[Reservation]) -> None:
        for one in held:
            if not one.is_written:
                self._lose_promise(one.pod)
                self._settle(one.pod)
