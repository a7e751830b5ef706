"""What every scheduler that takes part has to offer, so that all are given the same work in the same way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from loadtest.results import Watched
from tests.system.api import Api, Object
from tests.system.bed import Bed


class CannotError(Exception):
    """This scheduler has nothing for this kind of work; the message is one sentence for the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Pods of one kind: `count` alone, or as gangs of `gang_size`, in one queue."""

    name: str
    count: int
    """Of pods, a multiple of `gang_size`."""
    queue: str
    gang_size: int = 1
    gpus: int = 1
    """Whole GPUs a pod; 0 where `fraction` is given."""
    fraction: str = ""
    """The part of one GPU that each pod asks for, as KAI's annotation writes it."""
    on: Sequence[str] = ()
    """The nodes on which they run already, one of them a pod in turn; empty: they wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entitled:
    """A leaf queue of a scenario."""

    name: str
    quota_gpus: int = -1
    """-1: unlimited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What a scheduler tells of its own planning since it was started."""

    plans: float
    seconds: float
    """All plans together."""


@runtime_checkable
class Planner(Protocol):
    """A contender that counts its plans; the others need not."""

    def planned(self) -> Planned:
        """Return what it has planned so far."""
        ...


@runtime_checkable
class Looked(Protocol):
    """A contender that others look at; the others need not."""

    def watched(self, since: float, until: float) -> Watched | None:
        """Return what they have seen in a period, in seconds since the epoch; None where nobody looks."""
        ...


class Contender(Protocol):
    """One scheduler, or several programs that are one together."""

    name: str
    """As it is called in the report."""

    def version(self) -> str:
        """Return which version it is, and in which mode it runs."""
        ...

    def build(self) -> None:
        """Build its programs, once, into the cache; raises `CannotError` where they cannot be built."""
        ...

    def install(self, api: Api) -> None:
        """Create what it needs before any work exists: kinds, namespaces, classes. No queues."""
        ...

    def work(self, batch: Batch) -> Sequence[Object]:
        """Return the objects of a batch as this scheduler wants them; raises `CannotError` if it has no such thing."""
        ...

    def start(self, bed: Bed) -> Sequence[str]:
        """Start its programs, wait until their caches are filled and they only wait for `release`; return their names.

        Nothing is nominated, promised, grouped or released before. The names are those of `Bed.child`.
        """
        ...

    def release(self, api: Api, queues: Sequence[Entitled]) -> None:
        """Let all its programs begin at one moment; the queues of the scenario may be created here, or before."""
        ...

    def attempts(self) -> float | None:
        """Return how many scheduling attempts it has counted since it was started; None where it counts none."""
        ...

    def flags(self) -> Mapping[str, Sequence[str]]:
        """Return the command line of each of its programs, for the report; paths left out."""
        ...
