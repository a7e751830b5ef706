import asyncio
from collections.abc import Mapping, Sequence

from app.model.marks import GATE
from app.model.names import NodeName
from app.model.seam import RawObject, Resource
from app.simulation.cluster import Ref, SimulatedCluster
from app.simulation.scheduler import Scheduler
from app.simulation.webhooks import ExtenderError, Filtered
from tests.simulation.play import ManualClock, cluster_with_node, create_pod, playing, ref, settle, stored

NO = Filtered(names=(), reasons={"n1": "Leeboard(OverLimit): no", "n2": "Leeboard(OverLimit): no"})


class FakeExtender:
    """Gives the answers of the test, binds in the cluster, and records its calls."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self.answers: list[Filtered | ExtenderError] = []
        self.filtered: list[tuple[str, list[str]]] = []
        self.barrier = asyncio.Event()
        self.barrier.set()
        self.nominates_meanwhile: NodeName | None = None
        self.binding: list[str] = []
        self.bind_errors: list[ExtenderError] = []
        self.answers_lost: list[ExtenderError] = []

    async def filter(self, pod: RawObject, names: Sequence[str]) -> Filtered:
        self.filtered.append((pod["metadata"]["name"], list(names)))
        if self.nominates_meanwhile is not None:
            await self.cluster.nominate(ref(pod), self.nominates_meanwhile)
            self.nominates_meanwhile = None
            await settle()
        answer = self.answers.pop(0) if self.answers else Filtered(names=tuple(names))
        if isinstance(answer, ExtenderError):
            raise answer
        return answer

    async def prioritize(self, pod: RawObject, names: Sequence[str]) -> Mapping[str, int]:
        del pod
        return {name: 10 if name == "n2" else 1 for name in names}

    async def bind(self, pod: RawObject, node: str) -> None:
        self.binding.append(pod["metadata"]["name"])
        await self.barrier.wait()
        if self.bind_errors:
            raise self.bind_errors.pop(0)
        await self.cluster.bind(ref(pod), NodeName(node), {})
        await settle()
        if self.answers_lost:
            raise self.answers_lost.pop(0)


class Stage:
    """A cluster of two nodes of 8 GPUs, a fake extender and the driver between them."""

    def __init__(self) -> None:
        self.cluster = cluster_with_node("n1", "n2")
        self.clock = ManualClock()
        self.extender = FakeExtender(self.cluster)
        self.driver = Scheduler(self.cluster, self.extender, self.clock)

    def condition(self, pod: RawObject) -> RawObject:
        (condition,) = stored(self.cluster, pod)["status"]["conditions"]
        return {name: condition[name] for name in ("status", "reason", "message") if name in condition}


async def test_the_node_with_the_best_score_is_chosen() -> None:
    stage = Stage()
    pod = create_pod(stage.cluster)

    with playing(stage.driver.run()):
        await settle()

    assert stored(stage.cluster, pod)["spec"]["nodeName"] == "n2"


async def test_higher_priority_is_first_and_then_the_earlier_pod() -> None:
    stage = Stage()
    for name, priority_class in (("a", "train"), ("b", "train"), ("c", "inference")):
        create_pod(stage.cluster, name, priority_class=priority_class)

    with playing(stage.driver.run()):
        await settle()

    assert [name for name, _ in stage.extender.filtered] == ["c-0", "a-0", "b-0"]


async def test_binds_wait_in_parallel_and_assumed_resources_are_not_offered_twice() -> None:
    stage = Stage()
    stage.extender.barrier.clear()
    for name in ("a", "b", "c"):
        create_pod(stage.cluster, name, gpus=8)

    with playing(stage.driver.run()):
        await settle()

    assert stage.extender.binding == ["a-0", "b-0"]
    assert stage.extender.filtered == [("a-0", ["n1", "n2"]), ("b-0", ["n1"])]


async def test_a_pod_that_fits_on_no_node_is_refused_like_kube_scheduler_without_calling_leeboard() -> None:
    stage = Stage()
    pod = create_pod(stage.cluster, gpus=16)

    with playing(stage.driver.run()):
        await settle()

    message = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    assert stage.condition(pod) == {"status": "False", "reason": "Unschedulable", "message": message}
    assert stage.extender.filtered == []


async def test_a_pod_refused_by_leeboard_is_parked_and_its_own_condition_does_not_wake_it() -> None:
    stage = Stage()
    stage.extender.answers = [NO]
    pod = create_pod(stage.cluster)

    with playing(stage.driver.run()):
        await stage.clock.advance(3600)

    assert stage.condition(pod)["message"] == "0/2 nodes are available: 2 Leeboard(OverLimit): no."
    assert len(stage.extender.filtered) == 1


async def test_a_parked_pod_is_woken_when_another_pod_ends() -> None:
    stage = Stage()
    stage.extender.answers = [Filtered(names=("n1",)), NO]
    ending, waiting = create_pod(stage.cluster, "ending"), create_pod(stage.cluster, "waiting")
    with playing(stage.driver.run()):
        await settle()

        stage.cluster.delete(Ref.of(Resource.PODS, ending))
        await settle()

    assert "nodeName" in stored(stage.cluster, waiting)["spec"]


async def test_a_nomination_wakes_a_parked_pod_and_offers_exactly_that_node() -> None:
    stage = Stage()
    stage.extender.answers = [NO]
    pod = create_pod(stage.cluster)
    with playing(stage.driver.run()):
        await settle()

        await stage.cluster.nominate(ref(pod), NodeName("n1"))
        await settle()

    assert stage.extender.filtered == [("one-0", ["n1", "n2"]), ("one-0", ["n1"])]
    assert stored(stage.cluster, pod)["spec"]["nodeName"] == "n1"


async def test_a_refused_nomination_is_followed_by_all_nodes_and_cleared() -> None:
    stage = Stage()
    stage.extender.answers = [NO, NO, NO]
    pod = create_pod(stage.cluster)
    await stage.cluster.nominate(ref(pod), NodeName("n1"))

    with playing(stage.driver.run()):
        await settle()

    # Its own update of the nomination wakes it once more, as in kube-scheduler; then nothing happens.
    assert [names for _, names in stage.extender.filtered] == [["n1"], ["n1", "n2"], ["n1", "n2"]]
    assert "nominatedNodeName" not in stored(stage.cluster, pod)["status"]


async def test_a_nomination_made_while_the_pod_is_being_refused_is_not_lost() -> None:
    stage = Stage()
    stage.extender.answers = [NO]
    stage.extender.nominates_meanwhile = NodeName("n2")
    pod = create_pod(stage.cluster)

    with playing(stage.driver.run()):
        await settle()
        await settle()

    assert [names for _, names in stage.extender.filtered] == [["n1", "n2"], ["n2"]]
    assert stored(stage.cluster, pod)["spec"]["nodeName"] == "n2"


async def test_an_error_backs_off_longer_each_time_whatever_changes_meanwhile() -> None:
    stage = Stage()
    stage.extender.answers = [ExtenderError("not synced")] * 3
    pod = create_pod(stage.cluster)
    attempts = []
    with playing(stage.driver.run()):
        for seconds in (0.5, 0.5, 1.5, 0.5):
            await stage.clock.advance(seconds)
            stage.cluster.patch(
                Ref.of(Resource.PODS, pod), {"metadata": {"annotations": {"at": str(stage.clock.now())}}}
            )
            attempts.append(len(stage.extender.filtered))

    assert attempts == [1, 2, 2, 3]
    assert stage.condition(pod) == {"status": "False", "reason": "SchedulerError", "message": "not synced"}


async def test_a_failed_bind_frees_the_node_and_is_tried_again() -> None:
    stage = Stage()
    stage.extender.bind_errors = [ExtenderError("its gang did not come")]
    pod = create_pod(stage.cluster, gpus=8)
    with playing(stage.driver.run()):
        await settle()
        failed = stage.condition(pod)["message"]

        await stage.clock.advance(1)

    assert failed == "its gang did not come"
    assert stored(stage.cluster, pod)["spec"]["nodeName"] == "n2"


async def test_a_successful_bind_whose_answer_was_lost_keeps_its_node() -> None:
    stage = Stage()
    stage.extender.answers_lost = [ExtenderError("timed out")]
    create_pod(stage.cluster, "bound", gpus=8)
    with playing(stage.driver.run()):
        await settle()
        await settle()

        create_pod(stage.cluster, "next", gpus=8)
        await settle()

    assert stage.extender.filtered == [("bound-0", ["n1", "n2"]), ("next-0", ["n1"])]


async def test_a_pod_is_scheduled_when_its_last_gate_is_removed() -> None:
    stage = Stage()
    pod = create_pod(stage.cluster, "held")
    stage.cluster.patch(Ref.of(Resource.PODS, pod), {"spec": {"schedulingGates": [{"name": GATE}]}})

    with playing(stage.driver.run()):
        await settle()
        assert stage.extender.filtered == []
        await stage.cluster.release(ref(pod))
        await settle()

    assert stored(stage.cluster, pod)["spec"]["nodeName"] == "n2"


async def test_pods_of_other_schedulers_and_gated_pods_are_not_scheduled() -> None:
    stage = Stage()
    foreign, gated = create_pod(stage.cluster, "foreign"), create_pod(stage.cluster, "gated")
    stage.cluster.patch(Ref.of(Resource.PODS, foreign), {"spec": {"schedulerName": "default-scheduler"}})
    stage.cluster.patch(Ref.of(Resource.PODS, gated), {"spec": {"schedulingGates": [{"name": "g"}]}})

    with playing(stage.driver.run()):
        await settle()

    assert stage.extender.filtered == []
