"""A PriorityClass: the number behind a name that pods and PodGroups may use."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityClass:
    """A PriorityClass as the watch last showed it."""

    name: str
    value: int = 0
    problem: str = ""
    """One sentence for the owner when the value cannot be read. The class then keeps its old value, or is absent."""

    def __repr__(self) -> str:
        return f"<PriorityClass {self.name}={self.value}>"
