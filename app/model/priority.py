"""A PriorityClass: the number behind a name that pods and PodGroups may use."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityClass:
    """A PriorityClass as the watch last showed it."""

    name: str
    value: int = 0
    problem: str = ""
    """One sentence for its owner when the value cannot be read; such a class is as it was, or absent."""

    def __repr__(self) -> str:
        return f"<PriorityClass {self.name}={self.value}>"
