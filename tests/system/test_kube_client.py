"""Our client on a real API server: the answer to each important write, and a complete watch."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from random import Random

import pytest

from app.kube.client import KubeCluster
from app.kube.places import Collection
from app.kube.transport import TransportLimits
from app.kube.watch import Watch
from app.model.marks import GATE
from app.model.names import NodeName, PodUid
from app.model.seam import (
    Changed,
    ConflictError,
    Deleted,
    Depth,
    ForbiddenError,
    Listed,
    Lost,
    NotFoundError,
    PodRef,
    Progress,
    RawObject,
    Resource,
    WatchEvent,
)
from tests.kube.apiserver import whole
from tests.system.api import PODS, Api, pod
from tests.system.bed import Bed
from tests.system.identities import User

NODE = NodeName("nowhere")
GATED = {"schedulingGates": [{"name": "leeboard.dev/queue"}]}


@pytest.fixture
async def cluster(bed: Bed) -> AsyncIterator[KubeCluster]:
    async with await KubeCluster.connect(str(bed.kubeconfig(User.ADMIN))) as client:
        yield client


def created(api: Api, name: str, **more: object) -> PodRef:
    """Create a pod that no scheduler here handles."""
    made = api.create(pod(name, scheduler="nobody", **more))  # type: ignore[arg-type] # free-form by design
    return PodRef(namespace="default", name=name, uid=PodUid(made["metadata"]["uid"]))


def another(ref: PodRef) -> PodRef:
    return PodRef(namespace=ref.namespace, name=ref.name, uid=PodUid("00000000-0000-0000-0000-000000000000"))


async def test_a_bind_writes_node_and_annotations_at_once(api: Api, cluster: KubeCluster) -> None:
    ref = created(api, "p")

    await cluster.bind(ref, NODE, {"leeboard.dev/devices": "0"})

    found = await cluster.read_pod(ref)
    assert found is not None
    assert found["spec"]["nodeName"] == NODE
    assert found["metadata"]["annotations"] == {"leeboard.dev/devices": "0"}


@pytest.mark.parametrize(("audiences", "is_known"), [([], True), (["leeboard.dev"], True), (["another"], False)])
async def test_tokens_for_the_api_server_and_for_leeboard_alone_have_a_user(
    api: Api, cluster: KubeCluster, audiences: list[str], *, is_known: bool
) -> None:
    robot = {"name": "robot", "namespace": "default"}
    api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": robot})
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": audiences}}
    made = api.call("POST", "/api/v1/namespaces/default/serviceaccounts/robot/token", body=asked)

    found = await cluster.reviews().user_of(made["status"]["token"])

    assert (found and found.name) == ("system:serviceaccount:default:robot" if is_known else None)


async def test_a_bound_pod_is_not_bound_again(api: Api, cluster: KubeCluster) -> None:
    ref = created(api, "p")
    await cluster.bind(ref, NODE, {})

    with pytest.raises(ConflictError, match='already assigned to node "nowhere"'):
        await cluster.bind(ref, NODE, {})


async def test_a_gated_pod_is_not_bound(api: Api, cluster: KubeCluster) -> None:
    with pytest.raises(ConflictError, match="schedulingGates"):
        await cluster.bind(created(api, "p", spec=GATED), NODE, {})


async def test_feature_gates_of_the_api_server_can_be_told_by_who_may_read_its_metrics(
    bed: Bed, cluster: KubeCluster
) -> None:
    reviews = cluster.reviews()

    found = [await reviews.feature(gate) for gate in ("DRAAdminAccess", "GenericWorkload", "NoSuchGate")]
    async with await KubeCluster.connect(str(bed.kubeconfig(User.TENANT))) as tenant:
        forbidden = await tenant.reviews().feature("DRAAdminAccess")

    assert (found, forbidden) == ([True, False, None], None)


async def test_another_object_of_the_same_name_is_never_written(api: Api, cluster: KubeCluster) -> None:
    ref = another(created(api, "p"))

    with pytest.raises(NotFoundError):
        await cluster.release(ref)
    with pytest.raises(NotFoundError):
        await cluster.bind(ref, NODE, {})
    with pytest.raises(NotFoundError):
        await cluster.nominate(ref, NODE)

    assert await cluster.read_pod(ref) is None


async def test_a_missing_pod_is_not_found(cluster: KubeCluster, api: Api) -> None:
    ref = PodRef(namespace="default", name="absent", uid=PodUid("u"))
    assert api.items(PODS) == []

    with pytest.raises(NotFoundError):
        await cluster.bind(ref, NODE, {})
    with pytest.raises(NotFoundError):
        await cluster.nominate(ref, NODE)

    assert await cluster.read_pod(ref) is None


async def test_a_release_removes_only_our_gate_and_a_repeated_one_writes_nothing(
    api: Api, cluster: KubeCluster
) -> None:
    gates = [{"name": "example.com/first"}, {"name": GATE}, {"name": "example.com/last"}]
    ref = created(api, "p", spec={"schedulingGates": gates})

    await cluster.release(ref)
    once = await cluster.read_pod(ref)
    await cluster.release(ref)

    assert once is not None
    assert once["spec"]["schedulingGates"] == [gates[0], gates[2]]
    assert await cluster.read_pod(ref) == once


async def test_a_nomination_is_set_and_cleared(api: Api, cluster: KubeCluster) -> None:
    ref = created(api, "p", spec=GATED)

    await cluster.nominate(ref, NODE)
    nominated = api.get(f"{PODS.replace('pods', 'namespaces/default/pods')}/p")["status"]
    await cluster.nominate(ref, None)
    cleared = api.get(f"{PODS.replace('pods', 'namespaces/default/pods')}/p")["status"]

    assert (nominated.get("nominatedNodeName"), cleared.get("nominatedNodeName")) == (NODE, None)


async def test_a_bound_pod_takes_no_nomination(api: Api, cluster: KubeCluster) -> None:
    ref = created(api, "p")
    await cluster.bind(ref, NODE, {})

    with pytest.raises(ConflictError):
        await cluster.nominate(ref, NODE)


async def test_an_event_about_a_pod_is_accepted_whatever_its_note(api: Api, cluster: KubeCluster) -> None:
    ref = created(api, "p")
    regarding = {"kind": "Pod", "apiVersion": "v1", "namespace": "default", "name": "p", "uid": ref.uid}

    await cluster.record_event(regarding, warning=True, reason="OverLimit", note="é" * 2000)

    events = api.items("/apis/events.k8s.io/v1/namespaces/default/events")
    ours = [event for event in events if event.get("regarding", {}).get("uid") == ref.uid]
    assert [(event["reason"], event["type"], len(event["note"])) for event in ours] == [("OverLimit", "Warning", 512)]


async def test_without_rights_every_write_is_forbidden(api: Api, bed: Bed) -> None:
    ref = created(api, "p")
    path = bed.kubeconfig(User.LEEBOARD)
    path.with_name("nobody").write_text(path.read_text().replace(bed.token(User.LEEBOARD), "nonsense"))

    async with await KubeCluster.connect(str(path.with_name("nobody"))) as nobody:
        with pytest.raises(ForbiddenError, match="401 Unauthorized"):
            await nobody.bind(ref, NODE, {})


async def test_a_watch_follows_pods_until_they_finish(api: Api, cluster: KubeCluster) -> None:
    async with asyncio.timeout(20), aclosing(cluster.watch(Resource.PODS, whole)) as events:
        assert await anext(events) == Listed([])
        ref = created(api, "p")
        assert await _next_change(events) == (Changed, "p", None)

        await cluster.bind(ref, NODE, {})
        assert await _next_change(events) == (Changed, "p", NODE)

        api.patch("/api/v1/namespaces/default/pods/p/status", {"status": {"phase": "Succeeded"}})
        assert await _next_change(events) == (Deleted, "p", NODE)


async def test_the_result_of_a_finished_pod_is_read_and_not_watched(api: Api, cluster: KubeCluster) -> None:
    async with asyncio.timeout(20), aclosing(cluster.watch(Resource.PODS, _phase)) as events:
        assert await anext(events) == Listed([])
        ref = created(api, "p")
        assert await anext(events) == Changed("Pending")

        api.patch("/api/v1/namespaces/default/pods/p/status", {"status": {"phase": "Succeeded"}})

        assert await anext(events) == Deleted("Pending")
    found = await cluster.read_pod(ref)
    assert found is not None
    assert _phase(found) == "Succeeded"


async def test_a_watch_of_a_long_list_reads_every_page(api: Api, cluster: KubeCluster) -> None:
    api.create_all(pod(f"p{index}", scheduler="nobody") for index in range(502))

    async with asyncio.timeout(20), aclosing(cluster.watch(Resource.PODS, whole)) as events:
        listed = await anext(events)

    assert isinstance(listed, Listed)
    assert len({each["metadata"]["uid"] for each in listed.objects}) == 502


async def test_the_audit_lists_what_the_watch_shows_in_pages_and_by_name(api: Api, cluster: KubeCluster) -> None:
    api.create_all(pod(f"p{index}", scheduler="nobody") for index in range(502))
    api.patch("/api/v1/namespaces/default/pods/p0/status", {"status": {"phase": "Succeeded"}})

    listed = await cluster.listed(Resource.PODS, whole, depth=Depth.METADATA)
    named = [
        await cluster.listed(Resource.PODS, _name, depth=Depth.WHOLE, namespace="default", name=f"p{index}")
        for index in range(3)
    ]

    assert sorted(map(_name, listed)) == sorted(f"p{index}" for index in range(1, 502))
    assert not any("spec" in raw for raw in listed)
    assert named == [[], ["p1"], ["p2"]]


async def test_a_watch_from_a_version_that_a_restored_store_has_lost_lists_again(api: Api, bed: Bed) -> None:
    created(api, "p")
    path = str(bed.kubeconfig(User.ADMIN))
    async with await KubeCluster.connect(path, limits=TransportLimits(silence_s=1.0)) as cluster:
        watch = Watch(
            cluster._transport, Collection.of(Resource.PODS), keep=_name, sleep=asyncio.sleep, chance=Random(1)
        )
        # As if the store had been restored from long ago: the last seen version is far ahead of it.
        watch._version, watch._newest = "999999999", 999999999
        async with asyncio.timeout(60), aclosing(watch.events()) as events:
            seen: list[WatchEvent[str]] = []
            while not seen or not isinstance(seen[-1], Listed):
                seen.append(await anext(events))

    assert seen[-1] == Listed(["p"], restored=True)
    causes = [event.cause for event in seen if isinstance(event, Lost)]
    assert causes[0] == "silent for 1 s"
    assert "is older than 999999999, seen before" in causes[-1]


def _name(raw: RawObject) -> str:
    return str(raw["metadata"]["name"])


def _phase(raw: RawObject) -> str:
    return str(raw["status"]["phase"])


async def _next_change(events: AsyncGenerator[WatchEvent[RawObject], None]) -> tuple[object, str, str | None]:
    while isinstance(event := await anext(events), Progress):
        pass
    assert isinstance(event, Changed | Deleted)
    return type(event), event.object["metadata"]["name"], event.object["spec"].get("nodeName")
