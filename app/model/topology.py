"""A Topology: the levels of closeness between nodes, from node labels."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A Topology object as the watch last showed it."""

    name: str
    levels: tuple[str, ...] = ()
    """Node label keys, the widest first. A domain is all nodes with the same values down to that level."""
    problem: str = ""
    """One sentence for its owner when the object cannot be used; empty when it can."""

    def __repr__(self) -> str:
        return f"<Topology {self.name} {'/'.join(self.levels)}>"
