"""Remembers who asks for parts of GPUs, by node: GPUs that turn out to have another size concern nobody else."""

from collections.abc import Callable, Collection

from app.model.names import NodeName, PodUid


class Sharers:
    """The pods that ask for parts of GPUs. Only `GpuBooks` calls what changes it."""

    def __init__(self) -> None:
        """Start with none."""
        self._places: dict[PodUid, NodeName | None] = {}
        self._at: dict[NodeName | None, set[PodUid]] = {}

    def __contains__(self, uid: object) -> bool:
        return uid in self._places

    def put(self, uid: PodUid, place: NodeName | None) -> None:
        """Note on which node a pod has a place, None while it has none."""
        if uid in self._places and self._places[uid] == place:
            return
        self.drop(uid)
        self._places[uid] = place
        self._at.setdefault(place, set()).add(uid)

    def drop(self, uid: PodUid) -> None:
        """Forget a pod that is gone."""
        if uid not in self._places:
            return
        place = self._places.pop(uid)
        self._at[place].discard(uid)
        if not self._at[place]:
            del self._at[place]

    def on(self, node: NodeName) -> Collection[PodUid]:
        """Return the pods that have a place on a node; not to be kept."""
        return self._at.get(node, ())

    def elsewhere(self, is_known: Callable[[NodeName], bool]) -> set[PodUid]:
        """Return the pods that have no place, or one on a node that is not known."""
        places = (place for place in self._at if place is None or not is_known(place))
        return {uid for place in places for uid in self._at[place]}
