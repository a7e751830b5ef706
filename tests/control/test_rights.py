import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from structlog.testing import capture_logs

from app import grouping
from app.control.leadership.rights import SOON_S, Rights, rights_of, rights_to_owners
from app.model.rights import ALWAYS, ASKING, Right
from app.model.seam import ForbiddenError, UnavailableError
from app.settings import Settings

EVICT = next(right for right in ALWAYS if right.resource == "pods/eviction")
EVICTIONS_MISSING = (
    'may not create pods/eviction (apiGroup ""): no pod is evicted, so nothing is reclaimed, preempted or consolidated'
)
BARE = Settings(gpu_sharing=False, pod_grouping=False, anonymous_reads=True)
"""An installation that uses no optional feature."""
A_ROUND = len(ALWAYS)


class FakeReviews:
    """Allows everything except what the test revokes."""

    def __init__(self, *denied: Right) -> None:
        self.denied = set(denied)
        self.down = False
        self.asked = 0
        self.forbidden = asyncio.Event()

    async def allows(self, right: Right) -> bool:
        if self.down:
            raise UnavailableError("connection refused")
        self.asked += 1
        if ASKING in self.denied:
            raise ForbiddenError("not even that")
        return right not in self.denied

    def refuse(self) -> None:
        self.forbidden.set()


@asynccontextmanager
async def running(reviews: FakeReviews, settings: Settings | None = None) -> AsyncIterator[Rights]:
    rights = Rights(reviews, settings or BARE)
    task = asyncio.create_task(rights.run())
    await passes(0.01)
    yield rights
    task.cancel()


async def passes(seconds: float) -> None:
    await asyncio.sleep(seconds)


def failure(rights: Rights) -> str:
    (check,) = rights.checks()
    assert check.name == "rights"
    return check.failure


def degraded(rights: Rights) -> str:
    (check,) = rights.checks()
    return check.degraded


def test_the_check_of_rights_fails_before_the_first_answer() -> None:
    assert "have not been checked yet" in failure(Rights(FakeReviews(), Settings()))


async def test_the_check_of_rights_passes_when_every_right_is_granted() -> None:
    async with running(FakeReviews()) as rights:
        assert failure(rights) == ""


async def test_a_missing_right_is_named_as_in_a_role_and_with_what_stops_working() -> None:
    async with running(FakeReviews(EVICT)) as rights:
        assert failure(rights) == EVICTIONS_MISSING


async def test_every_missing_right_is_named() -> None:
    lost = set(ALWAYS) - {ASKING}
    async with running(FakeReviews(*lost)) as rights:
        told = {False: failure(rights), True: degraded(rights)}
        assert [right for right in lost if right.sentence not in told[right.optional]] == []


async def test_a_missing_right_that_only_some_pods_need_is_named_without_a_failure() -> None:
    lost = [right for right in ALWAYS if right.resource in {"topologies", "gpunodes", "poddisruptionbudgets"}]
    async with running(FakeReviews(*lost)) as rights:
        assert failure(rights) == ""
        assert degraded(rights) == "; ".join(right.sentence for right in lost)
        assert len(lost) == 5


async def test_a_missing_right_to_review_rights_is_reported() -> None:
    async with running(FakeReviews(ASKING)) as rights:
        assert failure(rights) == ASKING.sentence


async def test_a_restored_right_is_noticed_soon() -> None:
    reviews = FakeReviews(EVICT)
    async with running(reviews) as rights:
        reviews.denied.clear()
        await passes(SOON_S)

        assert failure(rights) == ""


async def test_a_revoked_right_is_noticed_at_the_next_interval() -> None:
    reviews = FakeReviews()
    async with running(reviews, BARE.model_copy(update={"rights_interval_s": 60})) as rights:
        reviews.denied.add(EVICT)
        await passes(59)
        assert failure(rights) == ""

        await passes(1)

        assert failure(rights) == EVICTIONS_MISSING


async def test_a_refused_write_makes_the_next_check_of_rights_run_soon() -> None:
    reviews = FakeReviews()
    async with running(reviews) as rights:
        reviews.denied.add(EVICT)

        reviews.refuse()
        await passes(SOON_S)

        assert failure(rights) == EVICTIONS_MISSING


async def test_frequent_refused_writes_do_not_cause_endless_checks() -> None:
    reviews = FakeReviews()
    async with running(reviews):
        for _ in range(100):
            reviews.refuse()
            await passes(0.1)

        assert reviews.asked == A_ROUND * 3


async def test_an_api_server_that_does_not_answer_changes_nothing_that_is_known() -> None:
    reviews = FakeReviews(EVICT)
    async with running(reviews) as rights:
        reviews.down = True
        reviews.denied.clear()
        await passes(SOON_S * 2)
        assert failure(rights) == EVICTIONS_MISSING

        reviews.down = False
        await passes(SOON_S)
        assert failure(rights) == ""


async def test_the_reason_is_given_until_the_api_server_has_answered_once() -> None:
    reviews = FakeReviews()
    reviews.down = True
    async with running(reviews) as rights:
        assert failure(rights).endswith("the rights of the service account cannot be checked: connection refused")


async def test_missing_rights_are_logged_when_they_change_and_not_at_every_check() -> None:
    reviews = FakeReviews(EVICT)
    with logged() as events:
        async with running(reviews):
            await passes(SOON_S * 3)
            reviews.denied.clear()
            await passes(SOON_S * 3)

    assert events == ["rights are missing", "all rights are granted again"]


@contextmanager
def logged() -> Iterator[list[str]]:
    events: list[str] = []
    with capture_logs() as lines:
        yield events
    events += [line["event"] for line in lines]


def test_the_aggregated_api_needs_the_front_proxy_and_its_own_certificate_a_bundle() -> None:
    plain = set(rights_of(Settings()))
    served = {"aggregated_port": 9444, "admission_tls_dir": "folder"}
    of_files = set(rights_of(Settings.model_validate(served))) - plain
    own = set(rights_of(Settings.model_validate(served | {"certificate_secret": "ns/secret"}))) - plain

    assert {right.subject for right in of_files} == {
        'get configmaps extension-apiserver-authentication (apiGroup "", namespace kube-system)'
    }
    assert {right.subject for right in own - of_files if right.resource != "secrets"} == {
        'get apiservices v1.view.leeboard.dev (apiGroup "apiregistration.k8s.io")',
        'patch apiservices v1.view.leeboard.dev (apiGroup "apiregistration.k8s.io")',
    }


def test_rights_that_only_some_installations_use_follow_from_the_settings() -> None:
    plain = set(rights_of(Settings()))
    full = rights_of(
        Settings(
            admission_port=9443,
            scheduler_lease="ns/lease",
            certificate_secret="ns/secret",
            webhook_configuration="leeboard",
        )
    )

    assert set(rights_of(BARE)) == set(ALWAYS)
    assert {right.subject for right in plain - set(ALWAYS)} == {
        'create pods (apiGroup "", namespace kai-resource-reservation)',
        'create podgroups (apiGroup "scheduling.run.ai")',
        'patch podgroups (apiGroup "scheduling.run.ai")',
        'create tokenreviews (apiGroup "authentication.k8s.io")',
        'create subjectaccessreviews (apiGroup "authorization.k8s.io")',
    }
    assert [right.subject for right in full if right not in plain] == [
        'patch pods (apiGroup "")',
        'get leases lease (apiGroup "coordination.k8s.io", namespace ns)',
        'get secrets secret (apiGroup "", namespace ns)',
        'update secrets secret (apiGroup "", namespace ns)',
        'get mutatingwebhookconfigurations leeboard (apiGroup "admissionregistration.k8s.io")',
        'patch mutatingwebhookconfigurations leeboard (apiGroup "admissionregistration.k8s.io")',
        'get validatingwebhookconfigurations leeboard (apiGroup "admissionregistration.k8s.io")',
        'patch validatingwebhookconfigurations leeboard (apiGroup "admissionregistration.k8s.io")',
    ]


def test_owners_of_pods_are_read_where_pods_are_grouped_by_owner() -> None:
    named = {(right.group, right.resource, right.verb) for right in rights_to_owners(Settings())}

    assert named == {(*kind, verb) for kind in grouping.RESOURCES for verb in ("get", "list", "watch")}
    assert ("batch", "jobs", "list") in named
    assert rights_to_owners(BARE) == ()


async def test_rights_to_owners_are_neither_checked_nor_reported() -> None:
    settings = Settings()
    reviews = FakeReviews(*rights_to_owners(settings))

    async with running(reviews, settings) as rights:
        assert (failure(rights), reviews.asked) == ("", len(rights_of(settings)))
