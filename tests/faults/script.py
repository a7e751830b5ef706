"""A run as data: timed operations that a seed generates, that shrinking removes, and that JSON keeps."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Arguments = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One thing that happens to the world at a time, in seconds since the start of the run."""

    at: float
    do: str
    args: Arguments = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"{self.at:8.3f} {self.do} {json.dumps(self.args, sort_keys=True)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A whole run. After `quiet_at` nothing is done any more, no fault lasts, and no pod ends by itself."""

    seed: int
    settings: Arguments
    """Settings of Leeboard."""
    replicas: int
    has_admission: bool
    quiet_at: float
    end_at: float
    operations: tuple[Operation, ...]

    def keep(self, operations: Iterable[Operation]) -> "Script":
        """Return the same run with other operations."""
        return replace(self, operations=tuple(operations))

    def dump(self) -> str:
        """Return the script as JSON."""
        told = {name: getattr(self, name) for name in ("seed", "settings", "replicas", "has_admission", "quiet_at")}
        operations = [{"at": one.at, "do": one.do, "args": one.args} for one in self.operations]
        return json.dumps({**told, "end_at": self.end_at, "operations": operations})


def load(text: str) -> Script:
    """Return the script that `Script.dump` wrote."""
    read = json.loads(text)
    operations = tuple(Operation(**one) for one in read.pop("operations"))
    return Script(**read, operations=operations)
