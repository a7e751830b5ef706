"""kube-scheduler's side of the extender wire: its requests, the replies that it accepts, and its errors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from app.model.seam import RawObject

FILTER_TIMEOUT_S = 3.0
BIND_TIMEOUT_S = 60.0
"""Long, because the bind of a gang's member waits for the others. Both are the values of Leeboard's extender entries.
"""

HEADERS = {"Content-Type": "application/json"}


class ExtenderError(Exception):
    """The extender did not answer, or its answer is an error of the whole cycle for kube-scheduler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filtered:
    """The nodes that remain, and why the others do not."""

    names: tuple[str, ...]
    reasons: Mapping[str, str] = field(default_factory=dict)


class ExtenderWebhooks:
    """One extender at one address. There are as many connections as waiting binds."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url.rstrip("/")

    async def filter(self, pod: RawObject, names: Sequence[str]) -> Filtered:
        """Return the nodes that remain; raise `ExtenderError`."""
        reply = _object(await self._post("filter", _arguments(pod, names), FILTER_TIMEOUT_S))
        kept = tuple(reply.get("NodeNames") or ())
        if invented := set(kept) - set(names):
            raise ExtenderError(f"extender filtered out nodes that were not offered: {sorted(invented)}")
        failed = (reply.get("FailedNodes") or {}) | (reply.get("FailedAndUnresolvableNodes") or {})
        return Filtered(names=kept, reasons=failed)

    async def prioritize(self, pod: RawObject, names: Sequence[str]) -> Mapping[str, int]:
        """Return the scores. An error counts as no score, as in kube-scheduler."""
        try:
            reply = await self._post("prioritize", _arguments(pod, names), FILTER_TIMEOUT_S)
            return {entry["Host"]: entry["Score"] for entry in reply if isinstance(entry["Score"], int)}
        except (ExtenderError, KeyError, TypeError):
            return {}

    async def bind(self, pod: RawObject, node: str) -> None:
        """Bind the pod through the extender; raise `ExtenderError`."""
        metadata = pod["metadata"]
        namespace = metadata.get("namespace", "")
        question = {"PodName": metadata["name"], "PodNamespace": namespace, "PodUID": metadata["uid"], "Node": node}
        _object(await self._post("bind", question, BIND_TIMEOUT_S))

    async def _post(self, verb: str, question: object, timeout_s: float) -> Any:
        limit = aiohttp.ClientTimeout(total=timeout_s)
        body = orjson.dumps(question)
        try:
            async with self._session.post(f"{self._url}/{verb}", data=body, headers=HEADERS, timeout=limit) as reply:
                if reply.status != 200:  # noqa: PLR2004 # kube-scheduler accepts no other status
                    raise ExtenderError(f"{verb} failed with status {reply.status}")
                return orjson.loads(await reply.read())
        except (aiohttp.ClientError, TimeoutError, orjson.JSONDecodeError) as cause:
            raise ExtenderError(f"{verb}: {cause or type(cause).__name__}") from cause


def _arguments(pod: RawObject, names: Sequence[str]) -> RawObject:
    # kube-scheduler's informer removes these two fields.
    bare = {name: value for name, value in pod.items() if name not in ("apiVersion", "kind")}
    return {"Pod": bare, "Nodes": None, "NodeNames": list(names)}


def _object(reply: Any) -> RawObject:
    if not isinstance(reply, dict):
        raise ExtenderError(f"expected an object, got {type(reply).__name__}")
    if error := reply.get("Error"):
        raise ExtenderError(str(error))
    return reply
