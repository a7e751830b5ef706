"""What users see of ResourceClaims: in answers on GPUs and queues, and in the reasons of pods that wait for devices."""

from datetime import UTC, datetime
from typing import Any

from inline_snapshot import snapshot

from app.cli.gpu_tables import node_picture, nodes_table
from app.cli.queue_tables import queues_table
from app.cli.why_tables import answer_picture
from app.model.explanation import Explanation
from app.model.names import NodeName
from app.model.occupancy import NodeUse
from app.model.seam import Resource
from app.model.sentence import EVERYTHING, Reader
from app.web.answers import Answer, QueueAnswer, QueueList
from app.web.gpu_answers import GpuNodeAnswer, GpuNodeDetail, GpuNodeList, namespaces_of
from app.web.why_answers import ExplanationAnswer
from tests.cluster.dra_objects import DRIVER, claim, metadata, owned_by, request
from tests.control.test_shared_claims import CLASS, four_gpus, shared, uses
from tests.control.wired import World, passes


def node_seen(world: World) -> NodeUse:
    use = world.inspect.gpu_node(NodeName("n"))
    assert use is not None
    return use


def why(world: World, name: str) -> ExplanationAnswer:
    found = world.inspect.explain("q", name)
    assert isinstance(found, Explanation)
    return ExplanationAnswer.of(found)


def shown(answer: Answer) -> dict[str, Any]:
    """Return an answer as a command gets it."""
    return answer.model_dump(mode="json", by_alias=True)


def picture(world: World, name: str) -> str:
    drawn = answer_picture(shown(why(world, name)), width=110, now=datetime.fromtimestamp(world.now(), UTC))
    return "\n" + drawn.partition("\n\nAGO")[0]


async def busy(world: World) -> None:
    """Let two pods of `r` share two of the four GPUs, taint another one, and reserve the last one for a pod of `q`."""
    rule = {"deviceSelector": {"driver": DRIVER, "pool": "n", "device": "gpu-2"}, "taint": {"effect": "NoSchedule"}}
    world.cluster.create(Resource.DEVICE_TAINT_RULES, {"metadata": metadata("sick"), "spec": rule})
    shared(world, "ring", 2, queue="r", on="n")
    for name in ("one", "two"):
        uses(world, name, "ring", queue="r", on="n")
    shared(world, "mine", 1, queue="q")
    uses(world, "mine", "mine")
    await passes(2)


async def test_gpus_shows_which_devices_are_free_and_which_claims_and_pods_hold_the_others() -> None:
    async with four_gpus() as world:
        await busy(world)

        use = node_seen(world)
        nodes = nodes_table(shown(GpuNodeList(items=(GpuNodeAnswer.of(use),))), width=100)

        assert world.inspect.gpu_nodes() == ["n"]
        assert "\n" + nodes == snapshot("""\

NODE  GPUS  FREE  RESERVED  SHARED  GiB USED  HEALTH
n        4     1         1       0         -  by ResourceClaims\
""")
        assert "\n" + node_picture(shown(GpuNodeDetail.detailed(use)), width=100) == snapshot("""\

n: 4 x Example A100 for ResourceClaims

DEVICE AND CLAIMS  MODEL         STATE    PODS
gpu-0              Example A100  held
  r/ring                                  one-0, two-0
gpu-1              Example A100  held
  r/ring                                  one-0, two-0
gpu-2              Example A100  tainted
gpu-3              Example A100  free

1 GPU reserved for 1 pod that is not bound yet: Promised\
""")
        assert list(namespaces_of(use)) == ["r", "r"]


async def test_gpus_names_no_claim_in_a_namespace_that_the_reader_may_not_see() -> None:
    async with four_gpus() as world:
        await busy(world)

        answer = GpuNodeDetail.detailed(node_seen(world), Reader(frozenset({"q"})))

        assert {
            (holder.namespace, holder.name, holder.pods) for each in answer.claim_devices for holder in each.claims
        } == {("", "", ())}
        assert "a claim in another namespace" in node_picture(shown(answer), width=100)


async def test_queues_shows_how_many_of_its_gpus_claims_hold() -> None:
    async with four_gpus() as world:
        world.nodes("plugin", gpus=1)
        world.pod("whole")
        await busy(world)

        stands = world.inspect.queue_stands()()
        answers = [QueueAnswer.of(each) for each in stands]

        assert {each.name: (each.allocated.gpu_milli, each.claimed_gpu_milli) for each in answers} == {
            "q": (2000, 1000),
            "r": (2000, 2000),
        }
        table = queues_table(shown(QueueList(items=tuple(answers)))["items"], "gpu", width=100)
        assert "Of the allocated GPUs, ResourceClaims hold: q 1, r 2." in table


async def test_why_names_the_claim_and_its_class_where_devices_are_missing() -> None:
    async with four_gpus() as world:
        await busy(world)
        shared(world, "late", 2, queue="q")
        uses(world, "late", "late")
        shared(world, "large", 9, queue="q")
        uses(world, "large", "large")
        await passes(2)

        assert picture(world, "late-0") == snapshot("""\

No node has room: the only node has too few GPUs (requested 2, at most 0 free); queue q holds 1 GPU and would
exceed its fair share of 2 GPUs with 2 GPUs more, so it reclaims nothing, and pods of its own queue have the
same or a higher priority. It needs ResourceClaim late (2 GPUs of DeviceClass gpu.example.com).

pod       q/late-0
state     Held, NoNodeFits
terms     priority 50, preemptible
queue     q, in which 2 PodGroups wait
          GPUs: 1 allocated, 12 requested; deserved 2, limit none, fair share 2
position  first in queue q
claim     late: 2 GPUs of gpu.example.com, not allocated, shared with other pods\
""")
        assert why(world, "large-0").why.sentence == (
            "No node could hold the pod even when empty: the only node has not the devices that its ResourceClaims ask "
            "for. It needs ResourceClaim large (9 GPUs of DeviceClass gpu.example.com)."
        )
        assert [each.model_dump(by_alias=True) for each in why(world, "large-0").claims] == [
            {
                "name": "large",
                "deviceClasses": ("gpu.example.com",),
                "gpuMilli": 9000,
                "node": None,
                "shared": True,
                "problem": None,
            }
        ]


async def test_why_of_a_running_pod_tells_where_its_claim_is_allocated_and_no_cause() -> None:
    async with four_gpus() as world:
        await busy(world)
        found = world.inspect.explain("r", "one-0")
        assert isinstance(found, Explanation)

        answer = ExplanationAnswer.of(found, EVERYTHING)

        assert answer.why.sentence == "It is on node n."
        assert [(each.name, each.node, each.shared) for each in answer.claims] == [("ring", "n", True)]


async def test_why_names_a_claim_of_the_pod_alone_and_one_that_does_not_exist() -> None:
    async with four_gpus() as world:
        pod = uses(world, "one", "own", "missing")
        own = claim("own", request(CLASS, count=2), namespace="q")
        own["metadata"]["ownerReferences"] = owned_by(pod["metadata"]["uid"])
        world.cluster.create(Resource.RESOURCE_CLAIMS, own)
        await passes(2)

        assert picture(world, "one-0") == snapshot("""\

Pod one-0 waits for ResourceClaim 'missing', which does not exist; create what is missing.

pod    q/one-0
state  Held, NotConsidered
terms  priority 50, preemptible
queue  q, in which 1 PodGroup waits
       GPUs: 0 allocated, 0 requested; deserved 2, limit none, fair share 0
claim  own: 2 GPUs of gpu.example.com, not allocated
claim  missing: it does not exist\
""")
