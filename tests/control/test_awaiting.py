"""Room held for a pod until victims are gone, when it is not released after all: who waits, who stays, who starts."""

from app.cluster.ledger.reservations import ReservationState
from app.control.cycle.preemptions import RECONSIDERED_AFTER_S, WASTED_S
from app.control.writers.evictor import WRITERS
from app.model.decision import Placement, Start
from app.model.names import NodeName
from app.model.pod import Sharing
from app.model.reason import Reason
from app.model.seam import RawObject, Resource
from app.simulation import manifests
from app.simulation.cluster import Ref
from app.simulation.manifests import Quota
from tests import given
from tests.cluster.sharing_given import MIB, device, report
from tests.control.wired import FickleCluster, World, living, passes

URGENT = "build-preemptible"
HALF = Sharing(portion_ppm=500_000)


def cordon(world: World, node: str) -> None:
    world.cluster.patch(Ref(resource=Resource.NODES, name=node), {"spec": {"unschedulable": True}})


def leaves(world: World, pod: RawObject) -> None:
    """Let a pod's owner delete it; it terminates slowly."""
    world.patch(pod, metadata={"deletionTimestamp": "1970-01-01T00:00:00Z"})


def state(world: World, pod: RawObject) -> ReservationState | None:
    held = world.held(pod)
    return None if held is None else held.state


async def test_a_pod_that_waits_for_room_on_a_node_that_is_cordoned_gets_another_node() -> None:
    async with living("a") as world:
        world.runs("victim", "a")
        await passes(1)
        urgent = world.pod("urgent", priority_class=URGENT)
        await passes(2)
        assert world.promised(urgent) == "a"
        world.nodes("b")

        cordon(world, "a")
        await passes(5)

        assert (world.promised(urgent), state(world, urgent)) == ("b", ReservationState.PROMISED)


async def test_no_further_victims_are_evicted_soon_when_another_scheduler_takes_the_released_room() -> None:
    async with living("a", "b") as world:
        victims = {name: world.runs(name, node) for name, node in (("first", "a"), ("second", "b"))}
        await passes(1)
        urgent = world.pod("urgent", priority_class=URGENT)
        await passes(2)
        (evicted,), node = world.cluster.evictions, world.promised(urgent)
        assert node is not None

        world.cluster.create(Resource.PODS, manifests.foreign_pod("stranger", node=node, gpus=1))
        world.delete(victims[evicted.removesuffix("-0")])
        await passes(WASTED_S / 2)
        assert (world.promised(urgent), world.reason(urgent)) == (None, Reason.BACKING_OFF)
        await passes(WASTED_S)

        assert len(world.cluster.evictions) == 2


async def test_victims_that_are_not_evicted_yet_stay_when_the_beneficiary_is_deleted() -> None:
    size = 3 * WRITERS
    async with living("a", gpus=size) as world:
        world.cluster.takes_s["evict"] = 10
        victims = [world.runs(f"victim-{number}", "a") for number in range(size)]
        await passes(1)
        urgent = world.pod("urgent", gpus=size, priority_class=URGENT)
        await passes(2)
        assert (len(world.cluster.evictions), state(world, urgent)) == (WRITERS, ReservationState.AWAITING)

        world.delete(urgent)
        await passes(60)

        assert len(world.cluster.evictions) == WRITERS
        staying = [pod for pod in victims if pod["metadata"]["name"] not in world.cluster.evictions]
        assert [is_leaving(world, pod) for pod in staying] == [False] * (size - WRITERS)


def is_leaving(world: World, raw: RawObject) -> bool:
    pod = world.cache.pods.get(raw["metadata"]["uid"])
    return pod is not None and pod.deleting


async def test_room_that_became_free_elsewhere_early_is_used_without_another_event() -> None:
    async with living("a", "b") as world:
        leaving, running = world.runs("leaving", "a"), world.runs("running", "b")
        leaves(world, leaving)
        await passes(1)
        waits = world.pod("waits")
        await passes(1)

        world.delete(running)
        await passes(RECONSIDERED_AFTER_S)

        assert (state(world, waits), world.promised(waits)) == (ReservationState.PROMISED, "b")


async def test_a_queue_stays_within_its_limit_while_its_own_victims_terminate() -> None:
    async with living("a", gpus=3) as world:
        world.cluster.create(Resource.QUEUES, manifests.queue("top", None, Quota(gpus=0, limit=1)))
        world.cluster.create(Resource.QUEUES, manifests.queue("low", "top", Quota(gpus=0)))
        victim = world.runs("victim", "a", queue="low")
        await passes(1)
        urgent = world.pod("urgent", queue="low", priority_class=URGENT)

        await passes(5)

        # The node has room too: the missing room is that below the limit of the queue above.
        assert (world.cluster.evictions, state(world, urgent)) == (["victim-0"], ReservationState.AWAITING)
        world.delete(victim)
        await passes(0.1)
        assert state(world, urgent) is ReservationState.PROMISED


async def test_a_pod_that_waits_below_a_limit_gives_up_its_room_when_the_limit_is_lowered() -> None:
    async with living("a", gpus=4) as world:
        world.cluster.create(Resource.QUEUES, manifests.queue("small", None, Quota(gpus=0, limit=2)))
        victim = world.runs("victim", "a", queue="small", gpus=2)
        await passes(1)
        urgent = world.pod("urgent", queue="small", gpus=2, priority_class=URGENT)
        await passes(2)
        assert state(world, urgent) is ReservationState.AWAITING

        lower = manifests.queue("small", None, Quota(gpus=0, limit=1))["spec"]
        world.cluster.patch(Ref(resource=Resource.QUEUES, name="small"), {"spec": lower})
        world.delete(victim)
        await passes(5)

        assert world.held(urgent) is None
        await passes(WASTED_S)
        assert world.cache.groups.waiting()
        assert world.reason(urgent) is Reason.OVER_LIMIT


async def test_the_second_of_two_pods_that_wait_below_one_limit_starts_when_both_have_room() -> None:
    async with living("a", gpus=9) as world:
        world.cluster.create(Resource.QUEUES, manifests.queue("small", None, Quota(gpus=0, limit=2)))
        victims = [world.runs(f"victim-{number}", "a", queue="small") for number in range(2)]
        await passes(1)
        urgent = [world.pod(f"urgent-{number}", queue="small", priority_class=URGENT) for number in range(2)]
        await passes(2)

        world.delete(victims[0])
        await passes(2)
        first = sorted(str(state(world, pod)) for pod in urgent)
        world.delete(victims[1])
        await passes(2)

        assert first == ["Awaiting", "Promised"]
        assert [state(world, pod) for pod in urgent] == [ReservationState.PROMISED] * 2


async def test_a_pod_that_waits_for_a_victim_that_stays_after_all_is_planned_again() -> None:
    async with living("a", actions="") as world:
        stays = world.runs("stays", "a")
        leaves(world, stays)
        await passes(1)
        waits = world.pod("waits")
        await passes(1)
        assert state(world, waits) is ReservationState.AWAITING

        world.cluster.create(Resource.PODS, manifests.foreign_pod("stranger", node="a", gpus=1))
        await passes(2)

        assert (state(world, waits), world.reason(waits)) == (None, Reason.NO_NODE_FITS)


async def test_a_gpu_that_is_being_prepared_for_a_pod_is_not_given_to_another_pod_that_waits() -> None:
    world, node = World(FickleCluster()), NodeName("a")
    leaving, share = given.pod("leaving", node=node, deleting=True), given.pod("share", gpus=0, sharing=HALF)
    whole = given.pod("whole")
    world.cache.apply_queue(given.queue("q"))
    world.cache.apply_node(given.node("a", gpus=2, device_memory_mib=MIB))
    world.cache.apply_gpu_node(report(device("u0", leaving), device("u1")), heard_at=0.0)
    for pod in (leaving, share, whole):
        world.cache.apply_pod(pod)
    for pod, devices in ((share, ("shared",)), (whole, ())):
        place = Placement(pod.uid, node, devices)
        world.preemptions.hold([Start(group=pod.group, placements=(place,))], ())
        world.preemptions.note_changes(world.cache.drain_changes())

    world.preemptions.review()
    before = {held.pod: held.state for held in world.cache.reservations}
    world.cache.delete_pod(leaving.uid)
    world.preemptions.note_changes(world.cache.drain_changes())
    world.preemptions.review()
    after = {held.pod: held.state for held in world.cache.reservations}

    assert before == {share.uid: ReservationState.AWAITING, whole.uid: ReservationState.AWAITING}
    assert after == {share.uid: ReservationState.AWAITING, whole.uid: ReservationState.PROMISED}
