"""Writes GpuNodes to a real API server, each write one request; when to try again is the publication's business."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import orjson

from app.kube.access import Credentials
from app.kube.transport import MERGE_PATCH, Transport, TransportLimits
from app.model.seam import Resource


class KubeGpuNodes:
    """The GpuNodes of an API server; `async with await KubeGpuNodes.connect(kubeconfig) as gpu_nodes`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @classmethod
    async def connect(cls, kubeconfig: str | None) -> Self:
        """Read the credentials; None is our pod's service account. Nothing is sent yet. Raises `AccessError`."""
        credentials = Credentials(kubeconfig=kubeconfig)
        return cls(Transport(credentials, await credentials.read(), TransportLimits()))

    async def __aenter__(self) -> Self:
        """Return the GpuNodes themselves."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every connection."""
        await self._transport.close()

    async def create(self, body: Mapping[str, Any]) -> None:
        """Make a GpuNode; `ConflictError` when there is one."""
        await self._transport.write("POST", Resource.GPU_NODES.value, orjson.dumps(body))

    async def patch_status(self, name: str, body: Mapping[str, Any]) -> None:
        """Merge this into the status; `NotFoundError` when there is no such GpuNode."""
        path = f"{Resource.GPU_NODES.value}/{quote(name, safe='')}/status"
        await self._transport.write("PATCH", path, orjson.dumps(body), MERGE_PATCH)
