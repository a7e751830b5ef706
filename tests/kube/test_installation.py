"""The requests for the Secret and the webhook configurations, and the error for each answer."""

from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.certificates.own import Installation
from app.kube.client import KubeCluster
from app.kube.errors import BrokenStreamError
from app.kube.installation import KubeInstallation
from app.model.installation import AggregationKind, CaBundles, Read, WebhookKind
from app.model.seam import ConflictError, NotFoundError
from tests.kube.apiserver import FakeApiServer, kubeconfig, refuses, says

SECRET = {
    "metadata": {"name": "ca", "namespace": "ours", "resourceVersion": "7", "labels": {"theirs": "kept"}},
    "type": "Opaque",
    "data": {"ca.crt": b64encode(b"old").decode(), "other": b64encode(b"kept").decode()},
}
CONFIGURATION: dict[str, Any] = {
    "metadata": {"name": "leeboard", "resourceVersion": "9"},
    "webhooks": [
        {"name": "a.leeboard.dev", "clientConfig": {"caBundle": b64encode(b"ours").decode(), "url": "https://x"}},
        {"name": "b.leeboard.dev", "clientConfig": {"service": {"name": "s"}}},
    ],
}
HOOKS = "/apis/admissionregistration.k8s.io/v1"


@pytest.fixture
async def installation(server: FakeApiServer, tmp_path: Path) -> AsyncIterator[KubeInstallation]:
    async with await KubeCluster.connect(str(kubeconfig(server.url, tmp_path))) as cluster:
        yield cluster.installation()


def test_the_client_implements_the_protocol_of_certificates() -> None:
    _: type[Installation] = KubeInstallation


async def test_a_secret_is_read_from_the_cache_or_from_the_store(
    server: FakeApiServer, installation: KubeInstallation
) -> None:
    server.will(says(SECRET), says(SECRET))

    cached = await installation.read_secret("ours", "ca", Read.CACHED)
    await installation.read_secret("ours", "ca", Read.LATEST)

    assert cached.contents == {"ca.crt": b"old", "other": b"kept"}
    assert [(seen.path, seen.query) for seen in server.seen] == [
        ("/api/v1/namespaces/ours/secrets/ca", {"resourceVersion": "0"}),
        ("/api/v1/namespaces/ours/secrets/ca", {}),
    ]


async def test_an_empty_secret_has_no_contents(server: FakeApiServer, installation: KubeInstallation) -> None:
    server.will(says({"metadata": {"name": "ca"}}))

    assert (await installation.read_secret("ours", "ca", Read.LATEST)).contents == {}


async def test_a_secret_is_replaced_at_the_version_it_was_read(
    server: FakeApiServer, installation: KubeInstallation
) -> None:
    server.will(says(SECRET), says(SECRET))

    secret = await installation.read_secret("ours", "ca", Read.LATEST)
    await installation.replace_secret(secret, {"ca.crt": b"new"})

    put = server.seen[1]
    assert (put.method, put.path) == ("PUT", "/api/v1/namespaces/ours/secrets/ca")
    assert put.body == {**SECRET, "data": {**SECRET["data"], "ca.crt": b64encode(b"new").decode()}}  # type: ignore[dict-item] # JSON


async def test_a_secret_that_another_client_has_written_meanwhile_is_a_conflict(
    server: FakeApiServer, installation: KubeInstallation
) -> None:
    server.will(says(SECRET), refuses(409))

    secret = await installation.read_secret("ours", "ca", Read.LATEST)
    with pytest.raises(ConflictError):
        await installation.replace_secret(secret, {})


@pytest.mark.parametrize("answer", [b"no json", [], {"data": "no map"}, {"data": {"ca.key": "c2Vjcm"}}])
async def test_an_answer_that_is_no_secret_is_an_error_that_quotes_nothing(
    answer: object, server: FakeApiServer, installation: KubeInstallation
) -> None:
    server.will(says(answer))

    with pytest.raises(BrokenStreamError) as error:
        await installation.read_secret("ours", "ca", Read.LATEST)
    assert "c2Vjcm" not in str(error.value)
    assert error.value.__cause__ is None


async def test_keys_appear_in_no_text(server: FakeApiServer, installation: KubeInstallation) -> None:
    server.will(says(SECRET))

    assert "old" not in repr(await installation.read_secret("ours", "ca", Read.LATEST))


async def test_the_bundle_of_every_webhook_is_read(server: FakeApiServer, installation: KubeInstallation) -> None:
    server.will(says(CONFIGURATION))

    seen = await installation.read_bundles(WebhookKind.MUTATING, "leeboard")

    assert seen.bundles == {"a.leeboard.dev": b"ours", "b.leeboard.dev": b""}
    assert server.seen[0].path == f"{HOOKS}/mutatingwebhookconfigurations/leeboard"
    assert server.seen[0].query == {"resourceVersion": "0"}


async def test_a_bundle_is_patched_into_every_webhook_and_nothing_else(
    server: FakeApiServer, installation: KubeInstallation
) -> None:
    server.will(says(CONFIGURATION))
    of = CaBundles(kind=WebhookKind.VALIDATING, name="leeboard", version="9", bundles={"a": b"", "b": b"x"})

    await installation.write_bundle(of, b"new")

    (patch,) = server.seen
    config = {"caBundle": b64encode(b"new").decode()}
    assert (patch.method, patch.path) == ("PATCH", f"{HOOKS}/validatingwebhookconfigurations/leeboard")
    assert patch.headers["Content-Type"] == "application/strategic-merge-patch+json"
    assert patch.body == {
        "metadata": {"resourceVersion": "9"},
        "webhooks": [{"name": "a", "clientConfig": config}, {"name": "b", "clientConfig": config}],
    }


async def test_the_bundle_of_an_aggregated_api_is_read_and_patched(
    server: FakeApiServer, installation: KubeInstallation
) -> None:
    spec = {"group": "g", "caBundle": b64encode(b"old").decode()}
    server.will(says({"metadata": {"resourceVersion": "9"}, "spec": spec}), says({}))

    seen = await installation.read_bundles(AggregationKind.API_SERVICE, "v1.g")
    await installation.write_bundle(seen, b"new")

    assert (seen.bundles, seen.version) == ({"": b"old"}, "9")
    assert {each.path for each in server.seen} == {"/apis/apiregistration.k8s.io/v1/apiservices/v1.g"}
    bundle = b64encode(b"new").decode()
    assert server.seen[1].body == {"metadata": {"resourceVersion": "9"}, "spec": {"caBundle": bundle}}


async def test_the_texts_of_a_config_map_are_read(server: FakeApiServer, installation: KubeInstallation) -> None:
    server.will(says({"data": {"a": "b"}}), says({}), says([]))

    assert await installation.read_settings("kube-system", "c") == {"a": "b"}
    assert await installation.read_settings("kube-system", "c") == {}
    with pytest.raises(BrokenStreamError):
        await installation.read_settings("kube-system", "c")
    assert server.seen[0].path == "/api/v1/namespaces/kube-system/configmaps/c"


async def test_a_configuration_that_does_not_exist_is_not_found(
    server: FakeApiServer, installation: KubeInstallation
) -> None:
    server.will(refuses(404))

    with pytest.raises(NotFoundError):
        await installation.read_bundles(WebhookKind.MUTATING, "leeboard")


@pytest.mark.parametrize("answer", [b"no json", {}, {"metadata": {"resourceVersion": "1"}, "webhooks": [{}]}, []])
async def test_an_answer_that_is_no_configuration_is_an_error(
    answer: object, server: FakeApiServer, installation: KubeInstallation
) -> None:
    server.will(says(answer))

    with pytest.raises(BrokenStreamError):
        await installation.read_bundles(WebhookKind.MUTATING, "leeboard")
