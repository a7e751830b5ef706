"""Counts the changes of the cache, and collects their consequences for their readers."""

from dataclasses import dataclass, field

from app.model.names import GroupKey, NodeName, PodUid


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of the cache that are handled once."""

    bereft: dict[PodUid, None] = field(default_factory=dict)
    """Pods whose reservation was ended by a watch event: their nomination may still be set."""
    relieved: set[NodeName] = field(default_factory=set)
    """Nodes that have changed, or on which less is held, now or soon."""
    taken_by_others: set[NodeName] = field(default_factory=set)
    """Nodes to which other programs have bound managed pods without a reservation."""
    gone: dict[GroupKey, None] = field(default_factory=dict)
    """Groups that are no longer pending; some may become pending again."""


NO_CHANGES = Changes()
"""Never written."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the live view has to show again."""

    pods: dict[PodUid, None] = field(default_factory=dict)
    """Pods whose charge, reservation or group may have changed."""
    nodes: dict[NodeName, None] = field(default_factory=dict)
    """Nodes that may look different, apart from their pods."""


class ChangeLog:
    """One for the whole cache: each part of the cache notes its changes here."""

    def __init__(self) -> None:
        """Start without changes."""
        self.version = 0
        """Grows with every change."""
        self.relief = 0
        """Grows with every change that may let a pod run that could not run before."""
        self.refusals = 0
        """Grows whenever a plan may have refused a pod that is pending now."""
        self._changes: Changes | None = None
        self._seen: Seen | None = None
        """None while nobody watches: nothing is collected then."""

    def note(self) -> None:
        """Note a change that lets no pending pod run."""
        self.version += 1

    def relieve(self, node: NodeName | None = None) -> None:
        """Note a change that may let pending pods run; with a node if the change concerns only this node."""
        self.relief += 1
        self.version += 1
        if node is not None:
            self._noted().relieved.add(node)
            self.show_node(node)

    def change_node(self, node: NodeName) -> None:
        """Note that a node has changed in a way that lets no pending pod run."""
        self.version += 1
        self._noted().relieved.add(node)
        self.show_node(node)

    def lose_promise(self, pod: PodUid) -> None:
        """Note that a watch event has ended the reservation of a pod."""
        self._noted().bereft[pod] = None

    def take_over_place(self, node: NodeName) -> None:
        """Note that another program has bound a managed pod to a node without a reservation for the pod."""
        self._noted().taken_by_others.add(node)

    def stop_waiting(self, key: GroupKey) -> None:
        """Note that a group is no longer pending."""
        self._noted().gone[key] = None

    def note_refusals(self) -> None:
        """Note that a running plan has refused pods, or may refuse pods, on the basis of the present state."""
        self.refusals += 1

    def drain(self) -> Changes:
        """Return what has changed since the last call, `NO_CHANGES` if nothing has; there is only one reader."""
        changes, self._changes = self._changes, None
        return changes or NO_CHANGES

    # For the live view. Nothing that decides reads it. ----------------------------------------------------------------

    def show_node(self, node: NodeName) -> None:
        """Note that a node may look different."""
        if self._seen is not None:
            self._seen.nodes[node] = None

    def show_pod(self, pod: PodUid) -> None:
        """Note that what a pod holds may look different."""
        if self._seen is not None:
            self._seen.pods[pod] = None

    def watch(self) -> None:
        """Collect from now on what changes for a viewer; `drain_seen` returns it."""
        self._seen = Seen()

    def unwatch(self) -> None:
        """Collect nothing any more: nobody watches."""
        self._seen = None

    def drain_seen(self) -> Seen:
        """Return what was collected since the last call; the live view is the only reader."""
        seen = self._seen or Seen()
        if self._seen is not None:
            self._seen = Seen()
        return seen

    # Inside ----------------------------------------------------------------------------------------------------------

    def _noted(self) -> Changes:
        if self._changes is None:
            self._changes = Changes()
        return self._changes
