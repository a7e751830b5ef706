"""The observer of shared GPUs detects every violation of its rules."""

from collections.abc import Mapping

import pytest

from tests.system.api import Object, pod
from tests.system.gpu_rules import (
    Picture,
    devices_reserved_twice,
    orphaned_reservations,
    overfull_devices,
    parts_of_nothing,
    pods_without_their_devices,
    whole_pods_on_shared_devices,
)
from tests.system.shares import RESERVATIONS

MIB = 23034
"""An L4: 23000 count."""


def placed(item: Object, uid: str, phase: str = "Running") -> Object:
    item["metadata"]["uid"] = uid
    item["spec"]["nodeName"] = "gpu-a"
    item["status"] = {"phase": phase}
    return item


def sharer(uid: str, device: str = "GPU-1", phase: str = "Running", **asked: str) -> Object:
    named = {name.replace("_", "-"): value for name, value in asked.items()}
    marks = {"leeboard.dev/devices": device, "leeboard.dev/device-groups": "g"}
    made = pod(uid, gpus=0, annotations=named | marks)
    path = "metadata.annotations['leeboard.dev/devices']"
    seen = {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": path}}}
    made["spec"]["containers"][0]["env"] = [seen]
    return placed(made, uid, phase)


def reservation(uid: str, group: str = "g", phase: str = "Running") -> Object:
    labels = {"app": RESERVATIONS, "runai-gpu-group": group}
    marks = {"run.ai/reserve_for_gpu_index": "GPU-1"}
    return placed(pod(uid, namespace=RESERVATIONS, labels=labels, annotations=marks), uid, phase)


def picture(*pods: Object, holders: Mapping[str, tuple[str, ...]] | None = None) -> Picture:
    held = {"GPU-1": ("r",)} if holders is None else holders
    return Picture(pods=pods, memory_mib={"gpu-a": MIB}, holders={"gpu-a": held})


@pytest.mark.parametrize(
    ("sharers", "breached"),
    [
        ([sharer("a", gpu_fraction="0.5"), sharer("b", gpu_fraction="0.5")], 0),
        ([sharer("a", gpu_fraction="0.5"), sharer("b", gpu_fraction="0.500001")], 1),
        ([sharer("a", gpu_fraction="0.5"), sharer("b", gpu_memory="11500")], 0),
        ([sharer("a", gpu_fraction="0.5"), sharer("b", gpu_memory="11501")], 1),
        ([sharer("a", gpu_fraction="0.9"), sharer("b", gpu_fraction="0.9", phase="Succeeded")], 0),
        ([sharer("a", gpu_fraction="0.9"), sharer("b", "GPU-2", gpu_fraction="0.9")], 0),
    ],
)
def test_gpu_is_reserved_up_to_the_whole_and_no_more(sharers: list[Object], breached: int) -> None:
    assert len(list(overfull_devices(picture(*sharers)))) == breached


def test_pod_that_shares_gpus_sees_as_many_devices_as_it_requested() -> None:
    blind = sharer("b", gpu_fraction="0.5")
    blind["spec"]["containers"][0]["env"] = []
    one_of_two = sharer("c", gpu_fraction="0.5", gpu_fraction_num_devices="2")
    same_twice = sharer("d", "GPU-1,GPU-1", gpu_fraction="0.5", gpu_fraction_num_devices="2")

    found = pods_without_their_devices(picture(sharer("a", gpu_fraction="0.5"), blind, one_of_two, same_twice))

    assert [sentence.split()[0] for sentence in found] == ["default/b", "default/c", "default/d"]


def test_whole_gpu_and_a_share_of_it_are_never_assigned_together() -> None:
    whole, part = placed(pod("w"), "w"), sharer("a", gpu_fraction="0.5")

    assert not list(whole_pods_on_shared_devices(picture(part, reservation("r"))))
    (found,) = whole_pods_on_shared_devices(picture(part, whole, holders={"GPU-1": ("w",)}))
    assert found == "default/w has device GPU-1 as a whole, of which default/a has a part"


@pytest.mark.parametrize(
    ("held", "holders", "breached"),
    [
        (reservation("r"), {"GPU-1": ("r",)}, 0),
        (reservation("r"), {"GPU-2": ("r",)}, 1),
        (reservation("r"), {"GPU-1": (), "GPU-2": ("r",)}, 1),
        (reservation("r", group="h"), {"GPU-1": ("r",)}, 1),
        (reservation("r", phase="Failed"), {"GPU-1": ("r",)}, 1),
    ],
)
def test_share_of_a_gpu_counts_only_while_its_reservation_pod_holds_it(
    held: Object, holders: Mapping[str, tuple[str, ...]], breached: int
) -> None:
    assert len(list(parts_of_nothing(picture(sharer("a", gpu_fraction="0.5"), held, holders=holders)))) == breached


def test_two_reservation_pods_of_one_gpu_are_detected() -> None:
    assert not list(devices_reserved_twice(picture(reservation("r"), reservation("s", phase="Failed"))))
    assert len(list(devices_reserved_twice(picture(reservation("r"), reservation("s"))))) == 2


def test_unneeded_reservation_pod_is_detected() -> None:
    part, done = sharer("a", gpu_fraction="0.5"), sharer("a", gpu_fraction="0.5", phase="Succeeded")

    assert not list(orphaned_reservations(picture(part, reservation("r"))))
    assert len(list(orphaned_reservations(picture(done, reservation("r"))))) == 1
    assert len(list(orphaned_reservations(picture(part, reservation("r", phase="Failed", group="h"))))) == 1
