"""Other tests rely on the observer, so it is tested itself: each rule broken by hand, and once in a real cluster."""

from itertools import count

import pytest

from tests.system.api import Api, gpu_node, pod
from tests.system.bed import Bed
from tests.system.observer import Observer, Rules, Sight, breaches, lost, partial_stretches

TWO_NODES = Rules(gpus={"n1": 2, "n2": 2}, min_members={"red": 3})
FULL = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
NO_ROOM = "0/2 nodes are available: 2 Leeboard(GangDoesNotFit): the pods of its gang do not fit together."
DECIDING = "0/2 nodes are available: 2 Leeboard(Deciding): its turn is being decided."


def alone(name: str, at_s: float = 0.0, **more: object) -> Sight:
    return Sight(name=name, uid=f"uid-{name}", at_s=at_s, **more)  # type: ignore[arg-type] # free-form by design


def red(number: int, at_s: float = 0.0, **more: object) -> Sight:
    return alone(f"red-{number}", at_s, gang="red", **more)


def broken(*history: Sight, until_s: float = 100.0) -> list[str]:
    return breaches(history, TWO_NODES, until_s=until_s)


def whole(at_s: float) -> list[Sight]:
    return [red(0, at_s, node="n1"), red(1, at_s, node="n1"), red(2, at_s, node="n2")]


def test_correct_history_has_no_violation() -> None:
    history = [*(red(number) for number in range(3)), *whole(1.0), alone("p", 2.0, node="n2")]

    assert broken(*history) == []


@pytest.mark.parametrize(("completed_s", "said"), [(31.5, ["gang red was bound in part for 30.5 s"]), (30.5, [])])
def test_gang_partially_bound_for_more_than_30_s_is_reported(completed_s: float, said: list[str]) -> None:
    started = red(0, 1.0, node="n1")

    assert broken(started, *whole(completed_s)) == said


def test_gang_still_partially_bound_at_the_end_is_reported() -> None:
    assert broken(red(0, 1.0, node="n1"), red(1, 2.0, node="n1"), until_s=61.0) == [
        "gang red was bound in part for 60.0 s"
    ]


def test_gang_is_partially_bound_again_when_a_member_is_deleted_or_fails() -> None:
    losses = [red(0, 10.0, node="n1", gone=True), red(0, 10.0, node="n1", phase="Failed")]

    assert [broken(*whole(1.0), loss) for loss in losses] == [["gang red was bound in part for 90.0 s"]] * 2


def test_partially_bound_time_ends_when_the_gang_is_complete_or_none_of_it_is_bound() -> None:
    again = [red(0, 40.0, node="n1"), red(0, 60.0, node="n1", gone=True)]
    history = [red(0, 1.0, node="n1"), *whole(21.0), *(red(number, 25.0, gone=True) for number in range(3)), *again]

    stretches = partial_stretches(history, {"red": 3}, until_s=100.0)

    assert [(one.since_s, one.until_s) for one in stretches] == [(1.0, 21.0), (25.0, 25.0), (40.0, 60.0)]


def test_members_that_succeeded_count() -> None:
    done = red(0, 2.0, node="n1", phase="Succeeded")

    assert broken(*whole(1.0), done) == []


def test_node_above_its_gpus_for_one_instant_is_reported() -> None:
    history = [alone("a", 1.0, node="n1"), alone("b", 2.0, node="n1", gpus=2), alone("a", 2.0, node="n1", gone=True)]

    assert broken(*history) == ["node n1 had 3 of 2 GPUs in use when b was bound at 2.000"]


@pytest.mark.parametrize("end", [{"gone": True}, {"phase": "Succeeded"}, {"phase": "Failed"}])
def test_pod_that_is_deleted_or_has_ended_returns_its_gpus(end: dict[str, object]) -> None:
    ended = alone("a", 2.0, node="n1", gpus=2, **end)

    assert broken(alone("a", 1.0, node="n1", gpus=2), ended, alone("b", 2.0, node="n1", gpus=2)) == []


def test_pod_that_is_only_being_deleted_keeps_its_gpus() -> None:
    history = [alone("a", 1.0, node="n1", gpus=2), alone("a", 2.0, node="n1", gpus=2), alone("b", 3.0, node="n1")]

    assert broken(*history) == ["node n1 had 3 of 2 GPUs in use when b was bound at 3.000"]


def test_pod_on_an_unknown_node_is_reported() -> None:
    assert broken(alone("a", 1.0, node="n9")) == ["node n9 had 1 of 0 GPUs in use when a was bound at 1.000"]


def test_uid_seen_on_two_nodes_is_reported_and_another_pod_of_the_same_name_is_not() -> None:
    namesake = Sight(name="a", uid="other", at_s=3.0, node="n2")

    assert broken(alone("a", 1.0, node="n1"), alone("a", 2.0, node="n2")) == ["pod a was bound to n1 and to n2"]
    assert broken(alone("a", 1.0, node="n1"), alone("a", 2.0, node="n1", gone=True), namesake) == []


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("", ["red-0 waits and is told 'nothing'"]),
        (DECIDING, [f"red-0 waits and is told {DECIDING!r}"]),
        (FULL, [f"red-0 waits and is told {FULL!r}"]),
        (NO_ROOM, []),
    ],
)
def test_pending_pod_must_have_a_cause_of_leeboard(cause: str, said: list[str]) -> None:
    assert lost([red(0, cause=cause)], TWO_NODES) == said


def test_cause_of_kube_scheduler_is_enough_where_no_gpu_is_free() -> None:
    taken = [alone("a", node="n1", gpus=2), alone("b", node="n2", gpus=2)]

    assert lost([*taken, red(0, cause=FULL)], TWO_NODES) == []


def test_pending_pod_or_gang_that_would_fit_is_reported() -> None:
    gang = [red(number, cause=NO_ROOM) for number in range(3)]

    assert lost([alone("p", cause=NO_ROOM)], TWO_NODES) == ["pod p would fit and waits"]
    assert lost(gang, TWO_NODES) == ["gang red would fit and waits"]
    assert lost([red(0, node="n1"), *gang[1:]], TWO_NODES) == ["gang red would fit and waits"]
    assert lost([*whole(1.0), red(3, cause=NO_ROOM)], TWO_NODES) == ["pod red-3 would fit and waits"]


def test_gang_that_would_fit_by_number_but_on_no_nodes_may_be_pending() -> None:
    pair = Rules(gpus={"n1": 3, "n2": 1}, min_members={"red": 2})

    assert lost([red(0, gpus=2, cause=NO_ROOM), red(1, gpus=2, cause=NO_ROOM)], pair) == []


def test_deleted_or_finished_pod_is_not_lost() -> None:
    ended = [alone("a", gone=True), alone("b", phase="Failed"), alone("c", node="n1", phase="Succeeded")]

    assert lost(ended, TWO_NODES) == []


_node_numbers = count()


def test_observer_records_a_pod_from_its_creation_to_its_end(bed: Bed, api: Api) -> None:
    node = f"seen-{next(_node_numbers)}"
    api.create(gpu_node(node))

    with Observer(bed) as observer:
        api.create(pod("p", gpus=2, gang="g", scheduler="default-scheduler"))
        api.wait_for_phase("Running", "p", within_s=20)
        api.delete_now("/api/v1/namespaces/default/pods/p")
        observer.wait_for(lambda pods: not pods, within_s=20, what="the pod does not exist any more")

    first, *_, last = observer.history()
    assert (first.name, first.gang, first.gpus, first.node) == ("p", "g", 2, "")
    assert (last.uid, last.node, last.gone) == (first.uid, node, True)


def test_observer_sees_a_partially_bound_gang_and_a_node_above_its_gpus(bed: Bed, api: Api) -> None:
    node = f"seen-{next(_node_numbers)}"
    api.create(gpu_node(node, gpus=1))
    rules = Rules(gpus={node: 1}, min_members={"g": 3}, longest_partial_s=0.0)
    api.create_all(pod(name, gang="g", spec={"nodeName": node}) for name in ("p", "q"))
    api.create(pod("r", gang="g", scheduler="nobody"))

    with Observer(bed) as observer:
        seen = observer.wait_for(lambda pods: pods if len(pods) == 3 else (), within_s=20, what="all are seen")

    found = breaches(observer.history(), rules, until_s=seen[-1].at_s + 1)
    assert len(found) == 2
    assert "gang g was bound in part for 1" in found[0]
    assert f"node {node} had 2 of 1 GPUs in use" in found[1]
    assert "r waits and is told 'nothing'" in lost(observer.history(), rules)
