"""The environment of a pod about its shared GPUs."""

import pytest

from app.cluster.gpus.shares import marks_of, portion
from app.model.pod import Sharing
from tests.cluster.sharing_given import device, node, part, report, reservation

R, S = reservation("r"), reservation("s", "h")


def test_a_pod_gets_all_its_gpus_in_one_order() -> None:
    pair = part("p", "g", "h")
    found = node(pair, R, S, agent=report(device("u2", R), device("u1", S)))

    assert marks_of(Sharing(portion_ppm=250_000, devices=2), found.shared) == {
        "leeboard.dev/devices": "u2,u1",
        "leeboard.dev/device-groups": "g,h",
        "leeboard.dev/gpu-share": "0.25",
        "leeboard.dev/portion": "0.25",
        "leeboard.dev/memory-mib": "250",
        "leeboard.dev/mps-memory": "0=250M,1=250M",
    }


def test_memory_set_aside_for_cuda_is_not_available_to_the_pod() -> None:
    found = node(part("p"), R, agent=report(device("u1", R)))

    marks = marks_of(Sharing(memory_mib=400, overhead_mib=100), found.shared)

    assert (marks["leeboard.dev/memory-mib"], marks["leeboard.dev/portion"]) == ("400", "0.40")


@pytest.mark.parametrize(
    ("sharing", "whole_mib", "written"),
    [
        (Sharing(portion_ppm=500_000), 1000, "0.50"),
        (Sharing(portion_ppm=125_000), 1000, "0.125"),
        (Sharing(portion_ppm=1_000), 1000, "0.001"),
        (Sharing(portion_ppm=999_000), 1000, "0.999"),
        (Sharing(portion_ppm=333_333), 3000, "0.333333"),
        (Sharing(memory_mib=1000), 3000, "0.34"),
        (Sharing(memory_mib=3000), 3000, "1.00"),
        (Sharing(memory_mib=1), 80_000, "0.01"),
        (Sharing(memory_mib=1), 1 << 33, "0.01"),
    ],
)
def test_a_fraction_is_reported_as_requested_and_memory_as_hundredths_rounded_up(
    sharing: Sharing, whole_mib: int, written: str
) -> None:
    assert portion(sharing, whole_mib) == written
