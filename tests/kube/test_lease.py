import pytest

from app.kube.client import KubeCluster
from app.model.seam import ForbiddenError, KubeError, Lease
from tests.kube.apiserver import FakeApiServer, refuses, says

RENEWED = "2026-01-01T00:00:00.000000Z"
NOBODYS = Lease(holder="", duration_s=0.0, renewed="")


@pytest.mark.parametrize(
    ("spec", "lease"),
    [
        (
            {"holderIdentity": "pod-a_1", "leaseDurationSeconds": 15, "renewTime": RENEWED, "leaseTransitions": 3},
            Lease(holder="pod-a_1", duration_s=15.0, renewed=RENEWED),
        ),
        ({"holderIdentity": "", "leaseDurationSeconds": 1}, Lease(holder="", duration_s=1.0, renewed="")),
        ({"holderIdentity": None}, NOBODYS),
        ({}, NOBODYS),
    ],
)
async def test_a_lease_shows_its_holder_and_its_duration(
    server: FakeApiServer, cluster: KubeCluster, spec: dict[str, object], lease: Lease
) -> None:
    server.will(says({"spec": spec}))

    assert await cluster.read_lease("leeboard", "leeboard-scheduler") == lease

    (seen,) = server.seen
    # Any query would allow the API server to answer from its cache.
    assert (seen.method, seen.query) == ("GET", {})
    assert seen.path == "/apis/coordination.k8s.io/v1/namespaces/leeboard/leases/leeboard-scheduler"


async def test_a_lease_that_does_not_exist_is_none(server: FakeApiServer, cluster: KubeCluster) -> None:
    server.will(refuses(404))

    assert await cluster.read_lease("leeboard", "leeboard-scheduler") is None


async def test_a_lease_that_may_not_be_read_is_an_error(server: FakeApiServer, cluster: KubeCluster) -> None:
    server.will(refuses(403))

    with pytest.raises(ForbiddenError):
        await cluster.read_lease("leeboard", "leeboard-scheduler")


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}", b'{"spec":[]}', b'{"spec":{"leaseDurationSeconds":"soon"}}'])
async def test_an_answer_that_is_no_lease_is_an_error(server: FakeApiServer, cluster: KubeCluster, body: bytes) -> None:
    server.will(says(body))

    with pytest.raises(KubeError):
        await cluster.read_lease("leeboard", "leeboard-scheduler")
