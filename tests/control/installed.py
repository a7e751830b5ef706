"""A Secret and objects with a caBundle in memory, with the API server's version rules; the test can make it fail."""

from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from app.model.installation import BundleKind, CaBundles, Read, SharedSecret, WebhookKind
from app.model.seam import ConflictError, KubeError, NotFoundError

NAME = "leeboard"
SECRET = "leeboard/leeboard-ca"


@dataclass
class Hooks:
    """One webhook configuration: the caBundle of each webhook."""

    bundles: dict[str, bytes] = field(default_factory=lambda: {"a.leeboard.dev": b"", "b.leeboard.dev": b""})
    version: int = 1


class FakeInstallation:
    """The answers of one API server; each error in `errors` is raised once, before anything is done."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] | None = {}
        self.remembered: dict[str, bytes] | None = None
        """What a cached read shows while it differs from the store."""
        self.version = 1
        self.hooks: dict[BundleKind, Hooks] = {kind: Hooks() for kind in WebhookKind}
        self.writes: Counter[str] = Counter()
        self.errors: defaultdict[str, deque[KubeError]] = defaultdict(deque)

    @property
    def bundles(self) -> set[bytes]:
        """All caBundles."""
        return {bundle for hooks in self.hooks.values() for bundle in hooks.bundles.values()}

    async def read_secret(self, namespace: str, name: str, read: Read) -> SharedSecret:
        self._fail("read_secret")
        if self.contents is None or f"{namespace}/{name}" != SECRET:
            raise NotFoundError("404 secrets not found")
        cached = self.remembered if read is Read.CACHED else None
        version = self.version if cached is None else 0
        return SharedSecret(contents=dict(cached or self.contents), raw={"version": version})

    async def read_settings(self, namespace: str, name: str) -> Mapping[str, str]:
        raise NotFoundError(f"404 configmaps {namespace}/{name} not found")

    async def replace_secret(self, secret: SharedSecret, contents: Mapping[str, bytes]) -> None:
        self._fail("replace_secret")
        if secret.raw["version"] != self.version:
            raise ConflictError("409 the object has been modified")
        assert self.contents is not None
        self.contents |= contents
        self.version += 1
        self.writes["secret"] += 1

    async def read_bundles(self, kind: BundleKind, name: str) -> CaBundles:
        self._fail("read_bundles")
        if kind not in self.hooks:
            raise NotFoundError("404 configuration not found")
        hooks = self.hooks[kind]
        return CaBundles(kind=kind, name=name, version=str(hooks.version), bundles=dict(hooks.bundles))

    async def write_bundle(self, of: CaBundles, bundle: bytes) -> None:
        self._fail("write_bundle")
        hooks = self.hooks[of.kind]
        if of.version != str(hooks.version):
            raise ConflictError("409 the object has been modified")
        hooks.bundles = dict.fromkeys(hooks.bundles, bundle)
        hooks.version += 1
        self.writes["bundle"] += 1

    def edit(self, kind: BundleKind, bundle: bytes) -> None:
        """Write another caBundle, as a user would."""
        self.hooks[kind].bundles = dict.fromkeys(self.hooks[kind].bundles, bundle)
        self.hooks[kind].version += 1

    def _fail(self, verb: str) -> None:
        if self.errors[verb]:
            raise self.errors[verb].popleft()
