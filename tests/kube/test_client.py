"""Writes against a fake API server: the request, and the error for each answer or failure."""

import asyncio
import socket
import ssl
import subprocess
import traceback
from collections.abc import Awaitable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
import yaml

from app.kube.client import KubeCluster
from app.kube.errors import AccessError, UnauthenticatedError
from app.model.names import NodeName
from app.model.seam import (
    BudgetError,
    Cluster,
    ConflictError,
    Depth,
    ForbiddenError,
    KubeError,
    NotFoundError,
    OutcomeUnknownError,
    RawObject,
    RejectedError,
    Resource,
    UnavailableError,
    WebhookFailedError,
)
from tests.kube.apiserver import (
    BRIEF,
    POD,
    Answer,
    FakeApiServer,
    connected,
    kubeconfig,
    lists,
    loses_the_reply,
    pod,
    refuses,
    running,
    says,
    silent,
)

NODE = NodeName("n1")
DONE = says({"kind": "Status", "status": "Success"}, code=201)
UID_PRECONDITION = "Operation cannot be fulfilled on pods: Precondition failed: UID in precondition: u1, UID in object"
EVICTION_UID_PRECONDITION = "Operation cannot be fulfilled: the UID in the precondition (u1) does not match"
SEVERAL_BUDGETS = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."


def test_the_client_implements_the_cluster_protocol() -> None:
    _: type[Cluster] = KubeCluster


async def test_bind_is_one_binding_with_uid_and_annotations(server: FakeApiServer, cluster: KubeCluster) -> None:
    server.will(DONE)

    await cluster.bind(POD, NODE, {"gpu": "0"})

    (seen,) = server.seen
    assert (seen.method, seen.path) == ("POST", "/api/v1/namespaces/default/pods/p/binding")
    assert seen.headers["Authorization"] == "Bearer first"
    assert seen.body == {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p", "namespace": "default", "uid": "u1", "annotations": {"gpu": "0"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }


@pytest.mark.parametrize("node", [NODE, None])
async def test_a_nomination_is_a_merge_patch_with_the_uid(
    server: FakeApiServer, cluster: KubeCluster, node: NodeName | None
) -> None:
    server.will(says({}))

    await cluster.nominate(POD, node)

    (seen,) = server.seen
    assert (seen.method, seen.path) == ("PATCH", "/api/v1/namespaces/default/pods/p/status")
    assert seen.headers["Content-Type"] == "application/merge-patch+json"
    assert seen.body == {"metadata": {"uid": "u1"}, "status": {"nominatedNodeName": node}}


async def test_a_release_removes_only_our_gate_by_a_strategic_merge_patch_with_the_uid(
    server: FakeApiServer, cluster: KubeCluster
) -> None:
    server.will(says({}))

    await cluster.release(POD)

    (seen,) = server.seen
    assert (seen.method, seen.path) == ("PATCH", "/api/v1/namespaces/default/pods/p")
    assert seen.headers["Content-Type"] == "application/strategic-merge-patch+json"
    gates = [{"$patch": "delete", "name": "leeboard.dev/held"}]
    assert seen.body == {"metadata": {"uid": "u1"}, "spec": {"schedulingGates": gates}}


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (
            partial(KubeCluster.mark_disrupted, reason="PreemptionByScheduler", message="for others"),
            ("DisruptionTarget", "True", "PreemptionByScheduler", "for others"),
        ),
        (
            partial(KubeCluster.say_unschedulable, message="no room"),
            ("PodScheduled", "False", "Unschedulable", "no room"),
        ),
    ],
    ids=["disrupted", "unschedulable"],
)
async def test_a_pod_gets_one_condition_beside_its_others(
    server: FakeApiServer, cluster: KubeCluster, write: partial[Awaitable[None]], expected: tuple[str, ...]
) -> None:
    server.will(says({}))

    await write(cluster, POD)

    (seen,) = server.seen
    (condition,) = seen.body["status"]["conditions"]
    assert (seen.method, seen.path) == ("PATCH", "/api/v1/namespaces/default/pods/p/status")
    assert seen.headers["Content-Type"] == "application/strategic-merge-patch+json"
    assert seen.body["metadata"] == {"uid": "u1"}
    assert datetime.fromisoformat(condition.pop("lastTransitionTime")).tzinfo is UTC
    assert condition == dict(zip(("type", "status", "reason", "message"), expected, strict=True))


async def test_an_eviction_names_the_uid_and_no_grace_period(server: FakeApiServer, cluster: KubeCluster) -> None:
    server.will(DONE)

    await cluster.evict(POD)

    (seen,) = server.seen
    assert (seen.method, seen.path) == ("POST", "/api/v1/namespaces/default/pods/p/eviction")
    assert seen.body == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "p", "namespace": "default"},
        "deleteOptions": {"preconditions": {"uid": "u1"}},
    }


@pytest.mark.parametrize(
    ("answer", "allowed"), [(DONE, True), (refuses(429, cause="DisruptionBudget", field="spec"), False)]
)
async def test_a_dry_run_shows_whether_a_pod_may_be_evicted(
    server: FakeApiServer, cluster: KubeCluster, answer: Answer, *, allowed: bool
) -> None:
    server.will(answer)

    assert await cluster.may_evict(POD) is allowed

    (seen,) = server.seen
    assert (seen.method, seen.path) == ("POST", "/api/v1/namespaces/default/pods/p/eviction")
    assert seen.query == {"dryRun": "All"}
    assert seen.body["deleteOptions"] == {"preconditions": {"uid": "u1"}, "dryRun": ["All"]}


async def test_a_dry_run_that_is_refused_for_another_cause_shows_nothing(
    server: FakeApiServer, cluster: KubeCluster
) -> None:
    server.will(refuses(429))

    with pytest.raises(UnavailableError):
        await cluster.may_evict(POD)


async def test_a_budget_is_tight_when_it_allows_no_disruption_or_is_not_counted_yet(
    server: FakeApiServer, cluster: KubeCluster
) -> None:
    budgets = [
        budget("loose", 1),
        budget("tight", 0),
        budget("tight", 1),
        budget("changed", 1, generation=3),
        {"metadata": {"namespace": "new", "generation": 1}},
    ]
    server.will(lists(*budgets[:2], more="next"), lists(*budgets[2:]))

    assert await cluster.tight_budgets() == {"tight", "changed", "new"}

    assert [seen.path for seen in server.seen] == ["/apis/policy/v1/poddisruptionbudgets"] * 2
    assert [seen.query["continue"] for seen in server.seen] == ["", "next"]


async def test_a_list_of_objects_that_are_no_budgets_is_an_error(server: FakeApiServer, cluster: KubeCluster) -> None:
    server.will(lists({"metadata": {"namespace": "a"}, "status": {"disruptionsAllowed": "many"}}))

    with pytest.raises(KubeError):
        await cluster.tight_budgets()


def budget(namespace: str, allowed: int, *, generation: int = 2) -> RawObject:
    metadata = {"name": "b", "namespace": namespace, "generation": generation}
    return {"metadata": metadata, "status": {"disruptionsAllowed": allowed, "observedGeneration": 2}}


async def test_a_pod_is_deleted_by_its_uid_and_with_its_own_grace_period(
    server: FakeApiServer, cluster: KubeCluster
) -> None:
    server.will(says({}))

    await cluster.delete_pod(POD)

    (seen,) = server.seen
    assert (seen.method, seen.path) == ("DELETE", "/api/v1/namespaces/default/pods/p")
    assert seen.body == {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "u1"}}


@pytest.mark.parametrize(
    ("resource", "namespace", "path"),
    [
        (Resource.QUEUES, "", "/apis/scheduling.run.ai/v2/queues/x/status"),
        (Resource.POD_GROUPS, "ns", "/apis/scheduling.run.ai/v2alpha2/namespaces/ns/podgroups/x/status"),
    ],
)
async def test_a_status_is_merged(
    server: FakeApiServer, cluster: KubeCluster, resource: Resource, namespace: str, path: str
) -> None:
    server.will(says({}))

    await cluster.write_status(resource, namespace, "x", {"a": 1})

    assert [(seen.path, seen.body) for seen in server.seen] == [(path, {"status": {"a": 1}})]


async def test_the_note_of_an_event_is_cut_between_two_characters(server: FakeApiServer, cluster: KubeCluster) -> None:
    server.will(DONE)
    queue = {"kind": "Queue", "apiVersion": "scheduling.run.ai/v2", "name": "q", "uid": "u"}

    await cluster.record_event(queue, warning=True, reason="OverLimit", note="x" + "é" * 1024)

    (seen,) = server.seen
    assert seen.path == "/apis/events.k8s.io/v1/namespaces/default/events"
    assert seen.body["note"] == "x" + "é" * 511
    assert (seen.body["type"], seen.body["reportingController"], seen.body["regarding"]) == (
        "Warning",
        "leeboard",
        queue,
    )


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (refuses(400), RejectedError),
        (refuses(401), UnauthenticatedError),
        (refuses(403), ForbiddenError),
        (refuses(404), NotFoundError),
        (says(b"404 page not found\n", code=404), NotFoundError),
        (refuses(409), ConflictError),
        (refuses(409, UID_PRECONDITION), NotFoundError),
        (refuses(409, EVICTION_UID_PRECONDITION), NotFoundError),
        (refuses(429, cause="DisruptionBudget", field="spec"), BudgetError),
        (refuses(429), UnavailableError),
        (refuses(500, SEVERAL_BUDGETS), BudgetError),
        (refuses(500, 'Internal error occurred: failed calling webhook "x": refused'), WebhookFailedError),
        (refuses(422), RejectedError),
        (refuses(422, cause="FieldValueInvalid", field="metadata.uid"), NotFoundError),
        (refuses(422, cause="FieldValueForbidden", field="status.nominatedNodeName"), ConflictError),
        (refuses(500), OutcomeUnknownError),
        (says(b"bad gateway", code=502), OutcomeUnknownError),
        (refuses(503), UnavailableError),
        (says(b"upstream connect error", code=503), OutcomeUnknownError),
        (refuses(504), OutcomeUnknownError),
        (says(b"", code=302, Location="/elsewhere"), RejectedError),
    ],
)
async def test_each_kind_of_refusal_has_its_error(
    server: FakeApiServer, cluster: KubeCluster, answer: Answer, error: type[KubeError]
) -> None:
    server.will(answer, answer)

    with pytest.raises(KubeError) as raised:
        await cluster.bind(POD, NODE, {})

    assert type(raised.value) is error


async def test_an_error_has_the_message_of_the_api_server_and_no_token(
    server: FakeApiServer, cluster: KubeCluster
) -> None:
    server.will(refuses(403, "pods is forbidden: quota"))

    with pytest.raises(ForbiddenError) as raised:
        await cluster.bind(POD, NODE, {})

    assert str(raised.value) == "403 pods is forbidden: quota"


@pytest.mark.parametrize(("said", "retry_after_s"), [("7", 7.0), ("3600", 60.0), ("tomorrow", 1.0), ("", 1.0)])
async def test_retry_after_is_honoured_within_reason(
    server: FakeApiServer, cluster: KubeCluster, said: str, retry_after_s: float
) -> None:
    server.will(refuses(429, Retry_After=said))

    with pytest.raises(UnavailableError) as raised:
        await cluster.bind(POD, NODE, {})

    assert raised.value.retry_after_s == retry_after_s


@pytest.mark.parametrize("fault", [loses_the_reply(), silent()])
async def test_a_lost_reply_leaves_the_outcome_unknown_and_is_not_sent_again(
    server: FakeApiServer, cluster: KubeCluster, fault: Answer
) -> None:
    server.will(fault)

    with pytest.raises(OutcomeUnknownError):
        await cluster.bind(POD, NODE, {})

    assert len(server.seen) == 1


async def test_an_interrupted_reply_leaves_the_outcome_unknown(server: FakeApiServer, cluster: KubeCluster) -> None:
    server.will(says(b"{", Content_Length="80"))

    with pytest.raises(OutcomeUnknownError):
        await cluster.bind(POD, NODE, {})


async def test_a_refused_connection_is_surely_no_write(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        path = kubeconfig(f"http://127.0.0.1:{closed.getsockname()[1]}", tmp_path)

        async with await connected(path) as cluster:
            with pytest.raises(UnavailableError):
                await cluster.bind(POD, NODE, {})


async def test_a_hanging_handshake_is_surely_no_write(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as half_open:
        path = kubeconfig(f"https://127.0.0.1:{half_open.getsockname()[1]}", tmp_path)

        async with await connected(path, limits=replace(BRIEF, connect_within_s=0.05)) as cluster:
            with pytest.raises(UnavailableError):
                await cluster.bind(POD, NODE, {})


async def test_a_write_without_a_free_slot_is_surely_not_done(server: FakeApiServer, tmp_path: Path) -> None:
    limits = replace(BRIEF, writes_in_flight=1, connect_within_s=0.02, answer_within_s=5.0)
    async with await connected(kubeconfig(server.url, tmp_path), limits=limits) as cluster:
        first = asyncio.create_task(cluster.bind(POD, NODE, {}))
        await asyncio.sleep(0)

        with pytest.raises(UnavailableError):
            await cluster.bind(POD, NODE, {})

        first.cancel()
    assert len(server.seen) == 1


async def test_a_rotated_token_is_read_again_once(server: FakeApiServer, cluster: KubeCluster, tmp_path: Path) -> None:
    server.will(refuses(401), DONE, DONE)
    (tmp_path / "token").write_text("second")

    await cluster.bind(POD, NODE, {})
    await cluster.bind(POD, NODE, {})

    tokens = [seen.headers["Authorization"] for seen in server.seen]
    assert tokens == ["Bearer first", "Bearer second", "Bearer second"]


async def test_missing_credentials_count_as_forbidden(
    server: FakeApiServer, cluster: KubeCluster, tmp_path: Path
) -> None:
    server.will(refuses(401))
    (tmp_path / "token").unlink()

    with pytest.raises(ForbiddenError):
        await cluster.bind(POD, NODE, {})


@pytest.mark.parametrize("text", ["", "{", "current-context: c"])
async def test_an_empty_kubeconfig_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text(text)

    with pytest.raises(AccessError):
        await KubeCluster.connect(str(tmp_path / "kubeconfig"))


async def test_a_token_that_no_header_can_contain_is_refused_without_being_shown(tmp_path: Path) -> None:
    path = kubeconfig("http://127.0.0.1:1", tmp_path, token="secret\ninjected: yes")

    with pytest.raises(AccessError) as raised:
        await connected(path)

    assert "secret" not in repr(raised.value)


async def test_a_broken_user_entry_is_refused_without_being_shown(tmp_path: Path) -> None:
    path = kubeconfig("http://127.0.0.1:1", tmp_path)
    provider = {"name": "oidc", "config": {"refresh-token": "secret"}}
    broken = yaml.safe_load(path.read_text()) | {"users": [{"name": "u", "user": {"auth-provider": provider}}]}
    path.write_text(yaml.safe_dump(broken))

    with pytest.raises(AccessError) as raised:
        await connected(path)

    assert "client-id" in str(raised.value)
    assert "secret" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(("uid", "found"), [("u1", True), ("u2", False)])
async def test_a_pod_is_read_from_the_store_and_identified_by_its_uid(
    server: FakeApiServer, cluster: KubeCluster, uid: str, *, found: bool
) -> None:
    pod = {"metadata": {"uid": uid}}
    server.will(says(pod))

    assert await cluster.read_pod(POD) == (pod if found else None)

    assert server.seen[0].query == {}


async def test_a_deleted_pod_is_read_as_none(server: FakeApiServer, cluster: KubeCluster) -> None:
    server.will(refuses(404))

    assert await cluster.read_pod(POD) is None


@pytest.mark.parametrize("fault", [silent(), refuses(500), refuses(504)])
async def test_a_read_without_an_answer_may_be_tried_again(
    server: FakeApiServer, cluster: KubeCluster, fault: Answer
) -> None:
    server.will(fault)

    with pytest.raises(UnavailableError):
        await cluster.read_pod(POD)


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}"])
async def test_an_answer_that_is_no_pod_is_an_error(server: FakeApiServer, cluster: KubeCluster, body: bytes) -> None:
    server.will(says(body))

    with pytest.raises(KubeError):
        await cluster.read_pod(POD)


async def test_a_list_for_the_audit_is_read_page_by_page_without_fields_that_are_not_compared(
    server: FakeApiServer, cluster: KubeCluster
) -> None:
    server.will(lists(pod("a"), more="t+1="), lists(pod("b")))

    found = await cluster.listed(Resource.PODS, lambda raw: raw["metadata"]["name"], depth=Depth.METADATA)

    assert found == ["a", "b"]
    assert [seen.query["continue"] for seen in server.seen] == ["", "t+1="]
    assert {seen.query["fieldSelector"] for seen in server.seen} == {"status.phase!=Succeeded,status.phase!=Failed"}
    assert "PartialObjectMetadataList" in server.seen[0].headers["Accept"]


@pytest.mark.parametrize(
    ("resource", "path", "selector"),
    [
        (
            Resource.PODS,
            "/api/v1/namespaces/n/pods",
            "status.phase!=Succeeded,status.phase!=Failed,metadata.name=x",
        ),
        (Resource.NODES, "/api/v1/nodes", "metadata.name=x"),
        (Resource.POD_GROUPS, "/apis/scheduling.run.ai/v2alpha2/namespaces/n/podgroups", "metadata.name=x"),
    ],
)
async def test_one_object_is_listed_by_its_name(
    server: FakeApiServer, cluster: KubeCluster, resource: Resource, path: str, selector: str
) -> None:
    namespace = "n" if "namespaces" in path else ""
    server.will(lists(pod("x")))

    found = await cluster.listed(resource, lambda raw: raw, depth=Depth.WHOLE, namespace=namespace, name="x")

    assert found == [pod("x")]
    assert (server.seen[0].path, server.seen[0].query["fieldSelector"]) == (path, selector)


async def test_tls_is_verified_by_the_authority_of_the_kubeconfig(tmp_path: Path) -> None:
    certificate, key = _certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    async with running(tls) as server:
        server.will(DONE)
        trusting = kubeconfig(server.url, tmp_path, **{"certificate-authority": str(certificate)})
        async with await connected(trusting) as cluster:
            await cluster.bind(POD, NODE, {})

        async with await connected(kubeconfig(server.url, tmp_path)) as cluster:
            with pytest.raises(UnavailableError, match="certificate verify failed"):
                await cluster.bind(POD, NODE, {})


async def test_a_service_account_is_found_in_the_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = _certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    (tmp_path / "token").write_text("mounted\n")
    async with running(tls) as server:
        server.will(DONE)
        # The paths of a service account are fixed in every container, and constants in kubernetes-asyncio.
        module = "kubernetes_asyncio.config.incluster_config"
        monkeypatch.setattr(f"{module}.SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
        monkeypatch.setattr(f"{module}.SERVICE_CERT_FILENAME", str(certificate))
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", server.url.rpartition(":")[2])
        async with await KubeCluster.connect() as cluster:
            await cluster.bind(POD, NODE, {})

    assert server.seen[0].headers["Authorization"] == "Bearer mounted"


def _certificate(folder: Path) -> tuple[Path, Path]:
    certificate, key = folder / "tls.crt", folder / "tls.key"
    subject = ["-subj", "/CN=fake", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "1"]
    command = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    subprocess.run([*command, *subject, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key
