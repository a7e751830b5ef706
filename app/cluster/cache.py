"""Remembers the cluster as the watches showed it, with our promises in it, and freezes it into Snapshots.

One writer: only the event loop calls what changes it, and never across an await. Every change of a pod, its group or
its reservation ends in `_settle`, which derives the pod's one charge anew, so sums cannot drift from what caused them.
"""

from collections.abc import Callable, Iterable, Mapping

from app.cluster.charges import Charge, Charges
from app.cluster.groups import Members, Terms, form, terms
from app.cluster.queues import judged
from app.cluster.reservations import Reservation, Reservations, State
from app.model.names import GroupKey, NodeName, PodUid, QueueName
from app.model.node import Node
from app.model.pod import Pod
from app.model.podgroup import GroupSpec, PodGroup
from app.model.priority import PriorityClass
from app.model.queue import Queue
from app.model.reason import Refusal
from app.model.resources import Resources
from app.model.snapshot import NodeTable, Snapshot


class ClusterCache:
    """The picture of the cluster that everything decides from."""

    def __init__(self) -> None:
        """Start empty; `feed` fills it, `planning` and `extender` promise in it."""
        self.version = 0
        """Grows with every change."""
        self.relief = 0
        """Grows with every change that may let somebody run who could not before."""
        self.unsettled: dict[GroupKey, int] = {}
        """Waiting groups that changed since a plan considered them, with the version of the change."""
        self.reservations = Reservations()
        self._nodes: dict[NodeName, Node] = {}
        self._table: NodeTable | None = None
        self._queues: dict[QueueName, Queue] = {}
        self._judged: Mapping[QueueName, Queue] | None = None
        self._classes: dict[str, int] = {}
        self._specs: dict[GroupKey, GroupSpec] = {}
        self._pods: dict[PodUid, Pod] = {}
        self._members: dict[GroupKey, dict[PodUid, Pod]] = {}
        self._succeeded: dict[GroupKey, set[PodUid]] = {}
        self._stuck: set[PodUid] = set()
        self._set_aside: dict[GroupKey, Refusal] = {}
        self._charges = Charges()
        self._waiting: dict[GroupKey, PodGroup] = {}
        self._stale: set[GroupKey] = set()
        self._accepted: dict[PodUid, frozenset[NodeName]] = {}
        self._refused: dict[PodUid, frozenset[NodeName]] = {}

    # What the watches show ------------------------------------------------------------------------------------------

    def apply_node(self, node: Node) -> None:
        """Take over a node as it is now; a heartbeat changes nothing."""
        if self._nodes.get(node.name) != node:
            self._nodes[node.name] = node
            self._nodes_changed()

    def delete_node(self, name: NodeName) -> None:
        """Forget a node; pods bound there stay charged to their queues until they are gone."""
        if self._nodes.pop(name, None) is not None:
            self._drop_promises(lambda held: held.node == name)
            self._nodes_changed()

    def apply_queue(self, queue: Queue) -> None:
        """Take over a queue as it is now."""
        if self._queues.get(queue.name) != queue:
            self._queues[queue.name] = queue
            self._queues_changed()

    def delete_queue(self, name: QueueName) -> None:
        """Forget a queue; its running pods stay charged to its name."""
        if self._queues.pop(name, None) is not None:
            self._queues_changed()

    def apply_class(self, priority_class: PriorityClass) -> None:
        """Take over a priority class as it is now."""
        if self._classes.get(priority_class.name) != priority_class.value:
            self._classes[priority_class.name] = priority_class.value
            self._regroup(list(self._members))

    def delete_class(self, name: str) -> None:
        """Forget a priority class."""
        if self._classes.pop(name, None) is not None:
            self._regroup(list(self._members))

    def apply_group(self, spec: GroupSpec) -> None:
        """Take over a PodGroup object as it is now."""
        if self._specs.get(spec.key) != spec:
            self._specs[spec.key] = spec
            self._regroup([spec.key])

    def delete_group(self, key: GroupKey) -> None:
        """Forget a PodGroup object; its bound pods keep running."""
        if self._specs.pop(key, None) is not None:
            self._regroup([key])

    def apply_pod(self, pod: Pod) -> None:
        """Take over a pod as it is now. A node name on it ends its reservation: the watch has echoed the binding."""
        before = self._pods.get(pod.uid)
        if before == pod:
            return
        if before is not None and before.group != pod.group:
            self._leave_group(before)
        self._pods[pod.uid] = pod
        if pod.managed:
            self._members.setdefault(pod.group, {})[pod.uid] = pod
        self._note_refusal(before, pod)
        if pod.node is not None or pod.deleting:
            self._end_promise(pod)
        self._settle(pod.uid)

    def delete_pod(self, uid: PodUid) -> None:
        """Forget a pod that is gone."""
        pod = self._pods.pop(uid, None)
        if pod is None:
            return
        self.reservations.drop(uid)
        self._stuck.discard(uid)
        self._accepted.pop(uid, None)
        self._refused.pop(uid, None)
        self._leave_group(pod)
        self._settle(uid)

    def finish_pod(self, uid: PodUid) -> None:
        """Forget a pod that has succeeded, but count it as satisfied in its gang."""
        pod = self._pods.get(uid)
        if pod is not None and pod.names_group:
            self._succeeded.setdefault(pod.group, set()).add(uid)
        self.delete_pod(uid)

    # What we promise ------------------------------------------------------------------------------------------------

    def promise(self, uid: PodUid, node: NodeName, *, expires_at: float) -> None:
        """Hold a node for a pod, in place of what was held for it before."""
        group = self._pods[uid].group
        held = Reservation(pod=uid, group=group, node=node, state=State.PROMISED, expires_at=expires_at)
        self.reservations.put(held)
        self._settle(uid)

    def drop_promise(self, uid: PodUid) -> Reservation | None:
        """Give up what is held for a pod; the caller is sure that no binding was or will be written."""
        dropped = self.reservations.drop(uid)
        self._settle(uid)
        return dropped

    def accept(self, uid: PodUid) -> None:
        """Note that kube-scheduler offers nodes for a pod that it had refused everywhere."""
        if uid in self._stuck:
            self._stuck.discard(uid)
            self._touch_group(self._pods[uid].group)

    def accept_only(self, uid: PodUid, nodes: frozenset[NodeName]) -> None:
        """Note that kube-scheduler's own filters accept these nodes for a pod, and no others."""
        pod = self._pods.get(uid)
        if pod is not None and self._accepted.get(uid) != nodes:
            self._accepted[uid] = nodes
            self.unsettle(pod.group)

    def accept_all(self, uid: PodUid) -> None:
        """Note that no node is known to be refused for a pod."""
        known = self._accepted.pop(uid, None) or self._refused.pop(uid, None)
        pod = self._pods.get(uid)
        if known is not None and pod is not None:
            self.unsettle(pod.group)

    def refuse_node(self, uid: PodUid, node: NodeName) -> None:
        """Note that kube-scheduler's own filters refuse a node for a pod."""
        self._refused[uid] = self._refused.get(uid, frozenset()) | {node}
        self.version += 1

    def set_aside(self, key: GroupKey, refusal: Refusal) -> None:
        """Leave a group out of planning for a while."""
        self._set_aside[key] = refusal
        self._touch_group(key)

    def readmit(self, key: GroupKey) -> None:
        """Let a group that was set aside take part again."""
        if self._set_aside.pop(key, None) is not None:
            self._touch_group(key)

    # What there is --------------------------------------------------------------------------------------------------

    def pod(self, uid: PodUid) -> Pod | None:
        """Return the pod of this uid."""
        return self._pods.get(uid)

    def pods(self) -> Iterable[Pod]:
        """Return all pods that are known."""
        return self._pods.values()

    def members(self, key: GroupKey) -> Iterable[Pod]:
        """Return the pods of a group."""
        return self._members.get(key, {}).values()

    def bound(self, key: GroupKey) -> int:
        """Return how many pods of a group the watch shows bound, or finished well."""
        return sum(pod.node is not None for pod in self.members(key)) + len(self._succeeded.get(key, ()))

    def min_member(self, key: GroupKey) -> int:
        """Return how many pods of a group must start together."""
        spec = self._specs.get(key)
        return spec.min_member if spec else 1

    def specs(self) -> Iterable[GroupSpec]:
        """Return all PodGroup objects."""
        return self._specs.values()

    def spec(self, key: GroupKey) -> GroupSpec | None:
        """Return a PodGroup object."""
        return self._specs.get(key)

    def terms(self, key: GroupKey) -> Terms | None:
        """Return the terms of a group that has pods."""
        members = self._members.get(key)
        if not members:
            return None
        return terms(self._specs.get(key), next(iter(members.values())), self._classes)

    def holding(self, key: GroupKey) -> Resources:
        """Return what the pods of a group hold."""
        charges = (self._charges.get(pod.uid) for pod in self.members(key))
        return sum((one.request for one in charges if one and one.node), Resources())

    def waiting(self) -> Mapping[GroupKey, PodGroup]:
        """Return the groups with pods that have no place; not to be kept across an await."""
        self._form_stale_groups()
        return self._waiting

    def group_alone(self, pod: Pod) -> PodGroup:
        """Return the group that a pod which is not there yet would be, for a what-if."""
        spec = self._specs.get(pod.group) if pod.names_group else None
        members = Members(pods=(pod,), held=frozenset(), stuck=())
        return form(pod.group, spec, members, terms(spec, pod, self._classes))

    def queues(self) -> Mapping[QueueName, Queue]:
        """Return the queues, judged as a tree."""
        if self._judged is None:
            self._judged = judged(self._queues.values())
        return self._judged

    def table(self) -> NodeTable:
        """Return the nodes as columns."""
        if self._table is None:
            self._table = NodeTable.of(self._nodes.values())
            self._charges.use_table(self._table)
        return self._table

    def snapshot(self) -> Snapshot:
        """Freeze what is known now."""
        table = self.table()
        return Snapshot(
            version=self.version,
            nodes=table,
            free=self._charges.free(),
            queues=self.queues(),
            usage=self._charges.usage(),
            groups=dict(self.waiting()),
            total=self._total(table),
            accepted=dict(self._accepted),
            refused=dict(self._refused),
        )

    def has_room(self, name: NodeName, request: Resources) -> bool:
        """Whether the node takes work and has this much free."""
        node = self._nodes.get(name)
        if node is None or not node.ready or node.problem:
            return False
        held = Resources.of(self._charges.on_node(name))
        free = node.allocatable - held
        return all(have >= asked for have, asked in zip(free.amounts, request.amounts, strict=True) if asked)

    def unsettle(self, key: GroupKey) -> None:
        """Have a waiting group considered again although it did not change."""
        self.version += 1
        self.unsettled[key] = self.version

    def considered(self, keys: Iterable[GroupKey], version: int) -> None:
        """Note that a plan of this version has considered these groups."""
        for key in keys:
            if self.unsettled.get(key, version + 1) <= version:
                del self.unsettled[key]

    # How it stays consistent ----------------------------------------------------------------------------------------

    def _settle(self, uid: PodUid) -> None:
        """Derive the pod's charge anew; more room somewhere is relief for those who wait."""
        before = self._charges.get(uid)
        charge = self._charge_of(self._pods.get(uid))
        if charge is None:
            self._charges.clear(uid)
        elif charge != before:
            self._charges.set(uid, charge)
        if before is not None and before.node is not None and (charge is None or charge != before):
            self.relief += 1
        self.version += 1

    def _charge_of(self, pod: Pod | None) -> Charge | None:
        if pod is None:
            return None
        if not pod.managed:
            # Another scheduler's pod: subtracted from what is divided, unless it names the queue that pays for it.
            return Charge(pod.request, pod.node, pod.queue or None) if pod.node else None
        self._stale.add(pod.group)
        held = self.reservations.get(pod.uid)
        on = self.terms(pod.group)
        node = pod.node or (held.node if held else None)
        return Charge(pod.request, node, on.queue if on else pod.queue, on.preemptible if on else True)

    def _leave_group(self, pod: Pod) -> None:
        members = self._members.get(pod.group)
        if members is None:
            return
        members.pop(pod.uid, None)
        if not members:
            del self._members[pod.group]
            self._succeeded.pop(pod.group, None)
            self._set_aside.pop(pod.group, None)
        self._stale.add(pod.group)

    def _end_promise(self, pod: Pod) -> None:
        held = self.reservations.get(pod.uid)
        if held is not None and (pod.node is not None or held.state is State.PROMISED):
            self.reservations.drop(pod.uid)

    def _note_refusal(self, before: Pod | None, pod: Pod) -> None:
        """Learn that kube-scheduler's own filters refuse every node for a pod although we see room for it.

        A refusal while nothing is promised tells nothing new: kube-scheduler refuses all pods of a full cluster. It
        counts when it comes after our promise: as a new condition, or by the nomination being cleared.
        """
        held = self.reservations.get(pod.uid)
        if not pod.refused_by_scheduler or held is None or held.state is not State.PROMISED or before is None:
            return
        cleared = before.nominated == held.node and pod.nominated is None
        if cleared or not before.refused_by_scheduler:
            self._stuck.add(pod.uid)
            self.reservations.drop(pod.uid)

    def _touch_group(self, key: GroupKey) -> None:
        self._stale.add(key)
        self.version += 1

    def _regroup(self, keys: Iterable[GroupKey]) -> None:
        self.relief += 1
        for key in keys:
            self._touch_group(key)
            for uid in list(self._members.get(key, ())):
                self._settle(uid)

    def _nodes_changed(self) -> None:
        self._table = None
        self.relief += 1
        self.version += 1

    def _queues_changed(self) -> None:
        self._judged = None
        self.relief += 1
        self.version += 1

    def _drop_promises(self, which: Callable[[Reservation], bool]) -> None:
        for held in [one for one in self.reservations if one.state is State.PROMISED and which(one)]:
            self.drop_promise(held.pod)

    def _form_stale_groups(self) -> None:
        stale, self._stale = self._stale, set()
        for key in stale:
            self._form(key)

    def _form(self, key: GroupKey) -> None:
        group = self._formed(key)
        if group == self._waiting.get(key):
            return
        if group is None:
            del self._waiting[key]
            self.unsettled.pop(key, None)
        else:
            self._waiting[key] = group
            self.unsettled[key] = self.version

    def _formed(self, key: GroupKey) -> PodGroup | None:
        pods = self._members.get(key)
        on = self.terms(key)
        if not pods or on is None:
            return None
        held = frozenset(uid for uid, pod in pods.items() if pod.node or self.reservations.get(uid))
        succeeded = len(self._succeeded.get(key, ()))
        members = Members(pods=pods.values(), held=held, stuck=self._stuck, succeeded=succeeded)
        if not members.waits():
            return None
        group = form(key, self._specs.get(key), members, on, self._set_aside.get(key))
        return group if group.pending or group.refusal else None

    def _total(self, table: NodeTable) -> Resources:
        ready = table.allocatable[:, table.takes_work].sum(axis=1)
        return Resources.of(ready) - self._charges.outside()
