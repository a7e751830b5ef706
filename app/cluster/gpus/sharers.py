"""Keeps which pods request parts of GPUs, by node: a changed GPU size affects only these pods."""

from collections.abc import Callable, Collection

from app.model.names import NodeName, PodUid


class Sharers:
    """The pods that request parts of GPUs. Only `GpuBooks` calls the methods that change it."""

    def __init__(self) -> None:
        """Start without pods."""
        self._places: dict[PodUid, NodeName | None] = {}
        self._at: dict[NodeName | None, dict[PodUid, None]] = {}

    def __contains__(self, uid: object) -> bool:
        return uid in self._places

    def put(self, uid: PodUid, place: NodeName | None) -> None:
        """Note the node on which a pod has a place; None while it has none."""
        if uid in self._places and self._places[uid] == place:
            return
        self.drop(uid)
        self._places[uid] = place
        self._at.setdefault(place, {})[uid] = None

    def drop(self, uid: PodUid) -> None:
        """Forget a deleted pod."""
        if uid not in self._places:
            return
        place = self._places.pop(uid)
        self._at[place].pop(uid, None)
        if not self._at[place]:
            del self._at[place]

    def on(self, node: NodeName) -> Collection[PodUid]:
        """Return the pods that have a place on a node; the caller must not keep the value."""
        return self._at.get(node, ())

    def elsewhere(self, is_known: Callable[[NodeName], bool]) -> list[PodUid]:
        """Return the pods that have no place, or a place on an unknown node."""
        places = (place for place in self._at if place is None or not is_known(place))
        return [uid for place in places for uid in self._at[place]]
