"""The token that the command line sends, and to which server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from click import ClickException

from app.cli.asking import Service, headers, may_be_told
from app.model.rights import Right, User
from app.settings import Settings
from app.telemetry import Metrics
from app.web import operations
from app.web.callers import Anybody, Callers, Reviewed
from app.web.visits import OnTheSpot
from tests.web.fakes import FakeInspect, FakePulse
from tests.web.served import serving

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: of-kubeconfig}}]
"""


class Vouching:
    """An API server that knows one token."""

    async def user_of(self, token: str) -> User | None:
        return User(name="jane") if token == "of-kubeconfig" else None  # of the test

    async def allows_user(self, right: Right, user: User) -> bool:
        del right, user
        return True


@asynccontextmanager
async def answering(callers: Callers) -> AsyncIterator[str]:
    async with serving(operations.application(FakeInspect(), Metrics(), FakePulse(), callers=callers)) as served:
        yield served.url


def reviewed() -> Callers:
    return Reviewed(Vouching(), OnTheSpot(), clock=lambda: 0.0)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    path = tmp_path / "kubeconfig"
    path.write_text(KUBECONFIG)
    return Settings(kubeconfig=str(path))


async def test_the_token_of_the_kubeconfig_is_sent_over_a_forwarded_port(settings: Settings) -> None:
    async with answering(reviewed()) as url:
        assert b"PodGroupList" in await Service(settings, url=url, token=None).ask("/api/v1/podgroups")


async def test_an_explicit_token_has_precedence(settings: Settings) -> None:
    async with answering(reviewed()) as url:
        with pytest.raises(ClickException, match=r"does not know this token.*send another one"):
            await Service(settings, url=url, token="other").ask("/api/v1/podgroups")  # of the test


async def test_a_caller_without_a_token_gets_advice_how_to_get_one(tmp_path: Path) -> None:
    without = Settings(kubeconfig=str(tmp_path / "none"))
    async with answering(reviewed()) as url:
        with pytest.raises(ClickException, match="create token leeboard-reader") as refused:
            await Service(without, url=url, token=None).ask("/api/v1/podgroups")
    assert "which has none" in refused.value.message


async def test_no_token_is_needed_where_everything_is_public(tmp_path: Path) -> None:
    without = Settings(kubeconfig=str(tmp_path / "none"))
    async with answering(Anybody()) as url:
        assert await Service(without, url=url, token=None).ask("/api/v1/podgroups")


async def test_a_missing_kubeconfig_that_is_not_needed_is_not_mentioned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert await headers("http://127.0.0.1:8080", token=None, kubeconfig=str(tmp_path / "none")) == {}
    assert not caplog.records


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://127.0.0.1:8080", True),
        ("http://localhost:8080", True),
        ("http://[::1]:8080", True),
        ("https://leeboard.example.com", True),
        ("http://leeboard.example.com", False),
        ("http://192.0.2.1:8080", False),
        ("http://127.0.0.1.example.com", False),
    ],
)
async def test_our_own_token_is_sent_only_where_no_other_process_reads_it(
    settings: Settings, url: str, *, told: bool
) -> None:
    assert may_be_told(url) is told
    found = await headers(url, token=None, kubeconfig=settings.kubeconfig)
    assert found == ({"Authorization": "Bearer of-kubeconfig"} if told else {})
    assert await headers(url, token="named", kubeconfig=None) == {"Authorization": "Bearer named"}
