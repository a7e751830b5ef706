"""The cost of thousands of gated pods while nothing changes."""

from functools import partial

from tests.system.api import DEFAULT_PODS, Api, pod
from tests.system.bed import Bed
from tests.system.held import HeldCluster, cpu_share, held, holding
from tests.system.waiting import eventually
from tests.system.watched import EVENTS

MANY = 5000
WATCHED_FOR_S = 10.0
"""For how long CPU is measured, at least."""

WORKING = 0.2
"""Of a core: the use during the start is a multiple of this, and the idle use a small part."""

AT_MOST = 4.0
"""Multiple of the CPU that Leeboard uses without gated pods: a scan of all pods, once an interval, would be ten times.
"""


def test_leeboard_is_idle_while_5000_pods_are_gated_and_nothing_changes(bed: Bed, api: Api) -> None:
    # By default Leeboard writes the causes of 20 owners a second.
    with holding(bed, api, status_interval_s="0.1") as cluster:
        cluster.add_nodes(100, gpus=8)
        wait_until_done(bed, what="Leeboard has started")
        alone = cpu_share(bed, for_s=WATCHED_FOR_S)
        crowd(cluster, MANY)
        eventually(
            lambda: len(api.items(EVENTS, fieldSelector="reason=NoNodeFits")),
            until=lambda told: told >= MANY,
            within_s=120,
            what="everybody has been told why",
            every_s=1.0,
        )
        # The last event is no end: on a busy machine other writes, and what they tell the informers, come after it.
        wait_until_done(bed, what="Leeboard has done all that the pods caused")
        crowded = cpu_share(bed, for_s=WATCHED_FOR_S)
        attempts = cluster.told("scheduler_schedule_attempts_total{")
    print(f"Leeboard used {alone:.2%} of a core with nobody held, {crowded:.2%} with {MANY} pods")
    remove_crowd(api)

    assert (crowded < AT_MOST * alone, attempts) == (True, 0)


def wait_until_done(bed: Bed, *, what: str) -> None:
    """Wait until Leeboard uses little CPU for three seconds."""
    eventually(lambda: cpu_share(bed, for_s=3.0), until=lambda used: used < WORKING, within_s=60, what=what)


def crowd(cluster: HeldCluster, number: int) -> None:
    """Create single gated pods that fit on no node."""
    cluster.api.create_all([held(pod(f"crowd-{index}", gpus=16, queue="default-queue")) for index in range(number)])
    eventually(
        lambda: cluster.told('scheduler_pending_pods{queue="gated"'),
        until=lambda seen: seen == number,
        within_s=90,
        what=f"{number} pods are held",
    )


def remove_crowd(api: Api) -> None:
    """Remove them all at once: one by one this takes a minute."""
    for collection in (DEFAULT_PODS, EVENTS):
        eventually(partial(removed, api, collection), within_s=180, what=f"{collection} is empty")


def removed(api: Api, collection: str) -> bool:
    """Remove the rest; on a busy machine the API server may give up in the middle."""
    api.delete_now(collection)
    return not api.items(collection)
