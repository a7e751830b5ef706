"""Required affinity and anti-affinity between pods."""

from collections.abc import Iterator

import pytest

from app.model.node import Node
from app.model.pod import Near, Pod
from app.model.podgroup import PodGroup
from app.scheduling.placement.affinity import Neighbours
from tests import given

WEB = {"app": "web"}
NEAR_WEB = Near((("app", "web"),), "zone")
APART_FROM_WEB = Near((("app", "web"),), "zone", apart=True)
NODES = [given.node(name, labels={"zone": zone}) for name, zone in (("a", "east"), ("b", "east"), ("c", "west"))]
NOWHERE, EVERYWHERE = [False] * 3, [True] * 3


def neighbours(*groups: PodGroup, nodes: list[Node] = NODES, outside: str = "") -> Neighbours:
    labelled = ((WEB, outside),) if outside else ()
    return Neighbours(given.snapshot(nodes, [], groups, labelled=labelled))


def runs(pod: Pod, on: str) -> PodGroup:
    return given.group(running=[given.placed(pod, on)])


def test_pod_affinity_places_a_pod_in_the_domain_of_the_matching_pods() -> None:
    there = neighbours(runs(given.pod("w", labels=WEB), "a"))

    assert there.mask(given.pod("p", near=(NEAR_WEB,))).tolist() == [True, True, False]


def test_pod_anti_affinity_keeps_a_pod_out_of_the_domain_of_the_matching_pods() -> None:
    there = neighbours(runs(given.pod("w", labels=WEB), "a"))

    assert there.mask(given.pod("p", near=(APART_FROM_WEB,))).tolist() == [False, False, True]


def test_pods_with_anti_affinity_keep_matching_pods_out_of_their_domain() -> None:
    there = neighbours(runs(given.pod("lonely", near=(APART_FROM_WEB,)), "c"))

    assert there.mask(given.pod("w", labels=WEB)).tolist() == [True, True, False]
    assert there.mask(given.pod("other", labels={"app": "db"})).tolist() == EVERYWHERE


def test_pod_affinity_without_a_matching_pod_allows_no_node_except_for_the_first_pod_that_matches_itself() -> None:
    assert neighbours().mask(given.pod("p", near=(NEAR_WEB,))).tolist() == NOWHERE
    assert neighbours().mask(given.pod("w", near=(NEAR_WEB,), labels=WEB)).tolist() == EVERYWHERE


def test_the_first_pod_that_matches_its_own_affinity_needs_a_node_with_the_topology_label() -> None:
    there = neighbours(nodes=[given.node("a"), NODES[2]])

    assert there.mask(given.pod("w", near=(NEAR_WEB,), labels=WEB)).tolist() == [False, True]


def test_pods_outside_the_plan_count_for_affinity() -> None:
    assert neighbours(outside="c").mask(given.pod("p", near=(NEAR_WEB,))).tolist() == [False, False, True]
    assert neighbours(outside="gone").mask(given.pod("p", near=(NEAR_WEB,))).tolist() == NOWHERE


def test_pods_added_and_removed_in_a_plan_count_in_that_plan_but_not_in_earlier_copies() -> None:
    web, asking = given.pod("w", labels=WEB), given.pod("p", near=(NEAR_WEB,))
    there = neighbours(runs(web, "a"))
    moved = there.copy()

    moved.remove(given.placed(web, "a").pod, 0)
    moved.add(web, 2)

    assert moved.mask(asking).tolist() == [False, False, True]
    assert there.mask(asking).tolist() == [True, True, False]


class Label(str):
    """The key of a label; counts how often it is read."""

    __slots__ = ()
    looks = 0

    def __hash__(self) -> int:
        Label.looks += 1
        return str.__hash__(self)


def replicas(count: int) -> Iterator[Pod]:
    for number in range(count):
        labels = {Label("app"): "web", Label("index"): str(number)}
        yield given.pod(f"w{number}", labels=labels, near=(APART_FROM_WEB,))


def looks(pods: int) -> int:
    there = neighbours(*(runs(pod, "abc"[at % 3]) for at, pod in enumerate(replicas(pods))))
    Label.looks = 0
    for pod in replicas(pods):
        there.mask(pod)
        there.add(pod, 0)
    return Label.looks


def test_replicas_with_anti_affinity_are_not_compared_pairwise() -> None:
    assert looks(200) < 3 * looks(100)


def test_pods_on_nodes_are_counted_once_for_all_copies_of_the_placement_state() -> None:
    there = neighbours(*(runs(pod, "a") for pod in replicas(100)))
    asking, Label.looks = next(replicas(1)), 0
    there.copy().mask(asking)
    once = Label.looks
    for _ in range(10):
        there.copy().mask(asking)

    assert Label.looks < 2 * once


def test_cached_affinity_terms_follow_pods_that_are_added_and_removed() -> None:
    there = neighbours()
    asking, webs = given.pod("p", near=(NEAR_WEB,)), [given.pod(f"w{number}", labels=WEB) for number in range(2)]

    assert there.mask(asking).tolist() == NOWHERE
    there.add(webs[0], 0)
    there.add(webs[1], 2)
    twin = there.copy()
    assert there.mask(asking).tolist() == EVERYWHERE
    there.remove(webs[0], 0)
    assert there.mask(asking).tolist() == [False, False, True]
    assert twin.mask(asking).tolist() == EVERYWHERE


@pytest.mark.parametrize("terms", [3, 200])
def test_affinity_terms_beyond_the_size_of_the_cache_get_the_same_answers(terms: int) -> None:
    there = neighbours(runs(given.pod("w", labels={"app": "web", "all": "x"}), "a"))
    for number in range(terms):
        asked = given.pod("p", near=(Near((("app", "web"),), f"other-{number}"),))
        assert there.mask(asked).tolist() == NOWHERE
    there.add(given.pod("v", labels={"all": "x"}), 2)

    assert there.mask(given.pod("p", near=(Near((("all", "x"),), "zone"),))).tolist() == EVERYWHERE
