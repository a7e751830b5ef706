"""Messages stored in the namespace of a tenant name no object of another tenant; `why` names it to some readers."""

import json
from collections import defaultdict
from collections.abc import Mapping

from app.model.explanation import Explanation
from app.model.seam import Resource
from app.model.sentence import EVERYTHING, tenant, told
from tests.control.wired import World, living, passes


def stored(world: World) -> Mapping[str, str]:
    """Return all stored messages, by namespace."""
    texts: defaultdict[str, str] = defaultdict(str)
    for event in world.cluster.events:
        texts[event.regarding["namespace"]] += f"{event.note}\n"
    for group in world.cluster.objects(Resource.POD_GROUPS):
        texts[group["metadata"]["namespace"]] += json.dumps(group.get("status", {})) + "\n"
    for name, message in world.cluster.marks:
        texts[name.partition("-")[0]] += f"{message}\n"
    return texts


async def test_an_evicted_pod_is_not_told_the_pod_of_another_tenant_that_it_was_evicted_for() -> None:
    async with living("a") as world:
        world.queue("r", gpus=1)
        world.runs("q", "a")
        await passes(1)
        world.gang("secret", size=1, queue="r")
        await passes(5)
        world.gang("late", size=1)
        await passes(5)

        found = stored(world)
        answer = world.inspect.explain("q", "q-0")

        assert "Pod q/q-0 was evicted for workload in another namespace" in found["q"]
        assert "The pod that has to leave for it has not ended yet (1 in another namespace)" in found["r"]
        assert "secret" not in found["q"]
        assert "q-0" not in found["r"]
        assert isinstance(answer, Explanation)
        assert "for workload r/secret" in told(answer.why.sentence, EVERYTHING)
        assert "secret" not in told(answer.why.sentence, tenant("q"))


async def test_a_pending_pod_is_not_told_the_pod_of_another_tenant_that_has_the_reservation() -> None:
    async with living("a", promise_ttl_s=600) as world:
        world.queue("r", gpus=1)
        world.gang("secret", size=1, queue="r")
        await passes(1)
        world.gang("late", size=1)
        await passes(10)

        answer = world.inspect.explain("q", "late")

        assert "the only node is reserved for a PodGroup in another namespace" in stored(world)["q"]
        assert "secret" not in stored(world)["q"]
        assert isinstance(answer, Explanation)
        assert "the only node is reserved for r/secret" in told(answer.why.sentence, EVERYTHING)
