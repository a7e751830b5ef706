"""The pods that the bench presents as changed by admission are those that admission makes of the same pods."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from app.control.webhooks.admission import Admission
from app.model.admission import AdmissionQuestion, Admitted, Operation, PatchOperation
from app.model.marks import BIND_MARKER
from app.settings import Settings
from loadtest.contender import Batch, Contender
from loadtest.ours import EXTENDER_ONLY, HELD, LET_IN, ours
from tests.cluster.patched import patched
from tests.control.virtual import VirtualTimeLoop
from tests.control.wired import living, passes
from tests.system.api import Object, pod

QUEUE = "bench"
MARKERS = frozenset({BIND_MARKER})
LONE = Batch(name="p", count=2, queue=QUEUE)
LARGE = Batch(name="l", count=2, queue=QUEUE, gpus=16)
GANGS = Batch(name="g", count=4, queue=QUEUE, gang_size=2)
HALVES = Batch(name="h", count=1, queue=QUEUE, gpus=0, fraction="0.5")
HALF = pod("h-00000", gpus=0, queue=QUEUE, annotations={"gpu-fraction": "0.5"})

CONTENDERS: Mapping[str, Contender] = {one.name: one for one in ours()}


def given(name: str, batch: Batch) -> list[Object]:
    """Return the pods that a contender gets."""
    return [item for item in CONTENDERS[name].work(batch) if item["kind"] == "Pod"]


def stored(pods: Sequence[Object]) -> list[Object]:
    """Return the pods that admission makes of new pods, one after another, with eight free GPUs on one node."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(_stored(pods))


async def _stored(pods: Sequence[Object]) -> list[Object]:
    async with living("a", gpus=8, markers=MARKERS) as world:
        world.queue(QUEUE)
        await passes(1)
        admission = Admission(world.cache, world.fast_path, Settings(markers=MARKERS), freshness=world.freshness)
        return [patched(one, _changes(admission, one)) for one in pods]


def _changes(admission: Admission, raw: Object) -> Sequence[PatchOperation]:
    names = {"namespace": raw["metadata"]["namespace"], "name": raw["metadata"]["name"]}
    answer = admission.mutate(AdmissionQuestion(group="", kind="Pod", operation=Operation.CREATE, object=raw, **names))
    assert isinstance(answer, Admitted)
    return answer.patch


@pytest.mark.parametrize("batch", [LARGE, GANGS], ids=["lone", "gangs"])
def test_gated_pods_are_those_that_admission_makes_of_pods_that_have_to_wait(batch: Batch) -> None:
    assert stored(given(EXTENDER_ONLY, batch)) == given(HELD, batch)


def test_gated_pod_that_shares_a_gpu_is_the_one_that_admission_makes() -> None:
    assert stored([HALF]) == given(HELD, HALVES)


def test_ungated_single_pods_are_those_that_admission_makes_of_pods_that_can_run_at_once() -> None:
    assert stored(given(EXTENDER_ONLY, LONE)) == given(LET_IN, LONE)


@pytest.mark.parametrize("name", [HELD, LET_IN])
def test_late_single_pods_get_no_gate_in_either_way_of_making_them(name: str) -> None:
    assert stored(given(name, LONE)) == given(LET_IN, LONE)


@pytest.mark.parametrize("name", [HELD, EXTENDER_ONLY])
def test_late_members_of_a_new_gang_are_gated_in_either_way_of_making_them(name: str) -> None:
    assert stored(given(name, GANGS)) == given(HELD, GANGS)
