"""Keeps the Topologies, and refuses pods that name one as long as the Topologies are not listed."""

from collections.abc import Mapping

from app.cluster.changes import ChangeLog
from app.model.topology import Topology, UnknownTopologies

UNLISTED_TOPOLOGIES = "Leeboard cannot list Topologies now; its /readyz says why"


class Topologies:
    """All known Topologies."""

    def __init__(self, changes: ChangeLog) -> None:
        """Start without Topologies."""
        self._changes = changes
        self._by_name: Mapping[str, Topology] = {}

    def by_name(self) -> Mapping[str, Topology]:
        """Return the Topologies; the mapping never changes."""
        return self._by_name

    def apply(self, topology: Topology) -> None:
        """Store a Topology."""
        if self._by_name.get(topology.name) != topology:
            self._by_name = {**self._by_name, topology.name: topology}
            self._changes.relieve()

    def delete(self, name: str) -> None:
        """Forget a Topology; pods that use it keep running."""
        if name in self._by_name:
            self._by_name = {key: one for key, one in self._by_name.items() if key != name}
            self._changes.relieve()

    def doubt(self) -> None:
        """Refuse every pod that names a Topology until `trust`: the Topologies are not listed yet."""
        self._by_name = UnknownTopologies(UNLISTED_TOPOLOGIES)

    def trust(self) -> None:
        """Note that all Topologies are listed."""
        self._by_name = dict(self._by_name)
        self._changes.relieve()
