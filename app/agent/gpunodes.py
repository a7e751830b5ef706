"""Writes GpuNodes to a real API server. Each write is one request; `publication` decides when to retry."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import orjson

from app.kube.access import Credentials
from app.kube.transport import MERGE_PATCH, Transport, TransportLimits
from app.model.seam import Resource


class KubeGpuNodes:
    """The GpuNodes of an API server: `async with await KubeGpuNodes.connect(kubeconfig) as gpu_nodes`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @classmethod
    async def connect(cls, kubeconfig: str | None) -> Self:
        """Read the credentials; None is the pod's service account. It sends no request. Raises `AccessError`."""
        credentials = Credentials(kubeconfig=kubeconfig)
        return cls(Transport(credentials, await credentials.read(), TransportLimits()))

    async def __aenter__(self) -> Self:
        """Return the client itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every connection."""
        await self._transport.close()

    async def create(self, body: Mapping[str, Any]) -> None:
        """Create a GpuNode; `ConflictError` when it exists."""
        await self._transport.write("POST", Resource.GPU_NODES.value, orjson.dumps(body))

    async def patch_status(self, name: str, body: Mapping[str, Any]) -> None:
        """Merge this into the status; `NotFoundError` when the GpuNode does not exist."""
        path = f"{Resource.GPU_NODES.value}/{quote(name, safe='')}/status"
        await self._transport.write("PATCH", path, orjson.dumps(body), MERGE_PATCH)
