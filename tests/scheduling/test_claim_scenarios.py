"""Plans for pods that get GPUs by claims: reclaim between queues, gangs and victims that share claims, absurd requests.

The cluster is the cache of Leeboard, fed with objects of `resource.k8s.io`. What a plan decides is what users see: who
starts, who is evicted, and the sentence that a waiting pod gets.
"""

from itertools import count
from typing import Any

import pytest

from app.model.decision import Action, Plan
from app.model.names import GroupKey, NodeName
from app.model.podgroup import GroupSpec
from app.model.priority import PriorityClass
from app.model.reason import Reason
from app.model.snapshot import Snapshot
from app.scheduling.planner.planner import plan
from tests import given
from tests.cluster.dra_objects import claim, gpu, request, resource_slice
from tests.cluster.test_device_claims import Cluster

CLASS = "gpu.example.com"
NOW = 1e6
MOST = 1 << 20
"""The largest count that Leeboard reads."""
LARGEST = (1 << 63) - 1
"""The largest count that the API server accepts."""


class Scene(Cluster):
    """Nodes whose GPUs only claims can get, pods that run since long ago, and pods that wait."""

    def __init__(self, *nodes: int) -> None:
        names = [f"n{number}" for number in range(len(nodes))]
        super().__init__(*names)
        for name, gpus in zip(names, nodes, strict=True):
            self.show_slice(resource_slice(name, [gpu(f"gpu-{number}") for number in range(gpus)]))
        self._given = dict.fromkeys(names, 0)
        self._ages = map(float, count(1))

    def queues(self, **deserved: int) -> None:
        for name, gpus in deserved.items():
            self.cache.apply_queue(given.queue(name, deserved=gpus))

    def claims(self, name: str, gpus: int, *, queue: str, on: str = "") -> str:
        """Show a claim that a person made for a queue, allocated if it has a node."""
        devices: list[str] = []
        if on:
            first = self._given[on]
            self._given[on] = first + gpus
            devices = [f"gpu-{number}" for number in range(first, first + gpus)]
        asked = request(CLASS, count=gpus)
        self.show_claim(claim(name, asked, labels={"kai.scheduler/queue": queue}, on=on, devices=devices))
        return name

    def runs(self, name: str, gpus: int, *, queue: str, on: str = "n0", **more: Any) -> None:
        """Show a pod that runs with a claim of its own."""
        self.joins(name, self.claims(f"of-{name}", gpus, queue=queue, on=on), queue=queue, on=on, **more)

    def joins(self, name: str, *claims: str, queue: str, on: str = "n0", **more: Any) -> None:
        """Show a pod that runs with claims that are there; it is younger than those before."""
        born = next(self._ages)
        pod = given.pod(name, gpus=0, queue=queue, claim_names=claims, node=NodeName(on), created_at=born, **more)
        self.cache.apply_pod(pod, born)

    def waits(self, name: str, *gpus: int, queue: str, **more: Any) -> None:
        """Show a pod that waits with claims of its own for so many GPUs each."""
        named = [self.claims(f"of-{name}-{number}", each, queue=queue) for number, each in enumerate(gpus)]
        self.show_pod(name, *named, queue=queue, created_at=NOW - 100, **more)

    def snapshot(self) -> Snapshot:
        self.cache.drain_changes()
        return self.cache.snapshot()

    def plan(self) -> Plan:
        return plan(self.snapshot(), now=NOW)


def started(found: Plan) -> dict[str, str]:
    return {one.pod.removeprefix("uid-"): one.node for start in found.starts for one in start.placements}


def evicted(found: Plan, action: Action = Action.RECLAIM) -> set[str]:
    assert {each.action for each in found.evictions} <= {action}
    return {each.pod.removeprefix("uid-") for each in found.evictions if each.moves_to is None}


def refused(found: Plan, name: str) -> tuple[Reason, str]:
    """Return why a pod, or a gang, waits."""
    refusal = next(each for key, each in found.refusals.items() if key.name in (name, f"uid-{name}"))
    return refusal.reason, refusal.sentence


# Reclaim between queues -----------------------------------------------------------------------------------------------


def test_queue_below_its_share_reclaims_the_claim_of_a_queue_above_its_share() -> None:
    scene = Scene(8)
    scene.cache.apply_queue(given.queue("a", deserved=2, weight=6))
    scene.cache.apply_queue(given.queue("b", deserved=4, weight=2))
    scene.runs("mine", 2, queue="a")
    scene.runs("mine-too", 1, queue="a")
    scene.runs("theirs", 4, queue="b")
    scene.runs("excess", 1, queue="b")
    scene.waits("asks", 1, queue="a")

    found = scene.plan()

    assert (evicted(found), started(found)) == ({"excess"}, {"asks": "n0"})


def test_running_pod_loses_its_whole_claim_to_a_queue_that_deserves_a_part_of_it() -> None:
    scene = Scene(2)
    scene.queues(one=1, other=1)
    scene.runs("holds", 2, queue="one")
    scene.waits("asks", 1, queue="other")

    found = scene.plan()

    assert (evicted(found), started(found)) == ({"holds"}, {"asks": "n0"})


def test_queue_that_has_its_share_reclaims_nothing() -> None:
    scene = Scene(2, 2)
    scene.cache.apply_queue(given.queue("two", deserved=2, weight=2))
    scene.cache.apply_queue(given.queue("one", deserved=1))
    scene.runs("a", 1, queue="two", on="n1")
    scene.runs("b", 2, queue="two", on="n0")
    scene.runs("c", 1, queue="one", on="n1")
    scene.waits("asks", 1, queue="one")

    found = scene.plan()

    assert (evicted(found), started(found), refused(found, "asks")[0]) == (set(), {}, Reason.NO_NODE_FITS)


@pytest.mark.parametrize(
    ("gpus", "part_of_sentence"),
    [
        (MOST, "not the devices that its ResourceClaims ask for"),
        (LARGEST, "ResourceClaim 'of-absurd-0': count cannot be read: the number is out of range"),
    ],
)
def test_absurd_request_does_not_keep_its_queue_from_reclaiming_what_it_deserves(
    gpus: int, part_of_sentence: str
) -> None:
    scene = Scene(2)
    scene.queues(reclaims=2, victim=0)
    scene.runs("holds", 2, queue="victim")
    scene.waits("absurd", gpus, gpus, queue="reclaims")
    scene.waits("asks", 2, queue="reclaims")

    found = scene.plan()

    assert (evicted(found), started(found)) == ({"holds"}, {"asks": "n0"})
    assert part_of_sentence in refused(found, "absurd")[1]


@pytest.mark.parametrize("gpus", [MOST, LARGEST])
def test_absurd_request_takes_no_share_from_other_queues(gpus: int) -> None:
    scene = Scene(4)
    scene.queues(absurd=0, modest=0)
    scene.waits("absurd", gpus, gpus, queue="absurd")
    for number in range(4):
        scene.waits(f"m{number}", 1, queue="modest")

    assert started(scene.plan()) == {f"m{number}": "n0" for number in range(4)}


# Claims that pods share -----------------------------------------------------------------------------------------------


def test_gang_whose_members_share_a_claim_needs_its_devices_and_its_quota_once() -> None:
    scene = Scene(4)
    scene.cache.apply_queue(given.queue("q", deserved=4, limit=4))
    scene.cache.apply_group(GroupSpec(key=GroupKey("default", "g"), uid="g", min_member=3))
    scene.claims("ring", 4, queue="q")
    for number in range(3):
        scene.show_pod(f"m{number}", "ring", gang="g", explicit_preemptible=False)

    found = scene.plan()

    assert started(found) == {f"m{number}": "n0" for number in range(3)}


def test_limit_counts_the_claim_of_waiting_pods_once_and_not_again_when_it_is_paid() -> None:
    scene = Scene(8)
    scene.cache.apply_queue(given.queue("q", limit=3))
    scene.joins("first", scene.claims("shared", 2, queue="q", on="n0"), queue="q")
    scene.show_pod("second", "shared")
    scene.waits("large", 2, queue="q")
    scene.waits("fits", 1, queue="q")

    found = scene.plan()

    assert set(started(found)) == {"second", "fits"}
    reason, sentence = refused(found, "large")
    assert (reason, "limit of 3 GPUs" in sentence) == (Reason.OVER_LIMIT, True)


def test_non_preemptible_pod_pays_the_quota_for_a_claim_that_a_preemptible_pod_holds() -> None:
    scene = Scene(4)
    scene.queues(q=1)
    scene.joins("soft", scene.claims("shared", 2, queue="q", on="n0"), queue="q")
    scene.show_pod("firm", "shared", explicit_preemptible=False)

    found = scene.plan()

    assert (started(found), refused(found, "firm")[0]) == ({}, Reason.NON_PREEMPTIBLE_OVER_QUOTA)


@pytest.mark.parametrize("users", [1, 2, 4])
def test_devices_of_a_shared_claim_are_free_when_all_its_pods_are_evicted(users: int) -> None:
    scene = Scene(4)
    scene.queues(lender=2, borrower=2)
    shared = scene.claims("shared", 4, queue="borrower", on="n0")
    for number in range(users):
        scene.joins(f"b{number}", shared, queue="borrower")
    scene.waits("asks", 2, queue="lender")

    found = scene.plan()

    assert (evicted(found), started(found)) == ({f"b{number}" for number in range(users)}, {"asks": "n0"})


def test_pod_that_shares_a_claim_is_no_victim_when_another_pod_keeps_the_claim() -> None:
    scene = Scene(4)
    scene.queues(lender=2, borrower=1)
    shared = scene.claims("shared", 2, queue="borrower", on="n0")
    scene.joins("firm", shared, queue="borrower", explicit_preemptible=False)
    scene.joins("soft", shared, queue="borrower")
    scene.runs("alone", 2, queue="borrower")
    scene.waits("asks", 2, queue="lender")

    found = scene.plan()

    assert (evicted(found), started(found)) == ({"alone"}, {"asks": "n0"})


def test_queue_loses_no_more_than_its_excess_where_its_pods_share_a_claim() -> None:
    scene = Scene(4)
    scene.queues(lender=2, borrower=2)
    scene.cache.apply_class(PriorityClass(name="high", value=90))
    shared = scene.claims("shared", 2, queue="borrower", on="n0")
    for number in range(2):
        scene.joins(f"s{number}", shared, queue="borrower", priority_classes=("high",))
    for number in range(2):
        scene.runs(f"b{number}", 1, queue="borrower")
    scene.waits("asks", 2, queue="lender")

    assert evicted(scene.plan()) == {"b0", "b1"}


def test_pods_of_two_queues_that_share_a_claim_are_each_paid_for_by_their_queue() -> None:
    scene = Scene(4)
    scene.queues(one=1, two=1, three=2)
    shared = scene.claims("shared", 4, queue="one", on="n0")
    scene.joins("a", shared, queue="one")
    scene.joins("b", shared, queue="two")
    scene.waits("asks", 2, queue="three")

    found = scene.plan()

    assert (evicted(found), started(found)) == ({"a", "b"}, {"asks": "n0"})


def test_request_for_a_claim_of_pods_that_can_never_run_takes_no_share() -> None:
    scene = Scene(4)
    scene.queues(stuck=0, modest=0)
    scene.claims("huge", 64, queue="stuck")
    for number in range(3):
        scene.show_pod(f"s{number}", "huge", queue="stuck")
    for number in range(4):
        scene.waits(f"m{number}", 1, queue="modest")

    assert set(started(scene.plan())) == {f"m{number}" for number in range(4)}
