"""A Topology: levels of closeness between nodes, based on node labels."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A Topology object as the watch last showed it."""

    name: str
    levels: tuple[str, ...] = ()
    """Node label keys, the widest first. A domain is all nodes with the same values down to that level."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names of levels, and the node label key of each."""
    problem: str = ""
    """One sentence for the owner when the object cannot be used; empty when it can."""

    def label_of(self, level: str) -> str:
        """Return the node label key of a level, given by either name; an unknown name is returned unchanged."""
        return self.aliases.get(level, level)

    def __repr__(self) -> str:
        return f"<Topology {self.name} {'/'.join(self.levels)}>"


class UnknownTopologies(Mapping[str, Topology]):
    """All Topologies while it is unknown which exist. Each Topology in it has this problem."""

    def __init__(self, problem: str) -> None:
        """`problem` is one sentence without a full stop."""
        self._problem = problem

    def __getitem__(self, name: str) -> Topology:
        return Topology(name=name, problem=self._problem)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0
