"""Takes over what kube-scheduler does with pods: where its own filters refuse them, and whether it asks about them."""

from app.cluster.groups.membership import Membership
from app.cluster.state.pods import KnownPods
from app.cluster.state.refusals import NONE, RefusedNodes
from app.model.names import GroupKey, NodeName, PodUid
from app.model.pod import Pod


class SchedulerFindings:
    """What kube-scheduler does with pods. A pod that is not known is passed over."""

    def __init__(self, pods: KnownPods, groups: Membership) -> None:
        self._pods = pods
        self._groups = groups
        self._refused = RefusedNodes()

    def accept(self, uid: PodUid) -> None:
        """Note that kube-scheduler offers nodes for a pod: if it refused them all before, that is over."""
        pod = self._pods.get(uid)
        if pod is not None:
            self._groups.asked.unmark_stuck(pod)

    def overlook(self, uid: PodUid) -> None:
        """Note that kube-scheduler did not ask about a pod while it had a place.

        It gets none until `note_asked` or `reconsider`.
        """
        pod = self._pods.get(uid)
        if pod is not None and pod.managed:
            self._groups.asked.overlook(pod)

    def note_asked(self, uid: PodUid) -> None:
        """Note that kube-scheduler asks about a pod: it gets places again."""
        pod = self._pods.get(uid)
        if pod is not None:
            self._groups.asked.note_asked(pod)

    def reconsider(self, uid: PodUid) -> None:
        """Let a pod get a place again, since enough time has passed."""
        pod = self._pods.get(uid)
        if pod is not None:
            self._groups.asked.reconsider(pod)

    def hear(self, pod: Pod) -> None:
        """Note that kube-scheduler says something else of a pod: why it waits may be told in these words."""
        if self._refused.of(pod.uid) or self._groups.asked.is_stuck(pod):
            self._unsettle(pod.group)

    def refused(self, uid: PodUid) -> frozenset[NodeName]:
        """Return the nodes that kube-scheduler's own filters refuse for a pod, as far as is known."""
        return self._refused.of(uid)

    def refuse_only(self, uid: PodUid, nodes: frozenset[NodeName]) -> None:
        """Note that kube-scheduler's own filters refuse just these nodes for a pod, for causes we cannot see."""
        pod = self._pods.get(uid)
        if pod is not None and self._refused.set(uid, nodes):
            self._unsettle(pod.group)

    def refuse_node(self, uid: PodUid, node: NodeName) -> None:
        """Note that kube-scheduler's own filters refuse one more node for a pod."""
        self.refuse_only(uid, self._refused.of(uid) | {node})

    def forget(self, uid: PodUid) -> None:
        """Forget a pod that is gone."""
        self._refused.set(uid, NONE)

    def forget_refused_nodes(self) -> None:
        """Let every pod be tried everywhere again: what kube-scheduler refused a while ago it may accept now."""
        for uid in self._refused.pods():
            self.refuse_only(uid, NONE)

    def readmit(self, key: GroupKey) -> None:
        """Let a group that was set aside take part again, on every node."""
        for pod in self._groups.pods(key):
            self.refuse_only(pod.uid, NONE)
        self._groups.readmit(key)

    def refused_nodes(self) -> RefusedNodes:
        """Return all of it, to be frozen."""
        return self._refused

    def _unsettle(self, key: GroupKey) -> None:
        """Have a group formed again of its pods as they are, and considered again if it waits."""
        self._groups.touched.mark(key)
        if key in self._groups.waiting():
            self._groups.unsettled.add(key)
