"""One fake API server and one client for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.kube.client import KubeCluster
from tests.kube.apiserver import FakeApiServer, Pauses, connected, kubeconfig, running


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with running() as fake:
        yield fake


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


@pytest.fixture
async def cluster(server: FakeApiServer, pauses: Pauses, tmp_path: Path) -> AsyncIterator[KubeCluster]:
    async with await connected(kubeconfig(server.url, tmp_path), pauses=pauses) as client:
        yield client
