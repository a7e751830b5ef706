"""The contents of a GpuNode for a reading, and their bounds."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.agent.readings import DriverFailure, KubeletReading, Link, Memory, Mig, MigInstance, Process
from app.agent.report import silent, status_of
from app.cluster.decode.gpu_nodes import gpu_node
from app.model.device import DeviceUuid, Health, Holder
from app.model.names import PodUid
from tests.agent.schema import breaches, status_schema
from tests.agent.seen import device, holding, memory, sight

SCHEMA = status_schema()
UID = PodUid("3f6b2a10-5c1d-4e8f-9a7b-0123456789ab")
OTHER = PodUid("aaaaaaaa-5c1d-4e8f-9a7b-0123456789ab")


def test_memory_is_reported_by_pod_and_memory_of_no_pod_is_foreign() -> None:
    processes = (Process(1, 100), Process(2, 50), Process(3, 7), Process(4, 3), Process(5, 1000))
    owners = {1: UID, 2: UID, 3: OTHER, 4: None}  # 5 has ended meanwhile

    (told,) = status_of(sight(device(processes=processes), owners=owners))["devices"]

    assert told["memoryMiB"]["foreign"] == 3
    assert told["processes"] == [{"podUid": UID, "memoryMiB": 150}, {"podUid": OTHER, "memoryMiB": 7}]


def test_a_pod_with_a_process_of_unknown_size_is_listed_without_a_size() -> None:
    seen = sight(device(processes=(Process(1, 100), Process(2, None))), owners={1: UID, 2: UID})

    assert status_of(seen)["devices"][0]["processes"] == [{"podUid": UID}]


def test_without_a_list_of_processes_foreign_memory_is_unknown() -> None:
    (told,) = status_of(sight(device(processes=None)))["devices"]

    assert told["memoryMiB"] == {"total": 81920, "used": 0, "reserved": 512}
    assert "processes" not in told


def test_invisible_processes_are_a_failure_with_advice() -> None:
    status = status_of(sight(device(processes=(Process(1, 100),)), owners={}))

    assert status["failures"] == [
        {"call": "/proc/PID/cgroup", "error": "not found: the agent must see the processes of the host (hostPID)"}
    ]


def test_holders_are_found_by_uuid_by_replica_and_by_instance() -> None:
    parts = Mig(enabled=True, pending=False, instances=(MigInstance(uuid="MIG-a", profile="1g.5gb"),))
    holdings = (
        holding("a/whole", "GPU-0"),
        holding("a/replicas", "GPU-1::0", "GPU-1::1"),
        holding("a/part", "MIG-a"),
        holding("a/old-part", "MIG-GPU-2/1/0"),
        holding("a/elsewhere", "GPU-9"),
    )
    seen = sight(device(0), device(1), device(2, mig=parts), kubelet=KubeletReading(answers=True, holdings=holdings))

    node = gpu_node({"metadata": {"name": "n", "uid": "u"}, "status": status_of(seen)})

    assert [each.holders for each in node.devices] == [
        (Holder("a", "whole"),),
        (Holder("a", "replicas"),),
        (Holder("a", "old-part"), Holder("a", "part")),
    ]
    assert node.kubelet_answers


def test_gke_names_a_device_by_its_file() -> None:
    kubelet = KubeletReading(
        answers=True, holdings=(holding("a/whole", "nvidia4"), holding("a/replica", "nvidia5/vgpu1"))
    )

    status = status_of(sight(device(0, minor=5), device(1, minor=4), kubelet=kubelet))

    assert [each["pods"] for each in status["devices"]] == [
        [{"namespace": "a", "name": "replica"}],
        [{"namespace": "a", "name": "whole"}],
    ]


def test_pods_that_hold_devices_unknown_to_the_driver_are_a_failure() -> None:
    kubelet = KubeletReading(answers=True, holdings=(holding("a/p", "GPU-0"), holding("a/q", "GPU-9", "7")))

    status = status_of(sight(device(0), kubelet=kubelet))

    assert status["failures"] == [
        {"call": "PodResources", "error": "pods hold devices that the driver does not know: 7, GPU-9"}
    ]
    assert "failures" not in status_of(sight(kubelet=kubelet, message="no driver"))


def test_a_silent_kubelet_differs_from_one_without_holders() -> None:
    silent_one = KubeletReading(answers=False, reason="there is no socket")

    assert status_of(sight(device(), kubelet=silent_one))["kubelet"] == {
        "answers": False,
        "reason": "there is no socket",
    }
    assert status_of(sight(device()))["kubelet"] == {"answers": True}


def test_a_hanging_driver_makes_everything_unknown() -> None:
    seen = sight(device(), device(1))

    status = status_of(replace(seen, machine=silent(seen.machine)))

    assert status["message"] == "the NVIDIA driver does not answer"
    assert {each["health"] for each in status["devices"]} == {"Unknown"}


TEXT = st.text(max_size=600)
MIB = st.integers(0, 1 << 64)
ODD_UUIDS = TEXT.map(DeviceUuid) | st.integers(1, 80).map(lambda number: DeviceUuid(f"GPU-{number}"))
ODD_DEVICES = st.lists(
    st.builds(
        device,
        index=st.integers(-5, 200),
        uuid=ODD_UUIDS,
        minor=st.none() | st.integers(-1, 1 << 40),
        numa_node=st.none() | st.integers(-1, 1 << 40),
        product=st.none() | TEXT,
        pci_bus_id=st.none() | TEXT,
        health=st.sampled_from(list(Health)),
        health_reason=TEXT,
        memory=st.none() | st.builds(Memory, total_mib=MIB, used_mib=st.none() | MIB, reserved_mib=st.none() | MIB),
        links=st.lists(st.builds(Link, uuid=ODD_UUIDS, nvlinks=st.integers(0, 99)), max_size=70).map(tuple),
        processes=st.lists(st.builds(Process, st.integers(0, 999), st.none() | MIB), max_size=400).map(tuple),
        mig=st.none()
        | st.builds(
            Mig,
            enabled=st.booleans(),
            pending=st.booleans(),
            instances=st.lists(
                st.builds(
                    MigInstance,
                    uuid=TEXT | st.sampled_from(["MIG-1", "MIG-2"]),
                    profile=TEXT | st.just("1g.5gb"),
                    memory_mib=st.none() | MIB,
                ),
                max_size=12,
            ).map(tuple),
        ),
    ),
    max_size=70,
)


@given(
    devices=ODD_DEVICES,
    failures=st.lists(st.builds(DriverFailure, TEXT, TEXT, TEXT), max_size=70),
    reason=TEXT,
    message=TEXT,
    holders=st.integers(0, 99),
)
def test_every_report_matches_the_schema(
    devices: list[Any], failures: list[DriverFailure], reason: str, message: str, holders: int
) -> None:
    named = [holding(f"a/{number}", "GPU-1") for number in range(holders)]
    holdings = (*named, holding(f"/{reason}", "GPU-1"), holding(f"a/{message}", reason))
    kubelet = KubeletReading(answers=True, reason=reason, holdings=holdings)
    pods = {number: PodUid(f"{number:08x}-0000") for number in range(999)}
    seen = sight(
        *devices, kubelet=kubelet, owners=pods, failures=tuple(failures), message=message, driver_version=message
    )

    assert breaches(status_of(seen), SCHEMA) == []


def test_measured_memory_has_no_bound_that_a_device_could_reach() -> None:
    (told,) = status_of(sight(device(memory=memory(1 << 30))))["devices"]

    assert breaches(told["memoryMiB"], SCHEMA["properties"]["devices"]["items"]["properties"]["memoryMiB"]) == []


def test_one_unhealthy_device_is_named_first_in_the_summary() -> None:
    sick = replace(device(1), health=Health.UNHEALTHY, product="B")
    devices = [replace(device(number), product="A") for number in (0, 2, 3)]

    assert status_of(sight(*devices, sick))["summary"] == {
        "health": "1 Unhealthy, 3 Healthy",
        "products": "3 x A, 1 x B",
    }
    assert status_of(sight(*devices))["summary"] == {"health": "Healthy", "products": "A"}
    assert "summary" not in status_of(sight(message="no driver"))
