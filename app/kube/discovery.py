"""Finds the API path of a kind. One request asks the API server for all kinds of an API version."""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic

import orjson
from cachetools import LRUCache

from app.kube.errors import BrokenStreamError
from app.kube.places import WHOLE
from app.kube.transport import Transport
from app.model.seam import NotFoundError

API_VERSION = re.compile(r"(?P<group>[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""The API versions that are asked for. The text comes from an object's author and becomes part of a path."""
FOLLOWED = {"list", "watch"}
ASK_AGAIN_S = 30.0
"""A kind that is not served is asked for again after this time, because a CRD may be installed at any time."""
KEPT = 1000
"""The most API versions in the cache. References may name any number of them."""


@dataclass(frozen=True, slots=True)
class ServedResources:
    """What one API version serves, and when it was asked."""

    paths: Mapping[str, str]
    """By kind; only kinds that can be listed and watched."""
    asked_at_s: float


class Discovery:
    """Caches what is served. It asks again for what is not served, after `ASK_AGAIN_S`."""

    def __init__(self, transport: Transport, *, clock: Callable[[], float] = monotonic) -> None:
        # Only `path_of` writes it, for one API version at a time.
        self._served: LRUCache[str, ServedResources] = LRUCache(KEPT)
        self._asking = asyncio.Lock()
        self._transport = transport
        self._clock = clock

    async def path_of(self, api_version: str, kind: str) -> str | None:
        """Return the API path of a kind; None when it is not served. Raise `KubeError`."""
        if not API_VERSION.fullmatch(api_version):
            return None
        async with self._asking:
            served = self._served.get(api_version)
            now_s = self._clock()
            if served is None or (kind not in served.paths and now_s >= served.asked_at_s + ASK_AGAIN_S):
                served = self._served[api_version] = ServedResources(await self._ask(api_version), now_s)
        return served.paths.get(kind)

    async def _ask(self, api_version: str) -> Mapping[str, str]:
        root = f"apis/{api_version}" if "/" in api_version else f"api/{api_version}"
        try:
            answer = orjson.loads(await self._transport.read(root, WHOLE))
            followed = [one for one in answer["resources"] if FOLLOWED.issubset(one["verbs"])]
            return {one["kind"]: f"{root}/{one['name']}" for one in followed if "/" not in one["name"]}
        except NotFoundError:
            return {}
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise BrokenStreamError(f"the API server does not say what {api_version} serves") from error
