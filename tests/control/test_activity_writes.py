"""What a replica does not write from the moment in which another replica may decide."""

import asyncio

from app.control.cycle.group_cycles import GroupCycles
from app.control.cycle.parked_pods import ParkedPods
from app.control.cycle.releases import Releases
from app.control.report.status import WRITES_AT_ONCE
from app.control.writers.bind_outcomes import BOUND
from app.control.writers.binder import WRITERS
from app.model.decision import Action, Eviction
from app.model.marks import GATE
from app.model.names import GroupKey, NodeName, PodUid
from app.model.seam import UnavailableError
from app.settings import Settings
from tests.control.gpu_machines import Machine, SharingCluster, exists, machines, sharer
from tests.control.leases import BESIDE_US, LEASE_S, SETTLED_S, elected
from tests.control.ready import Told
from tests.control.wired import living, passes, ref


async def test_a_replica_with_an_expired_lease_writes_no_binding() -> None:
    async with living(cluster=elected(), **BESIDE_US) as world:
        await passes(SETTLED_S)
        pod = world.pod("p")
        node = await world.choose(pod, "a")
        world.cluster.is_renewed = False
        world.cluster.errors["bind"].extend([UnavailableError("down", retry_after_s=LEASE_S)])

        bind = world.binding(pod, node)
        await passes(LEASE_S + 1)

        assert await bind == "this replica of Leeboard no longer decides; kube-scheduler will try again"
        assert world.bound() == {}


async def test_a_queued_binding_is_not_written_after_the_lease_expires() -> None:
    async with living(cluster=elected(gpus=WRITERS + 1), **BESIDE_US) as world:
        await passes(SETTLED_S)
        pods = [world.pod(f"p{index}") for index in range(WRITERS + 1)]
        binds = [world.binding(pod, await world.choose(pod, "a")) for pod in pods]
        world.cluster.takes_s["bind"] = 20

        world.cluster.is_renewed = False
        answers = await asyncio.gather(*binds)

        assert set(answers) == {"this replica of Leeboard no longer decides; kube-scheduler will try again"}
        assert len(world.cluster.binds) == WRITERS


async def test_a_binding_that_is_not_sent_before_the_lease_expires_is_not_sent_at_all() -> None:
    async with living(cluster=elected(), **BESIDE_US) as world:
        await passes(SETTLED_S)
        pod = world.pod("p")
        bind = world.binding(pod, await world.choose(pod, "a"))
        world.cluster.takes_s["bind"] = LEASE_S + 5

        world.cluster.is_renewed = False
        await passes(LEASE_S + 10)

        assert await bind == "this replica of Leeboard no longer decides; kube-scheduler will try again"
        assert world.bound() == {}


async def test_a_binding_whose_reply_is_lost_when_the_lease_expires_is_looked_up() -> None:
    async with living(cluster=elected(), **BESIDE_US) as world:
        await passes(SETTLED_S)
        pod = world.pod("p")
        bind = world.binding(pod, await world.choose(pod, "a"))
        world.cluster.takes_s["bind"] = LEASE_S + 5

        world.cluster.is_renewed = False
        await passes(5)
        world.patch(pod, spec={"nodeName": "a"})

        assert await bind == BOUND


async def test_a_replica_that_is_no_longer_active_does_not_report_an_evicted_victim_again() -> None:
    async with living(cluster=elected(), **BESIDE_US) as world:
        await passes(SETTLED_S)
        victim = world.runs("victim", "a")
        await passes(1)
        world.cluster.takes_s["evict"] = 20

        group = GroupKey("q", victim["metadata"]["uid"])
        world.evictor.order(
            [
                Eviction(pod=ref(victim).uid, group=group, node=NodeName("a"), action=Action.RECLAIM),
            ]
        )
        world.cluster.is_renewed = False
        await passes(30)

        assert (len(world.cluster.evictions), world.cluster.marks) == (1, [])


async def test_an_eviction_that_is_not_sent_before_the_lease_expires_is_not_sent_at_all() -> None:
    async with living(cluster=elected(), **BESIDE_US) as world:
        await passes(SETTLED_S)
        victim = world.runs("victim", "a")
        await passes(1)
        world.cluster.takes_s["evict"] = LEASE_S + 5

        world.evictor.dismiss(ref(victim).uid, cause="overuse", message="it uses too much")
        world.cluster.is_renewed = False
        await passes(LEASE_S + 10)

        assert (len(world.cluster.evictions), exists(world, victim)) == (1, True)


async def test_a_reservation_pod_that_is_not_sent_before_the_lease_expires_is_not_sent_at_all() -> None:
    elected(cluster=(cluster := SharingCluster()))
    async with machines(cluster=cluster, known=[Machine(cluster, "a", gpus=1)], **BESIDE_US) as (world, (a,)):
        await passes(SETTLED_S)
        cluster.takes_s["create_pod"] = LEASE_S + 5

        sharer(world, "half")
        await passes(1)
        cluster.is_renewed = False
        await passes(LEASE_S + 10)

        assert (len(cluster.created), a.reservations()) == (1, [])


async def test_queued_statuses_are_left_to_the_active_replica() -> None:
    async with living(cluster=elected(), **BESIDE_US) as world:
        await passes(10)
        for index in range(10):
            world.gang(f"large-{index}", size=2)
        world.cluster.statuses.clear()
        world.cluster.takes_s["write_status"] = 10

        world.cluster.is_renewed = False
        await passes(60)
        written = [name for name, _ in world.cluster.statuses]
        world.cluster.is_renewed = True
        await passes(60)

        # Beside the status of the queue, which was first.
        assert len(written) == 1 + WRITES_AT_ONCE
        assert {name for name, _ in world.cluster.statuses} >= {f"large-{index}" for index in range(10)}


async def test_queued_events_are_left_to_the_active_replica() -> None:
    async with living(cluster=elected(), **BESIDE_US) as world:
        await passes(10)
        for index in range(3):
            world.pod(f"large-{index}", gpus=8)
        world.cluster.takes_s["record_event"] = 20

        world.cluster.is_renewed = False
        await passes(60)
        told = len(world.cluster.told)
        world.cluster.is_renewed = True
        await passes(100)

        assert (told, len(world.cluster.told)) == (1, 3)


async def test_a_standby_writes_nothing() -> None:
    async with living(cluster=elected("pod-b_77aa"), **BESIDE_US) as world:
        world.gang("gang", size=2)
        world.pod("large", gpus=8)
        await passes(60)

        cluster = world.cluster
        assert (cluster.statuses, cluster.told, cluster.nominations, cluster.binds) == ([], [], [], [])


async def test_no_scheduling_gate_is_removed_once_another_replica_may_decide() -> None:
    # As after a SIGCONT: the reservation still exists, because nothing has noticed yet that this replica is not active.
    async with living("a", gpus=0) as world:
        pod = world.pod("p", gates=(GATE,))
        await passes(0.5)
        uid = PodUid(pod["metadata"]["uid"])
        world.cache.promises.make(uid, NodeName("a"), expires_at=world.now() + 60)
        releases = Releases(
            world.cache,
            world.cluster,
            world.metrics,
            Told("another may decide"),
            ParkedPods(world.cache),
            GroupCycles(world.cache, Settings()),
            sleep=asyncio.sleep,
        )
        writers = asyncio.create_task(releases.run())

        releases.add(uid)
        await passes(1)
        writers.cancel()

        assert (world.cluster.releases, world.cache.reservations.promised(uid) is not None) == ([], True)


async def test_no_nomination_is_removed_once_another_replica_may_decide() -> None:
    async with living(cluster=elected(), **BESIDE_US) as world:
        await passes(SETTLED_S)
        pod = world.pod("p")
        world.cluster.is_renewed = False
        await passes(LEASE_S)

        world.patch(pod, status={"nominatedNodeName": "a"})
        await passes(0.1)
        world.waker.revoke(PodUid(pod["metadata"]["uid"]))
        await passes(1)

        assert world.cluster.nominations == []
