"""Reads and writes the installation's own objects by name: one Secret, two webhook configurations, one APIService.

The service account needs `get` and `update` of the Secret, `get` and `patch` of the others, by resourceNames.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import orjson

from app.kube.errors import BrokenStreamError
from app.kube.transport import STRATEGIC_MERGE_PATCH, Transport
from app.model.installation import AggregationKind, BundleKind, CaBundles, Read, SharedSecret
from app.model.seam import RawObject

QUERY: Mapping[Read, str] = {Read.CACHED: "?resourceVersion=0", Read.LATEST: ""}


class KubeInstallation:
    """Uses the connections of a `KubeCluster`, which creates this object and closes the connections."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def read_secret(self, namespace: str, name: str, read: Read) -> SharedSecret:
        """Read the Secret; raise `KubeError`, or `NotFoundError` when it does not exist."""
        answer = await self._transport.read(_secret_path(namespace, name) + QUERY[read])
        try:
            raw = orjson.loads(answer)
            contents = {key: b64decode(value) for key, value in (raw.get("data") or {}).items()}
        except (ValueError, TypeError, AttributeError) as error:
            # Not `from error`: its text may quote the Secret.
            raise BrokenStreamError(f"the API server's answer is no Secret: {type(error).__name__}") from None
        return SharedSecret(contents=contents, raw=raw)

    async def replace_secret(self, secret: SharedSecret, contents: Mapping[str, bytes]) -> None:
        """Set these keys and keep the others as they were read; `ConflictError` when the Secret has changed since."""
        kept = secret.raw.get("data") or {}
        body = {**secret.raw, "data": {**kept, **{key: b64encode(value).decode() for key, value in contents.items()}}}
        metadata = secret.raw["metadata"]
        path = _secret_path(metadata["namespace"], metadata["name"])
        await self._transport.write("PUT", path, orjson.dumps(body))

    async def read_settings(self, namespace: str, name: str) -> Mapping[str, str]:
        """Read the texts of a ConfigMap; raise `KubeError`, or `NotFoundError` when it does not exist."""
        path = f"api/v1/namespaces/{quote(namespace, safe='')}/configmaps/{quote(name, safe='')}"
        answer = await self._transport.read(path + QUERY[Read.CACHED])
        try:
            return {key: str(value) for key, value in (orjson.loads(answer).get("data") or {}).items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise BrokenStreamError("the API server's answer is no ConfigMap") from error

    async def read_bundles(self, kind: BundleKind, name: str) -> CaBundles:
        """Read the trusted CAs from the API server's cache; `NotFoundError` when the object does not exist."""
        answer = await self._transport.read(_path(kind, name) + QUERY[Read.CACHED])
        try:
            raw = orjson.loads(answer)
            if kind is AggregationKind.API_SERVICE:
                bundles = {"": _bundle(raw["spec"])}
            else:
                bundles = {hook["name"]: _bundle(hook["clientConfig"]) for hook in raw.get("webhooks") or ()}
            version = raw["metadata"]["resourceVersion"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BrokenStreamError(f"the API server's answer is no {kind}") from error
        return CaBundles(kind=kind, name=name, version=version, bundles=bundles)

    async def write_bundle(self, of: CaBundles, bundle: bytes) -> None:
        """Set only the caBundle of every webhook, or of the API; `ConflictError` when the object has changed since."""
        config = {"caBundle": b64encode(bundle).decode()}
        hooks = [{"name": name, "clientConfig": config} for name in of.bundles]
        change = {"spec": config} if of.kind is AggregationKind.API_SERVICE else {"webhooks": hooks}
        body: RawObject = {"metadata": {"resourceVersion": of.version}, **change}
        path = f"{_path(of.kind, of.name)}?fieldManager=leeboard"
        await self._transport.write("PATCH", path, orjson.dumps(body), STRATEGIC_MERGE_PATCH)


def _bundle(config: Mapping[str, Any]) -> bytes:
    return b64decode(config.get("caBundle") or "")


def _secret_path(namespace: str, name: str) -> str:
    return f"api/v1/namespaces/{quote(namespace, safe='')}/secrets/{quote(name, safe='')}"


def _path(kind: BundleKind, name: str) -> str:
    group = "apiregistration" if kind is AggregationKind.API_SERVICE else "admissionregistration"
    return f"apis/{group}.k8s.io/v1/{kind.value}/{quote(name, safe='')}"
