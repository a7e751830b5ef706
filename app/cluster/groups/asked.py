"""Keeps which pods kube-scheduler does not place: its filters refuse all nodes, or it does not send the pod at all."""

from app.cluster.groups.touched import Touched
from app.model.names import PodUid
from app.model.pod import Pod


class AskedPods:
    """Pods that get no reservation because of kube-scheduler. Each change causes the pod's group to be formed again."""

    def __init__(self, touched: Touched) -> None:
        """Start without pods."""
        self._touched = touched
        self.stuck: set[PodUid] = set()
        """Pods for which kube-scheduler's own filters refuse all nodes; read only."""
        self.overlooked: set[PodUid] = set()
        """Pods that kube-scheduler did not send while they had a reservation; read only."""
        self._unasked: set[PodUid] = set()
        """Pods that had a reservation and that kube-scheduler has not sent since, including pods that may get one
        again.
        """

    def forget(self, pod: Pod) -> None:
        """Forget a pod that is no longer in its group."""
        self.stuck.discard(pod.uid)
        self.overlooked.discard(pod.uid)
        self._unasked.discard(pod.uid)

    def mark_stuck(self, pod: Pod) -> None:
        """Note that kube-scheduler's own filters refuse all nodes for the pod, although Leeboard found room."""
        self.stuck.add(pod.uid)
        self._touched.mark(pod.group)

    def is_stuck(self, pod: Pod) -> bool:
        """Return whether the pod is marked so."""
        return pod.uid in self.stuck

    def unmark_stuck(self, pod: Pod) -> None:
        """Note that kube-scheduler offers nodes for the pod: an earlier refusal of all nodes is outdated."""
        if pod.uid in self.stuck:
            self.stuck.discard(pod.uid)
            self._touched.mark(pod.group)

    def overlook(self, pod: Pod) -> None:
        """Note that kube-scheduler did not send a pod while the pod had a reservation.

        The pod gets no reservation until `note_asked` or `reconsider`.
        """
        self.overlooked.add(pod.uid)
        self._unasked.add(pod.uid)
        self._touched.mark(pod.group)

    def is_unasked(self, pod: Pod) -> bool:
        """Return whether kube-scheduler has not sent a pod since the pod had an unused reservation."""
        return pod.uid in self._unasked

    def note_asked(self, pod: Pod) -> None:
        """Note that kube-scheduler has sent a pod: it can get reservations again."""
        self._unasked.discard(pod.uid)
        self.reconsider(pod)

    def reconsider(self, pod: Pod) -> None:
        """Let a pod get a reservation again, because enough time has passed."""
        if pod.uid in self.overlooked:
            self.overlooked.discard(pod.uid)
            self._touched.mark(pod.group)
