"""Reads owner objects, so that an object on which our reader fails affects no other object."""

from dataclasses import dataclass

import structlog

from app.cluster import decode
from app.grouping import fields_read
from app.model.owner import Kind, Owner, OwnerRef
from app.model.seam import RawObject

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SeenOwner:
    """The record of an object that a list or an event shows."""

    what: Owner | OwnerRef | None
    """Only the identity of the object when our reader fails on it; None when the object does not tell it."""
    uid: str
    version: int


def seen_owner(kind: Kind, raw: RawObject) -> SeenOwner:
    """Read the record of an owner that a list or an event shows."""
    return SeenOwner(read_owner(kind, raw), decode.identity(raw)[1], decode.version(raw))


def read_owner(kind: Kind, raw: RawObject) -> Owner | OwnerRef | None:
    """Read an owner; return only its identity when our reader fails on it, and None when the identity is unknown."""
    try:
        return decode.owner(raw, kind=kind, parts=fields_read(kind))
    except decode.DecodeError as error:
        log.warning("owner without a name", kind=repr(kind), error=str(error))
        return None
    except Exception:
        log.exception("owner cannot be read", kind=repr(kind), owner=decode.full_name(raw))
        return OwnerRef(kind, *decode.identity(raw)) if all(decode.identity(raw)) else None
