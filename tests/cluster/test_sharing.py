"""Requests for shared GPUs in the annotations of a pod."""

from collections.abc import Mapping

import pytest

from app.cluster.decode.reading import ObjectReading
from app.cluster.decode.sharing import MAX_DEVICES, MAX_MEMORY_MIB, bound, sharing
from app.cluster.gpus.shares import share
from app.model.marks import DEVICES_ANNOTATION, GROUPS_ANNOTATION, SHARE_ANNOTATION
from app.model.pod import Sharing

BOTH_FRACTION_AND_WHOLE = "cannot have both GPU fraction request and whole GPU resource request/limit"
DEVICES_ALONE = "cannot request multiple fractional devices without specifying fraction portion or gpu-memory"
ODD_NUMBERS = [
    "",
    "0",
    "-1",
    "+1",
    " 1",
    "1_0",
    "٣",
    "1\n",
    "NaN",
    "Infinity",
    "1e400",
    "0x10",
    "9" * 5000,
    "x" * 262144,
]


def read(annotations: Mapping[str, object], whole_gpu_milli: int = 0) -> tuple[Sharing | None, str]:
    reading = ObjectReading()
    return sharing(reading, annotations, whole_gpu_milli=whole_gpu_milli), reading.problem


@pytest.mark.parametrize(
    ("annotations", "asked"),
    [
        ({"gpu-fraction": "0.5"}, Sharing(portion_ppm=500_000)),
        ({"gpu-fraction": ".25", "gpu-fraction-num-devices": "2"}, Sharing(portion_ppm=250_000, devices=2)),
        ({"gpu-memory": "4096", "mps": "true"}, Sharing(memory_mib=4096)),
        (
            {"gpu-memory": str(MAX_MEMORY_MIB), "gpu-fraction-num-devices": str(MAX_DEVICES)},
            Sharing(memory_mib=MAX_MEMORY_MIB, devices=MAX_DEVICES),
        ),
        ({}, None),
        ({"mps": "false", "gpu-fraction-container-name": "main"}, None),
    ],
)
def test_a_sharing_request_is_read(annotations: dict[str, str], asked: Sharing | None) -> None:
    assert read(annotations) == (asked, "")


def test_whole_devices_alone_are_no_sharing_request() -> None:
    assert read({}, 8000) == (None, "")


@pytest.mark.parametrize(
    ("whole_gpu_milli", "annotations", "problem"),
    [
        (
            1000,
            {"gpu-fraction": "0.5"},
            f"{BOTH_FRACTION_AND_WHOLE}; remove nvidia.com/gpu, or the annotation gpu-fraction",
        ),
        (
            1000,
            {"gpu-memory": "1"},
            "cannot request both GPU and GPU memory; remove nvidia.com/gpu, or the annotation gpu-memory",
        ),
        (
            0,
            {"gpu-memory": "1", "gpu-fraction": "0.5"},
            "cannot request both GPU and GPU memory; remove the annotation gpu-fraction, or the annotation gpu-memory",
        ),
        (
            0,
            {"gpu-fraction-num-devices": "2"},
            f"{DEVICES_ALONE}; add annotation gpu-fraction or gpu-memory, or remove gpu-fraction-num-devices",
        ),
        (
            0,
            {"mps": "true"},
            "MPS is only supported with GPU fraction request; add annotation gpu-fraction or gpu-memory, or remove mps",
        ),
    ],
)
def test_contradictions_get_the_messages_of_kai(
    whole_gpu_milli: int, annotations: dict[str, str], problem: str
) -> None:
    assert read(annotations, whole_gpu_milli) == (None, problem)


@pytest.mark.parametrize(
    "text", [*ODD_NUMBERS, "1", "1.0", "1.5", "0.0", "0.0001", "0.3333333333", "5e-1", "0.5 ", 0.5]
)
def test_a_fraction_is_a_plain_decimal_below_one(text: object) -> None:
    found, problem = read({"gpu-fraction": text})

    assert found is None
    assert problem.startswith("gpu-fraction annotation value must be a positive number smaller than 1.0; ")
    assert problem.endswith("from 0.001 to 0.999999, with at most six digits after the point, such as 0.5")
    assert len(problem) < 400


@pytest.mark.parametrize("text", [*ODD_NUMBERS, "1.5", str(MAX_MEMORY_MIB + 1), "9223372036854775808", 4096])
def test_memory_is_a_plain_integer_above_zero(text: object) -> None:
    found, problem = read({"gpu-memory": text})

    assert found is None
    assert problem.startswith("gpu-memory annotation value must be a positive integer greater than 0; ")
    assert f"from 1 to {MAX_MEMORY_MIB}" in problem


@pytest.mark.parametrize("text", [*ODD_NUMBERS, str(MAX_DEVICES + 1)])
def test_the_number_of_devices_is_a_plain_integer_above_zero(text: object) -> None:
    found, problem = read({"gpu-fraction": "0.5", "gpu-fraction-num-devices": text})

    assert found is None
    assert problem.startswith("fraction count annotation value must be a positive integer greater than 0; ")
    assert f"from 1 to {MAX_DEVICES}" in problem


@pytest.mark.parametrize(
    "asked",
    [Sharing(portion_ppm=ppm) for ppm in (1000, 333_333, 500_000, 999_999)]
    + [Sharing(memory_mib=mib, devices=2) for mib in (1, 8192, MAX_MEMORY_MIB)],
)
def test_a_share_written_by_bind_is_read_back_exactly(asked: Sharing) -> None:
    groups = ",".join(f"g{number}" for number in range(asked.devices))
    written = {SHARE_ANNOTATION: share(asked), GROUPS_ANNOTATION: groups, DEVICES_ANNOTATION: groups}

    assert bound(written) == asked


@pytest.mark.parametrize("value", ["", "0", "1", "0.5Mi", "Mi", "-1Mi", "1Gi", "0.0001", 0.5, None])
def test_a_share_that_bind_cannot_have_written_is_ignored(value: object) -> None:
    assert bound({SHARE_ANNOTATION: value, GROUPS_ANNOTATION: "g", DEVICES_ANNOTATION: "g"}) is None
    assert bound({SHARE_ANNOTATION: "0.5"}) is None
