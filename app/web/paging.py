"""Pages of a list: `limit` items, and a text with which the next page is asked for."""

import hashlib
import secrets
from collections.abc import Callable, Iterable, Sequence
from heapq import nsmallest
from http import HTTPStatus
from typing import TypeVar

from fastapi import HTTPException

T = TypeVar("T")

MOST = 10_000
"""The largest `limit`."""
NOT_OURS = "this `continue` is of another process, which has ended or is another replica; list from the beginning"


def page(
    items: Iterable[T], key: Callable[[T], str], *, limit: int | None, after: str = ""
) -> tuple[Sequence[T], str | None]:
    """Return the items behind `after` by their keys, at most `limit`, and the key of the last one if more follow.

    Items that come or go between two pages move no others to another page.
    """
    later = (item for item in items if not after or key(item) > after)
    if limit is None:
        return sorted(later, key=key) if after else list(later), None
    found = nsmallest(limit + 1, later, key=key)
    return found[:limit], key(found[limit - 1]) if len(found) > limit else None


class Veil:
    """Keys that tell nothing about names: a page may end at an item whose name its reader may not see."""

    def __init__(self) -> None:
        """Draw a secret: keys of one process mean nothing to another."""
        self._secret = secrets.token_bytes(16)
        self._mark = secrets.token_hex(4)

    def key(self, name: str) -> str:
        """Return the key of a name."""
        digest = hashlib.blake2b(name.encode(errors="replace"), key=self._secret, digest_size=12).hexdigest()
        return f"{self._mark}-{digest}"

    def check(self, key: str) -> str:
        """Return a key of this process; raise HTTPException for any other."""
        if key and not key.startswith(f"{self._mark}-"):
            raise HTTPException(HTTPStatus.GONE, NOT_OURS)
        return key
