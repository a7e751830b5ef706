import pytest

from loadtest.contender import Batch
from loadtest.scenarios import QUICK, Arrival, ImpossibleSizeError, Size, node_names, scenarios


def test_scenarios_in_full_size_are_those_of_the_report() -> None:
    titles = [scenario.title for scenario in scenarios(Size())]

    assert titles == [
        "3,000 pods of 1 GPU on 500 nodes x 8 GPUs",
        "5,000 pods of 1 GPU on 1,000 nodes x 8 GPUs",
        "100 gangs of 20 pods of 1 GPU on 500 nodes x 8 GPUs",
        "4 gangs of 500 pods of 1 GPU on 500 nodes x 8 GPUs",
        "500 pods of 1 GPU behind 2,000 pods that fit nowhere, on 500 nodes x 8 GPUs",
        "a gang of 100 pods of 8 GPUs reclaims its share of 1,600 single-GPU pods on 200 nodes x 8 GPUs",
        "2,000 pods of 0.5 GPU on 200 nodes x 8 GPUs",
    ]


@pytest.mark.parametrize(
    "size", [Size(), QUICK, Size(nodes=10, pods=60), Size(nodes=10, pods=80), Size(nodes=14, pods=112)]
)
def test_counted_pods_have_room_in_every_size(size: Size) -> None:
    for scenario in scenarios(size):
        fitting = [batch for batch in (scenario.early, scenario.batch) if batch]
        halves = sum(batch.count * (1 if batch.fraction else 2 * batch.gpus) for batch in fitting)

        assert 0 < halves <= scenario.nodes * 8 * 2


@pytest.mark.parametrize("size", [Size(), QUICK, Size(nodes=10, pods=60), Size(nodes=99, pods=777)])
def test_gangs_are_complete_in_every_size(size: Size) -> None:
    assert [one.batch.count % one.batch.gang_size for one in scenarios(size)] == [0] * 7


def test_gang_that_reclaims_needs_the_deserved_share_of_its_queue_in_a_full_cluster() -> None:
    reclaim = next(one for one in scenarios(Size(nodes=50, pods=60)) if one.name == "reclaim")

    assert reclaim.running == Batch(name="r", count=160, queue="rich", on=node_names(20))
    assert reclaim.batch == Batch(name="g", count=10, queue="poor", gang_size=10, gpus=8)
    assert [(one.name, one.quota_gpus) for one in reclaim.queues] == [("rich", 80), ("poor", 80)]


def test_only_pods_that_are_not_late_exist_before_the_clock_starts() -> None:
    before = {one.name: [batch.name for batch in one.there_before] for one in scenarios(QUICK)}

    assert before == {
        "lone": ["p"],
        "lone-large": ["p"],
        "gangs": ["g"],
        "big-gangs": ["g"],
        "backlog": [],
        "reclaim": ["r"],
        "fractions": ["half"],
    }
    assert [one.name for one in scenarios(QUICK) if one.arrival is Arrival.LATE] == ["backlog", "reclaim"]


def test_more_pods_than_gpus_are_refused_with_both_numbers() -> None:
    with pytest.raises(ImpossibleSizeError, match=r"^81 pods cannot run on 80 GPUs; give fewer pods or more nodes\.$"):
        Size(nodes=10, pods=81)


def test_size_that_leaves_a_scenario_empty_is_refused() -> None:
    with pytest.raises(ImpossibleSizeError, match="at least 10 nodes and 60 pods"):
        Size(nodes=9, pods=60)
