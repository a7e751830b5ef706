"""Remembers of each pod what kube-scheduler did with it: accept it nowhere, or not ask about it at all."""

from app.cluster.groups.touched import Touched
from app.model.names import PodUid
from app.model.pod import Pod


class AskedPods:
    """The pods that get no place for what kube-scheduler did. Each change has the group of the pod formed again."""

    def __init__(self, touched: Touched) -> None:
        """Start with nothing known."""
        self._touched = touched
        self.stuck: set[PodUid] = set()
        """Those that kube-scheduler's own filters accept nowhere; only to be read."""
        self.overlooked: set[PodUid] = set()
        """Those that kube-scheduler did not ask about when they had a place; only to be read."""
        self._unasked: set[PodUid] = set()
        """Those that had a place and that kube-scheduler has not asked about since, whether they may get one again."""

    def forget(self, pod: Pod) -> None:
        """Forget a pod that has left its group."""
        self.stuck.discard(pod.uid)
        self.overlooked.discard(pod.uid)
        self._unasked.discard(pod.uid)

    def mark_stuck(self, pod: Pod) -> None:
        """Note that kube-scheduler's own filters accept the pod nowhere, although there seemed to be room."""
        self.stuck.add(pod.uid)
        self._touched.mark(pod.group)

    def is_stuck(self, pod: Pod) -> bool:
        """Return whether that is so, as far as is known."""
        return pod.uid in self.stuck

    def unmark_stuck(self, pod: Pod) -> None:
        """Note that kube-scheduler offers nodes for the pod: if it refused them all before, that is over."""
        if pod.uid in self.stuck:
            self.stuck.discard(pod.uid)
            self._touched.mark(pod.group)

    def overlook(self, pod: Pod) -> None:
        """Note that kube-scheduler did not ask about a pod while it had a place.

        It gets none until `note_asked` or `reconsider`.
        """
        self.overlooked.add(pod.uid)
        self._unasked.add(pod.uid)
        self._touched.mark(pod.group)

    def is_unasked(self, pod: Pod) -> bool:
        """Return whether kube-scheduler has not asked about a pod since it had a place in vain."""
        return pod.uid in self._unasked

    def note_asked(self, pod: Pod) -> None:
        """Note that kube-scheduler asks about a pod: it gets places again."""
        self._unasked.discard(pod.uid)
        self.reconsider(pod)

    def reconsider(self, pod: Pod) -> None:
        """Let a pod get a place again, since enough time has passed."""
        if pod.uid in self.overlooked:
            self.overlooked.discard(pod.uid)
            self._touched.mark(pod.group)
