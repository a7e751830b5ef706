"""The cluster of `loadtest.scale` is as described: read like a real one, complete, and nowhere overcommitted."""

from collections import Counter

import orjson
import pytest

from app.cluster import decode
from app.cluster.state.cache import ClusterCache
from app.kube.lines import decode_page
from app.model.names import PodUid
from app.model.pod import Pod
from app.model.resources import CPU, GPU, MEMORY
from app.model.seam import RawObject, Resource
from app.scheduling.planner.planner import plan
from loadtest.scale import exponent, lines, markdown, verdicts
from loadtest.scale_objects import JOBS, Stock, page, stock_of
from loadtest.scale_pods import BLOCK, Size

PROFILES = frozenset({"kai-scheduler"})
SIZE = Size(nodes=60, running=1, pending=1)


def listed(stock: Stock, path: str) -> list[RawObject]:
    """Read a kind page by page."""
    found: list[RawObject] = []
    more = "0"
    while more:
        read = decode_page(page(stock, path, int(more)))
        found, more = [*found, *read.objects], read.next
    return found


def pods(size: Size) -> list[Pod]:
    return [decode.pod(raw, profiles=PROFILES) for raw in listed(stock_of(size), Resource.PODS.value)]


def filled(size: Size) -> ClusterCache:
    stock, cache = stock_of(size), ClusterCache()
    for raw in listed(stock, Resource.NODES.value):
        cache.apply_node(decode.node(raw))
    for raw in listed(stock, Resource.QUEUES.value):
        cache.apply_queue(decode.queue(raw))
    for raw in listed(stock, Resource.POD_GROUPS.value):
        cache.apply_group(decode.pod_group(raw))
    for raw in listed(stock, Resource.GPU_NODES.value):
        cache.apply_gpu_node(decode.gpu_node(raw), heard_at=0.0)
    for pod in pods(size):
        cache.apply_pod(pod)
    return cache


def test_the_large_cluster_has_no_problem() -> None:
    cache = filled(SIZE)
    snapshot = cache.snapshot()

    assert {pod.problem for pod in cache.pods.all()} == {""}
    assert {node.problem for node in snapshot.nodes.nodes} == {""}
    assert {queue.problem for queue in snapshot.queues.values()} == {""}
    assert {group.refusal for group in snapshot.groups.values()} == {None}


@pytest.mark.parametrize("gpus_of_large", [1, 2])
def test_a_block_fills_its_nodes_to_the_last_gpu_and_leaves_the_others_free(gpus_of_large: int) -> None:
    size = Size(nodes=60, running=1, pending=1, gpus_of_large=gpus_of_large)

    free = filled(size).snapshot().free

    taken = size.nodes_of_block
    assert (free[GPU, :taken] == 0).all()
    assert (free[GPU, taken:] == 8000).all()
    assert (free[[CPU, MEMORY]] >= 0).all()


def test_every_kind_of_pod_exists_and_has_its_owner_or_its_gang() -> None:
    found = pods(SIZE)

    kinds = Counter((pod.name.split("-")[0], pod.managed, pod.node is not None) for pod in found)

    assert kinds == {
        ("gang", True, True): 128,
        ("gang", True, False): 128,
        ("alone", True, True): 43,
        ("alone", True, False): 43,
        ("half", True, True): 10,
        ("half", True, False): 10,
        ("foreign", False, True): 38,
        ("gpu", False, True): 5,
    }
    assert SIZE.pods == 2 * BLOCK == len({pod.uid for pod in found}) - 5


def test_owners_named_by_pods_are_listed() -> None:
    stock = stock_of(SIZE)
    jobs = {(raw["metadata"]["namespace"], raw["metadata"]["uid"]) for raw in listed(stock, JOBS)}

    raws = [raw["metadata"] for raw in listed(stock, Resource.PODS.value)]
    named = {(one["namespace"], ref["uid"]) for one in raws for ref in one.get("ownerReferences", ()) if "uid" in ref}

    assert {one for one in named if one[1].startswith("job-")} == jobs


def test_shared_gpus_are_ready_and_agents_report_the_same_assignments() -> None:
    cache = filled(SIZE)
    halves = [PodUid(pod.uid) for pod in cache.pods.all() if pod.name.startswith("half-0-")]

    assert [cache.gpus.not_ready(uid) for uid in halves] == [[]] * 10
    assert list(cache.gpus.unsettled_nodes()) == []


def test_a_plan_places_some_of_the_pending_pods_and_not_all() -> None:
    starts = plan(filled(SIZE).snapshot()).starts

    assert 0 < sum(len(start.placements) for start in starts) < BLOCK


def test_a_block_with_too_few_nodes_is_refused() -> None:
    with pytest.raises(ValueError, match="2 blocks fill 60 nodes, not 59"):
        Size(nodes=59, running=2, pending=0)


# Report


def test_a_figure_that_doubles_with_the_pods_grows_with_exponent_one() -> None:
    small, large = {"pods": 100.0, "a": 1.0, "b": 5.0, "none": 0.0}, {"pods": 200.0, "a": 2.0, "b": 5.0, "none": 9.0}

    assert [exponent(small, large, key) for key in ("a", "b", "none", "unknown")] == [1.0, 0.0, None, None]


def test_the_report_has_a_line_for_each_measurement_and_names_the_missed_budget() -> None:
    small, large = {"nodes": 1.0, "pods": 100.0, "rss_mb": 120.0}, {"nodes": 2.0, "pods": 400.0, "rss_mb": 480.0}
    designed = {"nodes": 5.0, "pods": 50.0, "rss_mb": 600.0, "snapshot_after_pod_us": 1.5}

    rows = list(lines([small, large], designed))
    judged = [(line[0], line[-1]) for line in verdicts(designed)]

    assert rows == [["memory, MB", "120", "480", "600", "1.00"], ["snapshot after a pod came, us", "", "", "1.5", ""]]
    assert judged[:3] == [
        ("snapshot after one change, us", "reached"),
        ("memory, MB", "missed"),
        ("filter of a promised pod, 500 names, p50 ms", "not measured"),
    ]
    assert markdown(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


def test_pages_end_where_the_objects_end() -> None:
    stock: Stock = {"few": (3, lambda number: orjson.dumps({"number": number}))}

    assert [listed(stock, "few"), listed(stock, "none")] == [[{"number": 0}, {"number": 1}, {"number": 2}], []]
