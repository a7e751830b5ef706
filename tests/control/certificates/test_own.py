"""Replicas that create, share and rotate certificates, in virtual time; the fake installation is the API server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
from cryptography import x509

from app.certificates.authority import Certificate
from app.certificates.keyring import read_keyring
from app.certificates.own import Certificates
from app.certificates.served import ServedCertificate
from app.model.installation import AggregationKind, WebhookKind
from app.model.seam import ConflictError, ForbiddenError, OutcomeUnknownError, UnavailableError
from app.settings import Settings
from app.telemetry import Metrics
from tests.control.installed import NAME, SECRET, FakeInstallation, Hooks

START = 1_800_000_000.0
DAY = 24 * 3600.0
ROTATION, CA_ROTATION = 600.0, 3000.0
SETTLED_S = 40.0
"""A check, the settling time, and a check."""


@dataclass
class Shown:
    """A listener that records what it is given to serve."""

    certificates: list[Certificate] = field(default_factory=list)

    def use(self, certificate: Certificate) -> None:
        self.certificates.append(certificate)


class Replica:
    """One Leeboard, reduced to its certificates."""

    def __init__(self, installation: FakeInstallation, **settings: object) -> None:
        self.shown, self.metrics, self.clock_is_off_s = Shown(), Metrics(), 0.0
        defaults: dict[str, object] = {
            "certificate_secret": SECRET,
            "webhook_configuration": NAME,
            "certificate_rotation_s": ROTATION,
            "ca_rotation_s": CA_ROTATION,
        }
        clock = asyncio.get_running_loop().time

        def wall_clock() -> float:
            return START + clock() + self.clock_is_off_s

        self.certificates = Certificates(
            installation,
            ServedCertificate(self.shown, self.metrics, listener="admission", wall_clock=wall_clock),
            Settings.model_validate(defaults | settings),
            self.metrics,
            clock=clock,
            wall_clock=wall_clock,
        )

    @property
    def serving(self) -> Certificate:
        return self.shown.certificates[-1]

    @property
    def is_trusted(self) -> Callable[[bytes], bool]:
        """Whether a client with this bundle would accept the served certificate."""
        return lambda bundle: is_signed(self.serving, bundle)

    def failing(self) -> dict[str, str]:
        return {check.name: check.failure for check in self.certificates.checks() if not check.passed}

    def metric(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


def is_signed(certificate: Certificate, bundle: bytes) -> bool:
    leaf = x509.load_pem_x509_certificate(certificate.chain)
    for ca in x509.load_pem_x509_certificates(bundle) if bundle else ():
        with suppress(Exception):
            leaf.verify_directly_issued_by(ca)
            return True
    return False


@asynccontextmanager
async def running(*replicas: Replica) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(replica.certificates.run()) for replica in replicas]
    await passes(1)
    yield
    for task in tasks:
        task.cancel()
    # A task that ended by itself ended with an error.
    await asyncio.gather(*tasks, return_exceptions=True)
    assert all(task.cancelled() for task in tasks)


async def passes(seconds: float) -> None:
    await asyncio.sleep(seconds)


@pytest.fixture
def installation() -> FakeInstallation:
    return FakeInstallation()


async def test_an_empty_secret_becomes_a_ca_that_every_webhook_trusts(installation: FakeInstallation) -> None:
    replica = Replica(installation)
    async with running(replica):
        assert installation.bundles == {installation.contents["ca.crt"]}  # type: ignore[index] # it has some
        assert all(map(replica.is_trusted, installation.bundles))
        assert replica.failing() == {}
    assert installation.writes == {"secret": 1, "bundle": 2}


@pytest.mark.parametrize("with_webhooks", [True, False])
async def test_the_aggregated_api_trusts_the_same_ca_before_it_signs(
    installation: FakeInstallation, *, with_webhooks: bool
) -> None:
    api = installation.hooks[AggregationKind.API_SERVICE] = Hooks({"": b""})
    named = {} if with_webhooks else {"webhook_configuration": ""}
    replica = Replica(installation, aggregated_port=9444, **named)
    async with running(replica):
        first = replica.serving.chain
        assert replica.is_trusted(api.bundles[""])
        installation.errors["write_bundle"].extend([ForbiddenError("403 no patch")] * 10_000)
        await passes(CA_ROTATION + SETTLED_S)
        # Nobody trusts the next CA, so the one before signs.
        assert replica.is_trusted(api.bundles[""])
        assert "APIService v1.view.leeboard.dev cannot be corrected" in replica.failing()["ca-bundle"]
    assert replica.serving.chain != first


async def test_the_certificate_covers_the_names_of_the_service(installation: FakeInstallation) -> None:
    replica = Replica(installation, certificate_names="leeboard.leeboard.svc,10.0.0.1")
    async with running(replica):
        leaf = x509.load_pem_x509_certificate(replica.serving.chain)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["leeboard.leeboard.svc"]
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]


@pytest.mark.parametrize("rubbish", [{"ca.crt": b"rubbish", "ca.key": b"rubbish"}, {"ca.crt": b"", "ca.key": b""}])
async def test_an_unreadable_secret_is_written_again(rubbish: dict[str, bytes], installation: FakeInstallation) -> None:
    installation.contents = {**rubbish, "theirs": b"kept"}
    replica = Replica(installation)
    async with running(replica):
        assert all(map(replica.is_trusted, installation.bundles))
    assert installation.contents["theirs"] == b"kept"


async def test_replicas_that_start_together_share_one_ca(installation: FakeInstallation) -> None:
    replicas = [Replica(installation) for _ in range(3)]
    async with running(*replicas):
        await passes(SETTLED_S)
        assert installation.writes == {"secret": 1, "bundle": 2}
        for replica in replicas:
            assert all(map(replica.is_trusted, installation.bundles))
            assert replica.failing() == {}


async def test_the_loser_of_a_race_for_the_secret_reads_what_the_winner_wrote(installation: FakeInstallation) -> None:
    installation.errors["replace_secret"].append(ConflictError("409 the object has been modified"))
    replica = Replica(installation)
    async with running(replica):
        await passes(3)
        assert all(map(replica.is_trusted, installation.bundles))
        assert replica.failing() == {}


async def test_a_write_of_unknown_outcome_is_looked_up(installation: FakeInstallation) -> None:
    installation.errors["replace_secret"].append(OutcomeUnknownError("timed out"))
    replica = Replica(installation)
    async with running(replica):
        assert replica.shown.certificates == []
        await passes(3)
        assert all(map(replica.is_trusted, installation.bundles))


async def test_a_serving_certificate_is_replaced_long_before_it_expires(installation: FakeInstallation) -> None:
    replica = Replica(installation)
    async with running(replica):
        first = replica.serving
        await passes(ROTATION)
        assert replica.serving.serial != first.serial
        assert replica.metric("leeboard_certificate_renewals_total", kind="serving") == 2
        assert replica.metric("leeboard_certificate_expires_seconds", listener="admission") == (
            replica.serving.expires_at
        )
    assert installation.writes["secret"] == 1


@pytest.mark.parametrize(("rotation_s", "valid_s"), [(1.0, DAY), (30 * DAY, 90 * DAY)])
async def test_a_certificate_is_valid_three_times_as_long_as_it_is_used_and_at_least_a_day(
    rotation_s: float, valid_s: float, installation: FakeInstallation
) -> None:
    replica = Replica(installation, certificate_rotation_s=rotation_s)
    async with running(replica):
        assert replica.serving.expires_at == pytest.approx(START + valid_s, abs=5)


async def test_every_webhook_trusts_a_new_ca_before_any_replica_signs_with_it(installation: FakeInstallation) -> None:
    replicas = [Replica(installation) for _ in range(2)]
    trusted: list[bytes] = []
    async with running(*replicas):
        (before,) = installation.bundles
        await passes(CA_ROTATION - 10)
        # One check after the other: the bundle in force a settling time ago trusts every served certificate.
        for _ in range(60):
            await passes(1)
            trusted.append(min(installation.bundles, key=len))
            stale = trusted[-20] if len(trusted) >= 20 else before
            assert all(replica.is_trusted(stale) for replica in replicas)
        (after,) = installation.bundles
        assert after.endswith(before)
        assert all(replica.is_trusted(after.removesuffix(before)) for replica in replicas)
    assert installation.writes == {"secret": 2, "bundle": 4}


async def test_the_ca_before_the_last_is_no_longer_trusted(installation: FakeInstallation) -> None:
    replica = Replica(installation)
    async with running(replica):
        (first,) = installation.bundles
        await passes(2 * CA_ROTATION + 2 * SETTLED_S)
        (bundle,) = installation.bundles
        assert (bundle.count(b"BEGIN"), first in bundle) == (2, False)
        assert replica.is_trusted(bundle)


async def test_a_ca_is_never_rotated_before_the_last_one_is_trusted(installation: FakeInstallation) -> None:
    replica = Replica(installation, ca_rotation_s=1.0)
    async with running(replica):
        await passes(SETTLED_S)
        installation.errors["write_bundle"].extend([ForbiddenError("403 no patch")] * 10_000)
        await passes(1000)
        made = installation.writes["secret"]
        await passes(5000)
        assert installation.writes["secret"] == made


async def test_a_replica_that_starts_during_a_rotation_signs_with_a_trusted_ca(installation: FakeInstallation) -> None:
    async with running(Replica(installation)):
        (before,) = installation.bundles
        await passes(CA_ROTATION)
    assert before not in installation.bundles
    late = Replica(installation)
    async with running(late):
        assert late.is_trusted(before)
        await passes(SETTLED_S)
        assert not late.is_trusted(before)


async def test_without_webhook_configurations_the_newest_ca_signs_at_once(installation: FakeInstallation) -> None:
    replica = Replica(installation, webhook_configuration="")
    async with running(replica):
        await passes(CA_ROTATION)
        assert installation.contents is not None
        keyring = read_keyring(installation.contents)
        assert keyring is not None
        assert keyring.previous is not None
        assert replica.is_trusted(keyring.newest.certificate)
        assert replica.failing() == {}
    assert installation.bundles == {b""}


async def test_an_emptied_secret_gets_a_new_ca_and_breaks_nothing(installation: FakeInstallation) -> None:
    replicas = [Replica(installation) for _ in range(2)]
    async with running(*replicas):
        await passes(SETTLED_S)
        (before,) = installation.bundles
        installation.contents, installation.version = {}, installation.version + 1
        await passes(3)
        (after,) = installation.bundles
        assert after != before
        assert after.endswith(before)
        assert all(replica.is_trusted(before) for replica in replicas)
        await passes(SETTLED_S)
        assert all(replica.is_trusted(after.removesuffix(before)) for replica in replicas)
    assert installation.writes["secret"] == 2


@pytest.mark.parametrize("edited", [b"", b"-----BEGIN CERTIFICATE-----\nrubbish"])
async def test_an_edited_ca_bundle_is_corrected_within_seconds(edited: bytes, installation: FakeInstallation) -> None:
    replicas = [Replica(installation) for _ in range(2)]
    async with running(*replicas):
        await passes(SETTLED_S)
        (right,) = installation.bundles
        serials = [replica.serving.serial for replica in replicas]
        installation.edit(WebhookKind.MUTATING, edited)
        await passes(3)
        assert installation.bundles == {right}
        # The certificate was not the reason.
        assert [replica.serving.serial for replica in replicas] == serials
    assert installation.writes["bundle"] == 3


async def test_a_replica_with_an_old_copy_of_the_secret_undoes_nothing(installation: FakeInstallation) -> None:
    async with running(Replica(installation)):
        assert installation.contents is not None
        old = dict(installation.contents)
        await passes(CA_ROTATION + SETTLED_S)
    writes = installation.writes.copy()
    installation.remembered = old
    replica = Replica(installation)
    async with running(replica):
        await passes(10)
        assert all(map(replica.is_trusted, installation.bundles))
    assert installation.writes == writes


async def test_missing_webhook_configurations_are_reported_and_corrected_once_they_exist(
    installation: FakeInstallation,
) -> None:
    hooks = installation.hooks.pop(WebhookKind.VALIDATING)
    replica = Replica(installation)
    async with running(replica):
        assert list(replica.failing()) == ["ca-bundle"]
        assert "there is no ValidatingWebhookConfiguration leeboard" in replica.failing()["ca-bundle"]
        assert replica.metric("leeboard_certificate_problems", of="ca-bundle") == 1
        installation.hooks[WebhookKind.VALIDATING] = hooks
        await passes(5)
        assert all(map(replica.is_trusted, installation.bundles))
        assert replica.failing() == {}


async def test_missing_rights_are_named_and_serving_continues(installation: FakeInstallation) -> None:
    installation.errors["write_bundle"].extend([ForbiddenError("403 cannot patch resource")] * 2)
    replica = Replica(installation)
    async with running(replica):
        assert "cannot patch resource" in replica.failing()["ca-bundle"]
        assert replica.shown.certificates
        await passes(5)
        assert replica.failing() == {}


async def test_a_missing_secret_is_reported_and_gives_no_certificate(installation: FakeInstallation) -> None:
    installation.contents = None
    replica = Replica(installation)
    async with running(replica):
        assert "there is no Secret leeboard/leeboard-ca: create an empty one" in replica.failing()["certificate"]
        installation.contents = {}
        await passes(3)
        assert replica.failing() == {}


async def test_certificates_are_renewed_while_the_api_server_is_unavailable(installation: FakeInstallation) -> None:
    replica = Replica(installation)
    async with running(replica):
        first = replica.serving
        installation.errors["read_secret"].extend([UnavailableError("down")] * int(ROTATION))
        await passes(ROTATION)
        assert replica.serving.serial != first.serial
        assert "down" in replica.failing()["certificate-renewal"]
        assert "certificate" not in replica.failing()


@pytest.mark.parametrize("off_s", [-2 * 365 * DAY, 100 * DAY])
async def test_a_clock_that_jumps_gets_a_certificate_of_its_time(off_s: float, installation: FakeInstallation) -> None:
    replica = Replica(installation)
    async with running(replica):
        replica.clock_is_off_s = off_s
        await passes(3)
        now = START + off_s
        assert replica.serving.begins_at <= now < replica.serving.expires_at
        assert replica.failing() == {}


async def test_names_that_do_not_fit_in_a_certificate_are_reported(installation: FakeInstallation) -> None:
    replica = Replica(installation, certificate_names="löcalhost")
    async with running(replica):
        assert "no certificate for löcalhost" in replica.failing()["certificate"]
