import pytest

from app.model.marks import GATE
from app.model.names import NodeName
from app.model.seam import (
    Changed,
    Cluster,
    ConflictError,
    Deleted,
    Listed,
    NotFoundError,
    RawObject,
    Resource,
)
from app.simulation import manifests
from app.simulation.cluster import RecordedEvent, Ref, SimulatedCluster
from tests.simulation.play import cluster_with_node, create_pod, ref, stored

NODE = NodeName("n1")


def test_a_simulated_cluster_implements_the_cluster_protocol() -> None:
    cluster: Cluster = SimulatedCluster()

    assert cluster is not None


async def test_binding_sets_node_and_annotations_and_ends_the_nomination_in_one_write() -> None:
    cluster = cluster_with_node("n1")
    pod = create_pod(cluster)
    await cluster.nominate(ref(pod), NODE)

    await cluster.bind(ref(pod), NODE, {"gpu": "3"})

    bound = stored(cluster, pod)
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"]["gpu"] == "3"
    assert "nominatedNodeName" not in bound["status"]


async def test_a_bound_pod_is_not_bound_again_even_to_the_same_node() -> None:
    cluster = cluster_with_node("n1")
    pod = create_pod(cluster)
    await cluster.bind(ref(pod), NODE, {})

    with pytest.raises(ConflictError, match='already assigned to node "n1"'):
        await cluster.bind(ref(pod), NODE, {})


@pytest.mark.parametrize(
    "change",
    [{"spec": {"schedulingGates": [{"name": "g"}]}}, {"metadata": {"deletionTimestamp": "1970-01-01T00:00:00Z"}}],
    ids=["gated", "deleted"],
)
async def test_a_pod_that_is_gated_or_being_deleted_is_not_bound(change: dict[str, object]) -> None:
    cluster = cluster_with_node("n1")
    pod = create_pod(cluster)
    cluster.patch(Ref.of(Resource.PODS, pod), change)

    with pytest.raises(ConflictError):
        await cluster.bind(ref(pod), NODE, {})


async def test_a_release_removes_our_gate_and_leaves_those_of_others() -> None:
    cluster = cluster_with_node("n1")
    pod = create_pod(cluster)
    cluster.patch(Ref.of(Resource.PODS, pod), {"spec": {"schedulingGates": [{"name": GATE}, {"name": "g"}]}})

    await cluster.release(ref(pod))
    once = stored(cluster, pod)
    await cluster.release(ref(pod))

    assert once["spec"]["schedulingGates"] == [{"name": "g"}]
    assert stored(cluster, pod) == once


async def test_no_write_reaches_a_recreated_pod_of_the_same_name() -> None:
    cluster = cluster_with_node("n1")
    earlier = ref(create_pod(cluster), uid="earlier")

    with pytest.raises(NotFoundError):
        await cluster.bind(earlier, NODE, {})
    with pytest.raises(NotFoundError):
        await cluster.nominate(earlier, NODE)
    with pytest.raises(NotFoundError):
        await cluster.release(earlier)
    assert await cluster.read_pod(earlier) is None


async def test_a_bound_pod_cannot_be_nominated() -> None:
    cluster = cluster_with_node("n1")
    pod = create_pod(cluster)
    await cluster.bind(ref(pod), NODE, {})

    with pytest.raises(ConflictError):
        await cluster.nominate(ref(pod), NODE)


@pytest.mark.parametrize("verb", ["evict", "delete_pod"])
async def test_an_evicted_bound_pod_stays_for_its_grace_period(verb: str) -> None:
    cluster = cluster_with_node("n1")
    pod = create_pod(cluster)
    await cluster.bind(ref(pod), NODE, {})

    await getattr(cluster, verb)(ref(pod))
    await getattr(cluster, verb)(ref(pod))

    metadata = stored(cluster, pod)["metadata"]
    assert (metadata["deletionTimestamp"], metadata["deletionGracePeriodSeconds"]) == ("1970-01-01T00:00:00Z", 30)


async def test_there_are_no_disruption_budgets_and_a_dry_run_evicts_no_pod() -> None:
    cluster = cluster_with_node("n1")
    pod = create_pod(cluster)

    assert (await cluster.tight_budgets(), await cluster.may_evict(ref(pod))) == (frozenset(), True)

    assert cluster.objects(Resource.PODS) == [pod]
    with pytest.raises(NotFoundError):
        await cluster.may_evict(ref(pod, uid="earlier"))


async def test_a_pod_that_does_not_run_is_gone_at_once() -> None:
    cluster = cluster_with_node("n1")
    pod = create_pod(cluster)

    await cluster.delete_pod(ref(pod))

    assert cluster.objects(Resource.PODS) == []


async def test_the_disruption_condition_is_added_beside_others_and_replaces_an_earlier_one() -> None:
    cluster = cluster_with_node("n1")
    pod = create_pod(cluster)
    scheduled = {"type": "PodScheduled", "status": "True"}
    cluster.patch(Ref.of(Resource.PODS, pod), {"status": {"conditions": [scheduled]}})

    for message in ("first", "second"):
        await cluster.mark_disrupted(ref(pod), reason="PreemptionByScheduler", message=message)

    mark = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": "second",
    }
    assert stored(cluster, pod)["status"]["conditions"] == [scheduled, mark]


async def test_a_write_to_a_missing_object_is_not_found() -> None:
    with pytest.raises(NotFoundError):
        await SimulatedCluster().write_status(Resource.QUEUES, "", "nobody", {})


def test_a_name_can_be_used_once() -> None:
    cluster = cluster_with_node("n1")
    create_pod(cluster)

    with pytest.raises(ConflictError):
        create_pod(cluster)


async def test_every_watcher_gets_a_list_and_then_each_change_once() -> None:
    cluster = cluster_with_node()
    pod = create_pod(cluster)
    watches = [cluster.watch_whole(Resource.PODS), cluster.watch_whole(Resource.PODS)]
    assert [await anext(watch) for watch in watches] == [Listed([pod]), Listed([pod])]

    await cluster.nominate(ref(pod), NODE)

    assert [await anext(watch) for watch in watches] == [Changed(stored(cluster, pod))] * 2


async def test_a_finished_pod_is_deleted_for_the_watch_in_its_last_state_but_can_still_be_read() -> None:
    cluster = cluster_with_node()
    pod = create_pod(cluster)
    watch = cluster.watch_whole(Resource.PODS)
    await anext(watch)

    finished = cluster.patch(Ref.of(Resource.PODS, pod), {"status": {"phase": "Succeeded"}})

    assert await anext(watch) == Deleted(at_version(pod, finished))
    assert await cluster.read_pod(ref(pod)) == finished


async def test_a_watcher_gets_only_the_fields_it_keeps() -> None:
    cluster = cluster_with_node()
    pod = create_pod(cluster, "early")
    watch = cluster.watch(Resource.PODS, lambda item: str(item["metadata"]["name"]))

    events = [await anext(watch)]
    create_pod(cluster, "late")
    cluster.delete(Ref.of(Resource.PODS, pod))
    events += [await anext(watch), await anext(watch)]

    assert events == [Listed(["early-0"]), Changed("late-0"), Deleted("early-0")]


async def test_a_write_that_changes_nothing_is_no_write() -> None:
    cluster = cluster_with_node()
    pod = create_pod(cluster)
    await cluster.nominate(ref(pod), NODE)
    once = stored(cluster, pod)

    await cluster.nominate(ref(pod), NODE)

    assert stored(cluster, pod) is once
    assert int(once["metadata"]["resourceVersion"]) > int(pod["metadata"]["resourceVersion"])


async def test_events_are_kept() -> None:
    cluster = cluster_with_node()

    await cluster.record_event({"kind": "Pod", "name": "p"}, warning=True, reason="OverLimit", note="too much")

    event = RecordedEvent(regarding={"kind": "Pod", "name": "p"}, warning=True, reason="OverLimit", note="too much")
    assert list(cluster.events) == [event]


def at_version(item: RawObject, later: RawObject) -> RawObject:
    version = later["metadata"]["resourceVersion"]
    return item | {"metadata": item["metadata"] | {"resourceVersion": version}}


async def test_a_pod_created_by_leeboard_has_the_priority_of_its_class() -> None:
    cluster = cluster_with_node("n1")
    cluster.create(Resource.PRIORITY_CLASSES, manifests.priority_class("leeboard-reservation"))

    await cluster.create_pod("ns", {"metadata": {"name": "p"}, "spec": {"priorityClassName": "leeboard-reservation"}})

    (made,) = cluster.objects(Resource.PODS)
    assert (made["spec"]["priority"], made["status"]) == (1_000_000_000, {"phase": "Pending"})
