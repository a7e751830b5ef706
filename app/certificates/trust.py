"""Keeps the API server's trust in us: the caBundle of every webhook of ours, whoever removes or edits it.

Each replica does so, and they cannot fight: all write the same bytes, those of the Secret, and look at the Secret again
after they have seen a bundle that differs, which tells a stale bundle from a stale memory.
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
    """What is asked of the cluster; raises `KubeError` and nothing else."""

    async def read_bundles(self, kind: WebhookKind, name: str) -> WebhookBundles:
        """Read whom the API server trusts; `NotFoundError` where there is no such configuration."""
        ...

    async def write_bundle(self, of: WebhookBundles, bundle: bytes) -> None:
        """Set the caBundle of every webhook and nothing else; `ConflictError` when somebody has written since."""
        ...


class Trust:
    """Two configurations of one name; without a name somebody else keeps them, and all is taken to be well."""

    def __init__(
        self,
        webhooks: WebhookConfigurations,
        name: str,
        metrics: Metrics,
        *,
        settle_s: float,
        clock: Callable[[], float],
    ) -> None:
        """`clock` is monotonic; `settle_s` is how long API servers may take to follow a configuration."""
        self._webhooks = webhooks
        self._kinds = tuple(WebhookKind) if name else ()
        self._name = name
        self._metrics = metrics
        self._settle_s = settle_s
        self._clock = clock
        # Since when the newest CA has been in every bundle, by its fingerprint; of one CA at a time.
        self._trusted_since: dict[str, float] = {}
        # A CA that API servers have been given the time to learn of; losing its bundle does not make it a stranger.
        self._settled = ""
        self._failures: dict[WebhookKind, str] = {}

    def is_settled(self, authority: CertificateAuthority) -> bool:
        """Whether every API server can be expected to trust this CA."""
        return not self._kinds or self._settled == authority.fingerprint

    def check(self) -> Check:
        """Return our line of /readyz."""
        return Check("ca-bundle", "; ".join(self._failures.values()))

    async def look(self, keyring: Keyring) -> Sequence[WebhookBundles]:
        """Look at every bundle; return those that are not what they have to be."""
        seen: list[WebhookBundles] = []
        unread = ""
        for kind in self._kinds:
            try:
                seen.append(await self._webhooks.read_bundles(kind, self._name))
            except NotFoundError:
                self._note(kind, f"there is no {kind} {self._name}: what it is for is not asked of us")
            except KubeError as error:
                unread = f"{kind} {self._name} cannot be read: {error}"
                self._note(kind, unread)
        if not unread:
            self._settle(seen, keyring.newest)
        return self._wrong(seen, keyring)

    async def repair(self, seen: Sequence[WebhookBundles], keyring: Keyring) -> None:
        """Write the right bundle where there is another."""
        for bundles in self._wrong(seen, keyring):
            try:
                await self._webhooks.write_bundle(bundles, keyring.bundle)
            except ConflictError:
                # Whoever wrote meanwhile may have written what we would have: the next look tells.
                continue
            except KubeError as error:
                self._note(bundles.kind, f"the caBundle of {bundles.kind} {self._name} cannot be set right: {error}")
            else:
                log.info("caBundle set right", kind=str(bundles.kind), name=self._name, ca=keyring.newest.fingerprint)

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
            log.warning("caBundle not kept", kind=str(kind), name=self._name, reason=failure)
            self._failures[kind] = failure
        else:
            del self._failures[kind]
        self._metrics.certificate_problems("ca-bundle", len(self._failures))
