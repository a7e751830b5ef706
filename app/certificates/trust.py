"""Maintains the caBundle of Leeboard's webhooks, also when someone else removes or edits it.

Every replica does this without conflicts: all write the same bytes, those of the Secret. A replica that sees a
different bundle reads the Secret again, to find out whether the bundle or its own cache is outdated.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from app.certificates.authority import CertificateAuthority
from app.certificates.keyring import Keyring
from app.model.installation import WebhookBundles, WebhookKind
from app.model.question import Check
from app.model.seam import ConflictError, KubeError, NotFoundError
from app.telemetry import Metrics

log = structlog.get_logger()


class WebhookConfigurations(Protocol):
    """The part of the cluster that is used. Each method raises only `KubeError`."""

    async def read_bundles(self, kind: WebhookKind, name: str) -> WebhookBundles:
        """Read the CAs that the API server trusts; `NotFoundError` when the configuration does not exist."""
        ...

    async def write_bundle(self, of: WebhookBundles, bundle: bytes) -> None:
        """Set only the caBundle of every webhook; `ConflictError` when the configuration has changed since."""
        ...


class Trust:
    """The two configurations of one name. Without a name another program maintains them, and no problem is reported."""

    def __init__(
        self,
        webhooks: WebhookConfigurations,
        name: str,
        metrics: Metrics,
        *,
        settle_s: float,
        clock: Callable[[], float],
    ) -> None:
        """`clock` is monotonic. `settle_s` is how long API servers may take to follow a configuration."""
        self._webhooks = webhooks
        self._kinds = tuple(WebhookKind) if name else ()
        self._name = name
        self._metrics = metrics
        self._settle_s = settle_s
        self._clock = clock
        # Since when every bundle has had the newest CA, by fingerprint; it has at most one entry.
        self._trusted_since: dict[str, float] = {}
        # The CA that API servers have had the time to learn. It stays trusted here when its bundle is lost.
        self._settled = ""
        self._failures: dict[WebhookKind, str] = {}

    def is_settled(self, authority: CertificateAuthority) -> bool:
        """Return whether every API server can be expected to trust this CA."""
        return not self._kinds or self._settled == authority.fingerprint

    def check(self) -> Check:
        """Return the line of /readyz."""
        return Check("ca-bundle", "; ".join(self._failures.values()))

    async def look(self, keyring: Keyring) -> Sequence[WebhookBundles]:
        """Read every bundle; return those with wrong content."""
        seen: list[WebhookBundles] = []
        unread = ""
        for kind in self._kinds:
            try:
                seen.append(await self._webhooks.read_bundles(kind, self._name))
            except NotFoundError:
                self._note(kind, f"there is no {kind} {self._name}, so the API server does not call its webhooks")
            except KubeError as error:
                unread = f"{kind} {self._name} cannot be read: {error}"
                self._note(kind, unread)
        if not unread:
            self._settle(seen, keyring.newest)
        return self._wrong(seen, keyring)

    async def repair(self, seen: Sequence[WebhookBundles], keyring: Keyring) -> None:
        """Write the right bundle where the content differs."""
        for bundles in self._wrong(seen, keyring):
            try:
                await self._webhooks.write_bundle(bundles, keyring.bundle)
            except ConflictError:
                # The other writer may have written the same content. The next look shows it.
                continue
            except KubeError as error:
                self._note(bundles.kind, f"the caBundle of {bundles.kind} {self._name} cannot be corrected: {error}")
            else:
                log.info("caBundle corrected", kind=str(bundles.kind), name=self._name, ca=keyring.newest.fingerprint)

    def _settle(self, seen: Sequence[WebhookBundles], newest: CertificateAuthority) -> None:
        carried = all(newest.certificate in bundle for bundles in seen for bundle in bundles.bundles.values())
        since = self._trusted_since.get(newest.fingerprint, self._clock())
        self._trusted_since = {newest.fingerprint: since} if carried else {}
        if carried and self._clock() >= since + self._settle_s:
            self._settled = newest.fingerprint

    def _wrong(self, seen: Sequence[WebhookBundles], keyring: Keyring) -> list[WebhookBundles]:
        right, wrong = keyring.bundle, []
        for bundles in seen:
            if any(bundle != right for bundle in bundles.bundles.values()):
                wrong.append(bundles)
            else:
                self._note(bundles.kind, "")
        return wrong

    def _note(self, kind: WebhookKind, failure: str) -> None:
        if failure == self._failures.get(kind, ""):
            return
        if failure:
            log.warning("caBundle cannot be maintained", kind=str(kind), name=self._name, reason=failure)
            self._failures[kind] = failure
        else:
            del self._failures[kind]
        self._metrics.certificates.problems("ca-bundle", len(self._failures))
