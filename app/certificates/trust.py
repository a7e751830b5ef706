"""Maintains the caBundle of Leeboard's webhooks and of its aggregated API, also when someone else removes or edits it.

Every replica does this without conflicts: all write the same bytes, those of the Secret. A replica that sees a
different bundle reads the Secret again, to find out whether the bundle or its own cache is outdated.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import structlog

from app.certificates.authority import CertificateAuthority
from app.certificates.keyring import Keyring
from app.model.installation import BundleKind, CaBundles
from app.model.question import Check
from app.model.seam import ConflictError, KubeError, NotFoundError
from app.telemetry import Metrics

log = structlog.get_logger()


class TrustingObjects(Protocol):
    """The part of the cluster that is used. Each method raises only `KubeError`."""

    async def read_bundles(self, kind: BundleKind, name: str) -> CaBundles:
        """Read the CAs that the API server trusts; `NotFoundError` when the object does not exist."""
        ...

    async def write_bundle(self, of: CaBundles, bundle: bytes) -> None:
        """Set only the caBundle, of every webhook; `ConflictError` when the object has changed since."""
        ...


class Trust:
    """The objects with a caBundle. Another program maintains those that are not named, and no problem is reported."""

    def __init__(
        self,
        objects: TrustingObjects,
        names: Mapping[BundleKind, str],
        metrics: Metrics,
        *,
        settle_s: float,
        clock: Callable[[], float],
    ) -> None:
        """`names` are those of the objects. `clock` is monotonic.

        `settle_s` is how long API servers may take to follow an object.
        """
        self._objects = objects
        self._names = names
        self._metrics = metrics
        self._settle_s = settle_s
        self._clock = clock
        # Since when every bundle has had the newest CA, by fingerprint; it has at most one entry.
        self._trusted_since: dict[str, float] = {}
        # The CA that API servers have had the time to learn. It stays trusted here when its bundle is lost.
        self._settled = ""
        self._failures: dict[BundleKind, str] = {}

    def is_settled(self, authority: CertificateAuthority) -> bool:
        """Return whether every API server can be expected to trust this CA."""
        return not self._names or self._settled == authority.fingerprint

    def check(self) -> Check:
        """Return the line of /readyz."""
        return Check("ca-bundle", "; ".join(self._failures.values()))

    async def look(self, keyring: Keyring) -> Sequence[CaBundles]:
        """Read every bundle; return those with wrong content."""
        seen: list[CaBundles] = []
        unread = ""
        for kind, name in self._names.items():
            try:
                seen.append(await self._objects.read_bundles(kind, name))
            except NotFoundError:
                self._note(kind, f"there is no {kind} {name}, so the API server does not call what it names")
            except KubeError as error:
                unread = f"{kind} {name} cannot be read: {error}"
                self._note(kind, unread)
        if not unread:
            self._settle(seen, keyring.newest)
        return self._wrong(seen, keyring)

    async def repair(self, seen: Sequence[CaBundles], keyring: Keyring) -> None:
        """Write the right bundle where the content differs."""
        for bundles in self._wrong(seen, keyring):
            try:
                await self._objects.write_bundle(bundles, keyring.bundle)
            except ConflictError:
                # The other writer may have written the same content. The next look shows it.
                continue
            except KubeError as error:
                self._note(bundles.kind, f"the caBundle of {bundles.kind} {bundles.name} cannot be corrected: {error}")
            else:
                log.info("caBundle corrected", kind=str(bundles.kind), name=bundles.name, ca=keyring.newest.fingerprint)

    def _settle(self, seen: Sequence[CaBundles], newest: CertificateAuthority) -> None:
        carried = all(newest.certificate in bundle for bundles in seen for bundle in bundles.bundles.values())
        since = self._trusted_since.get(newest.fingerprint, self._clock())
        self._trusted_since = {newest.fingerprint: since} if carried else {}
        if carried and self._clock() >= since + self._settle_s:
            self._settled = newest.fingerprint

    def _wrong(self, seen: Sequence[CaBundles], keyring: Keyring) -> list[CaBundles]:
        right, wrong = keyring.bundle, []
        for bundles in seen:
            if any(bundle != right for bundle in bundles.bundles.values()):
                wrong.append(bundles)
            else:
                self._note(bundles.kind, "")
        return wrong

    def _note(self, kind: BundleKind, failure: str) -> None:
        if failure == self._failures.get(kind, ""):
            return
        if failure:
            log.warning("caBundle cannot be maintained", kind=str(kind), name=self._names[kind], reason=failure)
            self._failures[kind] = failure
        else:
            del self._failures[kind]
        self._metrics.certificates.problems("ca-bundle", len(self._failures))
