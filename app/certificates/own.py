"""Creates, rotates and distributes Leeboard's certificates: a CA of all replicas, and each replica's certificate.

A new CA is introduced in four steps, so that no handshake fails: 1. the Secret holds it, together with the previous
one; 2. every caBundle has both; 3. the bundles were read back, and the API servers had time to follow; 4. replicas sign
with it. The key of a serving certificate never leaves the memory of its replica.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from app.certificates.authority import CertificateAuthority, CertificateError, sign
from app.certificates.keyring import Keyring, Lifetimes, new_keyring, read_keyring
from app.certificates.served import ServedCertificate
from app.certificates.trust import Trust, TrustingObjects
from app.client.aggregated_paths import API_SERVICE
from app.model.installation import AggregationKind, BundleKind, Read, SharedSecret, WebhookKind
from app.model.question import Check
from app.model.seam import ConflictError, KubeError, NotFoundError
from app.settings import Settings
from app.telemetry import Metrics, Renewal

log = structlog.get_logger()

CA_LOOKS = 4
"""A CA stays for at least this many looks and settling times: standby replicas must follow it before the next one."""


class Installation(TrustingObjects, Protocol):
    """The part of the cluster that is used. Each method raises only `KubeError`."""

    async def read_settings(self, namespace: str, name: str) -> Mapping[str, str]:
        """Read the texts of a ConfigMap; `NotFoundError` when it does not exist."""
        ...

    async def read_secret(self, namespace: str, name: str, read: Read) -> SharedSecret:
        """Read the Secret; `NotFoundError` when it does not exist."""
        ...

    async def replace_secret(self, secret: SharedSecret, contents: Mapping[str, bytes]) -> None:
        """Set these keys; `ConflictError` when the Secret has changed since it was read."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The intervals of the checks. Tests shorten them; production uses these."""

    look_every_s: float = 2.0
    settle_s: float = 30.0
    """How far the watch of an API server may lag. The old CA stays in use meanwhile, so the wait has no cost."""


class Certificates:
    """The certificate source of one listener. Errors of the API server never end `run`."""

    def __init__(  # noqa: PLR0913 # collaborators come in through the constructor
        self,
        installation: Installation,
        served: ServedCertificate,
        settings: Settings,
        metrics: Metrics,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        pace: Pace | None = None,
    ) -> None:
        """`clock` is monotonic; `wall_clock` is in Unix seconds."""
        pace = pace or Pace()
        self._installation = installation
        self._served = served
        self._metrics = metrics
        self._clock = clock
        self._wall_clock = wall_clock
        self._sleep = sleep
        self._namespace, _, self._name = settings.certificate_secret.partition("/")
        self._names = settings.certificate_names
        self._look_every_s = pace.look_every_s
        self._lifetimes = Lifetimes(
            ca_rotation_s=max(settings.ca_rotation_s, CA_LOOKS * (pace.look_every_s + pace.settle_s)),
            certificate_rotation_s=settings.certificate_rotation_s,
        )
        self._trust = Trust(installation, _trusting(settings), metrics, settle_s=pace.settle_s, clock=clock)
        # The last known content of the Secret; only `_look` changes it.
        self._keyring: Keyring | None = None
        # The signer and the time of the current certificate; only `_sign_if_due` changes them.
        self._signed_by, self._signed_at = "", 0.0

    def checks(self) -> Sequence[Check]:
        """Return the lines of /readyz."""
        return (*self._served.checks(), self._trust.check())

    async def run(self) -> None:
        """Check the Secret and the bundles without end, and sign whenever a certificate is due."""
        while True:
            problem = await self._look()
            next_look_at = self._clock() + self._look_every_s
            while self._clock() < next_look_at:
                self._served.note(self._sign_if_due() or problem)
                await self._sleep(min(next_look_at - self._clock(), self._lifetimes.certificate_rotation_s))

    async def _look(self) -> str:
        """Make the Secret, the bundles and the cached keyring agree; return what prevents it."""
        try:
            await self._agree()
        except NotFoundError:
            return f"there is no Secret {self._namespace}/{self._name}: create an empty one"
        except ConflictError:
            # Another replica wrote first. The next look reads its content.
            return ""
        except KubeError as error:
            return f"Secret {self._namespace}/{self._name} cannot be read or written: {error}"
        return ""

    async def _agree(self) -> None:
        keyring = await self._shared(Read.CACHED)
        wrong = await self._trust.look(keyring)
        if wrong:
            # Another replica may have created and distributed a CA since the Secret was read.
            await self._trust.repair(wrong, await self._shared(Read.LATEST))

    async def _shared(self, read: Read) -> Keyring:
        """Return the content of the Secret, after writing any required change."""
        secret = await self._installation.read_secret(self._namespace, self._name, read)
        found = self._read(secret)
        keyring = self._wanted(found)
        if keyring != found:
            if read is Read.CACHED:
                return await self._shared(Read.LATEST)
            await self._installation.replace_secret(secret, keyring.contents)
            self._metrics.certificates.renewed(Renewal.CA)
            log.info("CA created", ca=keyring.newest.fingerprint, secret=f"{self._namespace}/{self._name}")
        self._keyring = keyring
        return keyring

    def _read(self, secret: SharedSecret) -> Keyring | None:
        # It is almost always the same as at the last look, two seconds ago.
        known = self._keyring
        if known is not None and known.contents.items() <= secret.contents.items():
            return known
        return read_keyring(secret.contents)

    def _wanted(self, found: Keyring | None) -> Keyring:
        now, lifetimes = self._wall_clock(), self._lifetimes
        if found is None:
            # An emptied Secret gets a new CA. The CA in use stays trusted, as in any rotation.
            used = self._keyring
            return used.followed(now=now, lifetimes=lifetimes) if used else new_keyring(now=now, lifetimes=lifetimes)
        is_due = found.is_due(now=now, lifetimes=lifetimes) and self._trust.is_settled(found.newest)
        if is_due or now >= found.newest.expires_at:
            return found.followed(now=now, lifetimes=lifetimes)
        return found

    def _sign_if_due(self) -> str:
        """Sign with the newest trusted CA, if it has changed or a rotation is due; return what fails."""
        if self._keyring is None:
            return ""
        signer, now = self._signer(self._keyring), self._wall_clock()
        age_s = now - self._signed_at
        if signer.fingerprint == self._signed_by and 0 <= age_s < self._lifetimes.certificate_rotation_s:
            return ""
        try:
            self._served.use(sign(signer, self._names, now=now, valid_s=self._lifetimes.certificate_s))
        except (CertificateError, ValueError) as error:
            return f"no certificate for {', '.join(sorted(self._names))}: {error}"
        self._signed_by, self._signed_at = signer.fingerprint, now
        return ""

    def _signer(self, keyring: Keyring) -> CertificateAuthority:
        previous = keyring.previous
        if previous is None or self._trust.is_settled(keyring.newest):
            return keyring.newest
        may_sign = previous.key and self._wall_clock() < previous.expires_at
        return previous if may_sign else keyring.newest


def _trusting(settings: Settings) -> Mapping[BundleKind, str]:
    """Return the names of the objects whose caBundle Leeboard maintains."""
    names: dict[BundleKind, str] = {}
    if settings.webhook_configuration:
        names = dict.fromkeys(WebhookKind, settings.webhook_configuration)
    if settings.aggregated_port is not None:
        names[AggregationKind.API_SERVICE] = API_SERVICE
    return names
