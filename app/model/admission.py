"""What the API server asks before it stores an object, and what we may answer: admission without its wire."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from app.model.seam import RawObject


class Operation(StrEnum):
    """What is about to be done to the object."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    CONNECT = "CONNECT"


PatchOperation = Mapping[str, object]
"""One operation of a JSON patch (RFC 6902)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionQuestion:
    """An object that is about to be stored: may it be, and does anything have to be added to it."""

    group: str
    """Of the object's kind; empty for the core group."""
    kind: str
    namespace: str
    name: str
    """Empty when the API server has still to make one (`generateName`)."""
    operation: Operation
    object: RawObject
    """As it would be stored; what was there before on DELETE."""
    old: RawObject | None = None
    """As it is stored now; None when it is created."""
    user: str = ""
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """It may be stored, with these changes."""

    patch: Sequence[PatchOperation] = ()
    warnings: Sequence[str] = ()
    """Shown to the person who sent it, up to 256 bytes of each."""


@dataclass(frozen=True, slots=True)
class Denied:
    """It may not be stored; the message says what to write instead."""

    message: str


@dataclass(frozen=True, slots=True)
class Undecided:
    """Nothing can be said yet, and why: the API server goes by what the webhook's `failurePolicy` says."""

    cause: str


AdmissionAnswer = Admitted | Denied | Undecided
