"""Stores how kube-scheduler handles pods: which nodes its own filters refuse, and whether it sends the pods."""

from app.cluster.groups.membership import Membership
from app.cluster.state.pods import KnownPods
from app.cluster.state.refusals import NONE, RefusedNodes
from app.model.names import GroupKey, NodeName, PodUid
from app.model.pod import Pod


class SchedulerFindings:
    """How kube-scheduler handles pods. Unknown pods are ignored."""

    def __init__(self, pods: KnownPods, groups: Membership) -> None:
        self._pods = pods
        self._groups = groups
        self._refused = RefusedNodes()

    def accept(self, uid: PodUid) -> None:
        """Note that kube-scheduler offers nodes for a pod: an earlier refusal of all nodes is outdated."""
        pod = self._pods.get(uid)
        if pod is not None:
            self._groups.asked.unmark_stuck(pod)

    def overlook(self, uid: PodUid) -> None:
        """Note that kube-scheduler did not send a pod while the pod had a reservation.

        The pod gets no reservation until `note_asked` or `reconsider`.
        """
        pod = self._pods.get(uid)
        if pod is not None and pod.managed:
            self._groups.asked.overlook(pod)

    def note_asked(self, uid: PodUid) -> None:
        """Note that kube-scheduler has sent a pod: it can get reservations again."""
        pod = self._pods.get(uid)
        if pod is not None:
            self._groups.asked.note_asked(pod)

    def reconsider(self, uid: PodUid) -> None:
        """Let a pod get a reservation again, because enough time has passed."""
        pod = self._pods.get(uid)
        if pod is not None:
            self._groups.asked.reconsider(pod)

    def hear(self, pod: Pod) -> None:
        """Note that kube-scheduler states a new reason for a pod: messages may quote it."""
        if self._refused.of(pod.uid) or self._groups.asked.is_stuck(pod):
            self._unsettle(pod.group)

    def refused(self, uid: PodUid) -> frozenset[NodeName]:
        """Return the nodes that kube-scheduler's own filters refuse for a pod, as far as is known."""
        return self._refused.of(uid)

    def refuse_only(self, uid: PodUid, nodes: frozenset[NodeName]) -> None:
        """Set the nodes that kube-scheduler's own filters refuse for a pod, for causes that Leeboard cannot see."""
        pod = self._pods.get(uid)
        if pod is not None and self._refused.set(uid, nodes):
            self._unsettle(pod.group)

    def refuse_node(self, uid: PodUid, node: NodeName) -> None:
        """Add one node that kube-scheduler's own filters refuse for a pod."""
        self.refuse_only(uid, self._refused.of(uid) | {node})

    def forget(self, uid: PodUid) -> None:
        """Forget a deleted pod."""
        self._refused.set(uid, NONE)

    def forget_refused_nodes(self) -> None:
        """Allow every node for every pod again: kube-scheduler may accept now what it refused some time ago."""
        for uid in self._refused.pods():
            self.refuse_only(uid, NONE)

    def readmit(self, key: GroupKey) -> None:
        """Let a group that was set aside take part again, on every node."""
        for pod in self._groups.pods(key):
            self.refuse_only(pod.uid, NONE)
        self._groups.readmit(key)

    def refused_nodes(self) -> RefusedNodes:
        """Return the refused nodes of all pods; the caller freezes them."""
        return self._refused

    def _unsettle(self, key: GroupKey) -> None:
        """Mark a group to be formed again from its pods, and to be planned again if it is pending."""
        self._groups.touched.mark(key)
        if key in self._groups.waiting():
            self._groups.unsettled.add(key)
