"""Checks that a probe may exclude: a standby is healthy, although it does not decide."""

from app.model.question import Check
from app.telemetry import Metrics
from app.web import operations
from app.web.callers import Anybody
from tests.web.fakes import FakeInspect, FakePulse
from tests.web.served import HttpReply, get, serving

STANDBY = Check("active", "the leading kube-scheduler is elsewhere")
LACKING = Check("rights", "may not create pods/binding")


async def asked(path: str, *checks: Check) -> HttpReply:
    app = operations.application(FakeInspect(conditions=checks), Metrics(), FakePulse(), callers=Anybody())
    async with serving(app) as served:
        return await served.ask(get(path))


async def test_an_excluded_failure_does_not_count() -> None:
    reply = await asked("/readyz?exclude=active", STANDBY)
    assert (reply.status, reply.body) == (200, b"ok")


async def test_a_condition_that_affects_only_some_pods_is_shown_and_is_no_failure() -> None:
    reply = await asked("/readyz?verbose", Check("watch-topologies", degraded="403 forbidden"))
    assert reply.status == 200
    assert "[+]watch-topologies ok, degraded: 403 forbidden" in reply.body.decode().splitlines()


async def test_several_checks_are_excluded_by_their_names() -> None:
    reply = await asked("/readyz?exclude=active&exclude=rights", STANDBY, LACKING)
    assert (reply.status, reply.body) == (200, b"ok")


async def test_a_check_that_is_not_excluded_still_fails_and_the_rest_is_shown() -> None:
    reply = await asked("/readyz?exclude=active", STANDBY, LACKING)
    assert (reply.status, reply.body.decode().splitlines()) == (
        503,
        [
            "[+]active excluded: ok",
            "[-]rights failed: may not create pods/binding",
            "[+]event-loop ok",
            "readyz check failed",
        ],
    )


async def test_an_unknown_check_name_excludes_nothing_and_is_reported() -> None:
    reply = await asked("/readyz?exclude=activ", STANDBY)
    assert reply.status == 503
    assert "warn: there is no check named 'activ' to exclude" in reply.body.decode().splitlines()


async def test_an_excluded_check_is_still_answered_on_its_own_path() -> None:
    assert (await asked("/readyz/active?exclude=active", STANDBY)).status == 503
