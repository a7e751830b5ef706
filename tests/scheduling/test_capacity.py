from collections.abc import Sequence

import pytest

from app.model.pod import PPM, Pod, Sharing
from app.model.podgroup import PodGroup
from app.scheduling.queues import capacity
from app.scheduling.queues.capacity import PATIENCE
from tests.given import claim, group, node, pod, queue, snapshot

HALF = Sharing(portion_ppm=PPM // 2)
THIRD = Sharing(portion_ppm=PPM // 3)


def held(name: str, **more: object) -> Pod:
    return pod(name, held=True, **more)  # type: ignore[arg-type] # free-form by design


def told(pods: Sequence[Pod], device_mib: int = 1) -> list[tuple[int, int]]:
    """Return the requested units and numbers of pods."""
    return [(shape.count, shape.pods_each) for shape in capacity.shapes(pods, device_mib)]


def test_capacity_is_requested_for_the_pods_that_start_together_and_no_others() -> None:
    members = [held(f"p{number}", gang="g") for number in range(4)]

    assert capacity.lacking(group(*members, min_member=3)) == tuple(members[:3])
    assert capacity.lacking(group(*members, min_member=3, active=1)) == tuple(members[:2])
    assert capacity.lacking(group(*members, min_member=3, active=3)) == ()


@pytest.mark.parametrize("other", [pod("seen", gang="g"), held("drawn", gang="g", claims=(claim("c", "gpu", 1),))])
def test_no_capacity_is_requested_for_a_gang_that_an_autoscaler_sees_in_part_or_that_cannot_be_expressed(
    other: Pod,
) -> None:
    assert capacity.lacking(group(held("a", gang="g"), other)) == ()


def test_a_queue_requests_no_more_capacity_than_its_limit_allows_in_order_of_age() -> None:
    groups = [group(held(f"p{number}", gpus=gpus)) for number, gpus in enumerate([4, 6, 3, 2])]
    there = snapshot([node("n")], [queue("q", limit=8)], groups)

    assert capacity.within_quota(there, groups, 10) == [groups[0], groups[2]]
    assert capacity.within_quota(there, groups, 1) == [groups[0]]


def test_a_queue_at_its_limit_does_not_stop_capacity_requests_of_other_queues() -> None:
    full: list[PodGroup] = [group(held(f"p{number}", gpus=2)) for number in range(PATIENCE * 3)]
    other = group(held("other", queue="r"))
    there = snapshot([node("n")], [queue("q", limit=1), queue("r")], [*full, other])

    assert capacity.within_quota(there, [*full, other], 10) == [other]


def test_capacity_requests_group_pods_by_their_resource_requests() -> None:
    assert told([held("a"), held("b", gpus=2), held("c")]) == [(2, 1), (1, 1)]


@pytest.mark.parametrize(
    ("sharing", "device_mib", "units"),
    [
        (HALF, 1, [(2, 2)]),
        (THIRD, 1, [(1, 3)]),
        (Sharing(memory_mib=40_000), 80_000, [(2, 2)]),
        (Sharing(memory_mib=40_000, overhead_mib=500), 80_000, [(3, 1)]),
        (Sharing(memory_mib=40_000), 1, [(3, 1)]),
        (Sharing(portion_ppm=1), 1, [(1, 3)]),
    ],
    ids=repr,
)
def test_pods_that_share_a_gpu_are_counted_as_many_as_fit_on_one_gpu(
    sharing: Sharing, device_mib: int, units: list[tuple[int, int]]
) -> None:
    pods = [held(name, gpus=0, sharing=sharing) for name in "abc"]

    assert told(pods, device_mib) == units


def test_a_provisioning_request_has_the_same_name_for_the_same_contents_and_another_for_others() -> None:
    def named(*members: Pod, provisioning_class: str = "class") -> str:
        asked = group(*members)
        return capacity.name_of(asked, capacity.shapes(members, 1), provisioning_class)

    a, b = held("a", gang="g.of.mine"), held("b", gang="g.of.mine")

    assert named(a, b) == named(b, a)
    assert named(a).startswith("g-of-mine-")
    assert len({named(a), named(a, b), named(a, provisioning_class="other"), named(held("a", gpus=2, gang="g"))}) == 4
