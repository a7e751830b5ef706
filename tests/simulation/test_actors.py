from collections import Counter
from itertools import islice

from app.model.names import NodeName
from app.model.seam import RawObject, Resource
from app.simulation import manifests
from app.simulation.cluster import Ref, SimulatedCluster
from app.simulation.devices import SimulatedDevices
from app.simulation.kubelet import START_S, SimulatedKubelet
from app.simulation.manifests import GROUP_ANNOTATION, Job
from app.simulation.users import MOST_IN_VAIN, MOST_WAITING, PATIENCE_S, PAUSE_S, Users
from app.simulation.workload import NEVER_START, Arrival, arrivals, furniture
from tests.simulation.play import ManualClock, cluster_with_node, create_pod, playing, ref, stored

NODE = NodeName("n1")


def gang(name: str, *, members: int, kind: str = "gang") -> Arrival:
    job = Job(name=name, queue="q", gpus=1, group=name)
    pods = ((Resource.PODS, manifests.pod(job, member=member)) for member in range(members))
    group = (Resource.POD_GROUPS, manifests.pod_group(job, min_member=members))
    return Arrival(after_s=0, kind=kind, objects=(group, *pods))


async def test_a_bound_pod_runs_for_its_time_and_is_deleted_after_it() -> None:
    cluster, clock = cluster_with_node("n1"), ManualClock()
    pod = create_pod(cluster, runtime_s=30)
    await cluster.bind(ref(pod), NODE, {})
    with playing(SimulatedKubelet(cluster, SimulatedDevices(cluster), clock).run()):
        await clock.advance(START_S)
        running = stored(cluster, pod)

        await clock.advance(30)

    assert running["status"] == running["status"] | {"phase": "Running", "startTime": "1970-01-01T00:00:02Z"}
    assert cluster.objects(Resource.PODS) == []


async def test_a_pod_deleted_while_it_runs_affects_no_other() -> None:
    cluster, clock = cluster_with_node("n1"), ManualClock()
    deleted, other = create_pod(cluster, "deleted", runtime_s=10), create_pod(cluster, "other", runtime_s=20)
    await cluster.bind(ref(deleted), NODE, {})
    await cluster.bind(ref(other), NODE, {})
    with playing(SimulatedKubelet(cluster, SimulatedDevices(cluster), clock).run()):
        await clock.advance(START_S)
        cluster.delete(Ref.of(Resource.PODS, deleted))

        await clock.advance(20)

    assert cluster.objects(Resource.PODS) == []


async def test_an_evicted_pod_is_gone_after_its_grace_period() -> None:
    cluster, clock = cluster_with_node("n1"), ManualClock()
    pod = create_pod(cluster, runtime_s=1000)
    await cluster.bind(ref(pod), NODE, {})
    with playing(SimulatedKubelet(cluster, SimulatedDevices(cluster), clock).run()):
        await clock.advance(START_S)
        await cluster.evict(ref(pod))

        await clock.advance(29)
        assert stored(cluster, pod)["metadata"]["deletionTimestamp"]
        await clock.advance(1)

    assert cluster.objects(Resource.PODS) == []


async def test_a_pod_that_finishes_within_its_grace_period_affects_no_other() -> None:
    cluster, clock = cluster_with_node("n1"), ManualClock()
    pod = create_pod(cluster, runtime_s=10)
    await cluster.bind(ref(pod), NODE, {})
    with playing(SimulatedKubelet(cluster, SimulatedDevices(cluster), clock).run()):
        await clock.advance(START_S)
        await cluster.evict(ref(pod))

        await clock.advance(40)

    assert cluster.objects(Resource.PODS) == []


async def test_users_stop_while_too_much_is_pending() -> None:
    cluster, clock = SimulatedCluster(), ManualClock()
    work = (gang(f"g{number}", members=16) for number in range(100))

    with playing(Users(cluster, clock).run(work)):
        await clock.advance(60)

    assert MOST_WAITING <= len(cluster.objects(Resource.PODS)) < MOST_WAITING + 16


async def test_workloads_that_can_never_start_are_few_and_do_not_stop_other_submissions() -> None:
    cluster, clock = SimulatedCluster(), ManualClock()
    in_vain = (
        gang(f"{kind}{number}", members=MOST_WAITING, kind=kind)
        for kind in NEVER_START
        for number in range(MOST_IN_VAIN + 1)
    )

    with playing(Users(cluster, clock).run([*in_vain, gang("g", members=2)])):
        await clock.advance(1)
        groups = {group["metadata"]["name"] for group in cluster.objects(Resource.POD_GROUPS)}

    assert groups == {f"{kind}{number}" for kind in NEVER_START for number in range(MOST_IN_VAIN)} | {"g"}


async def test_a_workload_that_can_never_start_is_submitted_again_after_it_was_given_up() -> None:
    cluster, clock = SimulatedCluster(), ManualClock()
    again = Arrival(after_s=PATIENCE_S + 1, kind="incomplete", objects=gang("again", members=1).objects)
    first = (gang(f"g{number}", members=1, kind="incomplete") for number in range(MOST_IN_VAIN))

    with playing(Users(cluster, clock).run([*first, again])):
        await clock.advance(PATIENCE_S + 2)

    assert [pod["metadata"]["name"] for pod in cluster.objects(Resource.PODS)] == ["again-0"]


async def test_users_give_up_workloads_that_never_started_and_delete_their_podgroups() -> None:
    cluster, clock = SimulatedCluster(), ManualClock()
    with playing(Users(cluster, clock).run([gang("g", members=2)])):
        await clock.advance(1)
        submitted = [len(cluster.objects(resource)) for resource in (Resource.PODS, Resource.POD_GROUPS)]

        await clock.advance(PATIENCE_S)

    assert submitted == [2, 1]
    assert [cluster.objects(resource) for resource in (Resource.PODS, Resource.POD_GROUPS)] == [[], []]


async def test_an_evicted_workload_is_submitted_again() -> None:
    cluster, clock = cluster_with_node("n1"), ManualClock()
    with playing(
        Users(cluster, clock).run([gang("g", members=2)]),
        SimulatedKubelet(cluster, SimulatedDevices(cluster), clock).run(),
    ):
        await clock.advance(1)
        for pod in cluster.objects(Resource.PODS):
            await cluster.bind(ref(pod), NODE, {})
            await cluster.mark_disrupted(ref(pod), reason="PreemptionByScheduler", message="for others")
            await cluster.evict(ref(pod))

        await clock.advance(31)

    again = cluster.objects(Resource.PODS)
    assert [(pod["metadata"]["name"], pod["spec"].get("nodeName")) for pod in again] == [("g-0", None), ("g-1", None)]
    assert len(cluster.objects(Resource.POD_GROUPS)) == 1


async def test_a_failed_pod_is_deleted_and_submitted_again_after_a_pause() -> None:
    cluster, clock = cluster_with_node("n1"), ManualClock()
    with playing(Users(cluster, clock).run([gang("g", members=1)])):
        await clock.advance(1)
        (failed,) = cluster.objects(Resource.PODS)
        cluster.patch(Ref.of(Resource.PODS, failed), {"spec": {"nodeName": NODE}, "status": {"phase": "Failed"}})
        await clock.advance(PAUSE_S - 1)
        assert cluster.objects(Resource.PODS) == []
        await clock.advance(1)

    (again,) = cluster.objects(Resource.PODS)
    assert (again["metadata"]["name"], again["status"]) == ("g-0", {"phase": "Pending"})
    assert again["metadata"]["uid"] != failed["metadata"]["uid"]
    assert "nodeName" not in again["spec"]


async def test_a_failed_pod_of_another_user_is_not_deleted() -> None:
    cluster, clock = cluster_with_node("n1"), ManualClock()
    cluster.create(Resource.PODS, manifests.foreign_pod("other", node="n1", gpus=1))
    with playing(Users(cluster, clock).run([])):
        await clock.advance(1)
        (other,) = cluster.objects(Resource.PODS)
        cluster.patch(Ref.of(Resource.PODS, other), {"status": {"phase": "Failed"}})
        await clock.advance(1)

    assert [pod["metadata"]["uid"] for pod in cluster.objects(Resource.PODS)] == [other["metadata"]["uid"]]


async def test_a_workload_that_was_submitted_again_is_given_up_too() -> None:
    cluster, clock = cluster_with_node("n1"), ManualClock()
    with playing(
        Users(cluster, clock).run([gang("g", members=1)]),
        SimulatedKubelet(cluster, SimulatedDevices(cluster), clock).run(),
    ):
        await clock.advance(PATIENCE_S - 40)
        (pod,) = cluster.objects(Resource.PODS)
        await cluster.bind(ref(pod), NODE, {})
        await cluster.mark_disrupted(ref(pod), reason="PreemptionByScheduler", message="for others")
        await cluster.evict(ref(pod))
        await clock.advance(PATIENCE_S)
        assert len(cluster.objects(Resource.PODS)) == 1

        await clock.advance(40)

    assert cluster.objects(Resource.PODS) == cluster.objects(Resource.POD_GROUPS) == []


def test_the_same_seed_gives_the_same_workloads() -> None:
    assert list(islice(arrivals(7), 50)) == list(islice(arrivals(7), 50))
    assert list(islice(arrivals(7), 50)) != list(islice(arrivals(8), 50))


def test_the_simulated_cluster_has_sixteen_gpu_nodes_three_lab_nodes_two_without_gpus_and_three_leaf_queues() -> None:
    items = list(furniture())

    queues = {
        item["metadata"]["name"]: item["spec"].get("parentQueue") for kind, item in items if kind is Resource.QUEUES
    }
    gpus = [gpus_of(item) for kind, item in items if kind is Resource.NODES]
    assert sorted(gpus) == [0, 0] + [8] * (16 + 3)
    assert set(queues) - set(queues.values()) == {"vision", "language", "serving"}


def test_every_interesting_state_is_in_the_first_hundred_workloads() -> None:
    names = {
        item["metadata"]["name"].split("-")[0] for arrival in islice(arrivals(1), 100) for _, item in arrival.objects
    }

    assert names == {"single", "share", "prepare", "gang", "huge", "incomplete"}


def test_an_incomplete_gang_lacks_exactly_one_member() -> None:
    work = next(
        arrival for arrival in arrivals(1) if arrival.objects[0][1]["metadata"]["name"].startswith("incomplete")
    )

    (_, group), *pods = work.objects
    assert len(pods) == group["spec"]["minMember"] - 1
    assert {pod["metadata"]["annotations"][GROUP_ANNOTATION] for _, pod in pods} == {group["metadata"]["name"]}


def test_some_gangs_want_one_rack_of_the_topology_and_fit_into_one_nvlink_domain() -> None:
    nodes = [item["metadata"]["labels"] for kind, item in furniture() if kind is Resource.NODES]
    (topology,) = (item for kind, item in furniture() if kind is Resource.TOPOLOGIES)
    levels = [level["nodeLabel"] for level in topology["spec"]["levels"]]
    domains = Counter("/".join(labels.get(level, "") for level in levels[:2]) for labels in nodes)
    gangs = [
        item["spec"].get("topologyConstraint")
        for arrival in islice(arrivals(1), 100)
        for kind, item in arrival.objects
        if kind is Resource.POD_GROUPS
    ]

    assert domains == {"/": 5, **{f"rack-{rack}/nvlink-{rack}{part}": 4 for rack in "ab" for part in (1, 2)}}
    assert {constraint["topology"] for constraint in gangs if constraint} == {topology["metadata"]["name"]}
    assert None in gangs


def gpus_of(node: RawObject) -> int:
    return int(node["status"]["allocatable"].get("nvidia.com/gpu", 0))
