"""The questions that the API server asks before it stores an object, and their answers, without the wire format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from app.model.seam import RawObject


class Operation(StrEnum):
    """The operation on the object."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    CONNECT = "CONNECT"


PatchOperation = Mapping[str, object]
"""One operation of a JSON patch (RFC 6902)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionQuestion:
    """An object that is about to be stored. The question is whether it may be, and what must be added to it."""

    group: str
    """The group of the object's kind; empty for the core group."""
    kind: str
    namespace: str
    name: str
    """Empty when the API server has not generated it yet (`generateName`)."""
    operation: Operation
    object: RawObject
    """The object as it would be stored; on DELETE, the stored object."""
    old: RawObject | None = None
    """The object as it is stored now; None on CREATE."""
    user: str = ""
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """The object may be stored with these changes."""

    patch: Sequence[PatchOperation] = ()
    warnings: Sequence[str] = ()
    """Shown to the sender of the object, up to 256 bytes of each."""


@dataclass(frozen=True, slots=True)
class Denied:
    """The object may not be stored. The message says what to write instead."""

    message: str


@dataclass(frozen=True, slots=True)
class Undecided:
    """No answer is possible yet, and why. The API server then applies the webhook's `failurePolicy`."""

    cause: str


AdmissionAnswer = Admitted | Denied | Undecided
