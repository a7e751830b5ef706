"""Reads objects that own pods, so that one which our reader fails on costs no other."""

from dataclasses import dataclass

import structlog

from app.cluster import decode
from app.grouping import fields_read
from app.model.owner import Kind, Owner, OwnerRef
from app.model.seam import RawObject

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SeenOwner:
    """What is kept of an object that a list or an event shows."""

    what: Owner | OwnerRef | None
    """Which one it is alone when our reader fails on it, and None when nothing tells that."""
    uid: str
    version: int


def seen_owner(kind: Kind, raw: RawObject) -> SeenOwner:
    """Read what a list or an event shows of an owner."""
    return SeenOwner(read_owner(kind, raw), decode.identity(raw)[1], decode.version(raw))


def read_owner(kind: Kind, raw: RawObject) -> Owner | OwnerRef | None:
    """Read an owner; only which one it is when our reader fails on it, and None when nothing tells that."""
    try:
        return decode.owner(raw, kind=kind, parts=fields_read(kind))
    except decode.DecodeError as error:
        log.warning("owner without a name", kind=repr(kind), error=str(error))
        return None
    except Exception:
        log.exception("owner cannot be read", kind=repr(kind), owner=decode.full_name(raw))
        return OwnerRef(kind, *decode.identity(raw)) if all(decode.identity(raw)) else None
