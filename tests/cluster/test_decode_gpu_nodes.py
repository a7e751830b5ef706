"""The fields of a GpuNode for users and for judging usage; devices and holders are tested with the cache of GPUs."""

import numpy as np

from app.cluster.decode import gpu_node
from app.model.device import GpuNode
from app.model.names import PodUid
from app.model.seam import RawObject


def read(**status: object) -> GpuNode:
    raw: RawObject = {"metadata": {"name": "a", "uid": "u"}, "status": status}
    return gpu_node(raw)


def test_processes_are_read_by_pod_and_values_that_the_driver_does_not_report_are_unknown() -> None:
    processes = [{"podUid": "p", "memoryMiB": 300}, {"podUid": "q"}]

    (device,) = read(devices=[{"uuid": "GPU-1", "processes": processes}]).devices

    assert device.processes == ((PodUid("p"), 300), (PodUid("q"), None))


def test_an_unreadable_usage_is_a_problem_and_the_rest_is_read() -> None:
    told = read(
        devices=[{"uuid": "GPU-1", "processes": [{"podUid": "p", "memoryMiB": -1}, {"podUid": "q", "memoryMiB": 2}]}]
    )

    assert told.problem.startswith("processes.memoryMiB cannot be read: ")
    assert told.devices[0].processes[1] == (PodUid("q"), 2)


def test_no_more_processes_and_failures_are_kept_than_a_node_may_have() -> None:
    many = [{"podUid": "p", "call": "c", "error": "e"}] * 1_000

    told = read(devices=[{"uuid": "GPU-1", "processes": many}], failures=many)

    assert (len(told.devices[0].processes), len(told.failures)) == (256, 64)


def test_all_devices_of_a_node_together_keep_at_most_the_processes_of_sixteen_devices() -> None:
    processes = [{"podUid": "p"}] * 256

    told = read(devices=[{"uuid": f"GPU-{number}", "processes": processes, "pods": processes} for number in range(63)])

    assert {len(device.processes) for device in told.devices} == {65}
    assert {len(device.holders) for device in told.devices} == {65}


def test_failures_are_sentences() -> None:
    failures = [
        {"call": "nvmlA", "error": "Not Supported", "device": "GPU-1"},
        {"call": "nvmlB", "error": "No Permission"},
    ]

    assert read(failures=failures).failures == ("nvmlA of GPU-1: Not Supported", "nvmlB: No Permission")


def test_mig_profiles_are_those_of_the_instances() -> None:
    mig = {
        "enabled": True,
        "instances": [{"uuid": "MIG-1", "profile": "1g.10gb"}, {"uuid": "MIG-2", "profile": "3g.40gb"}],
    }

    (device,) = read(devices=[{"uuid": "GPU-1", "mig": mig}]).devices

    assert (device.is_mig, device.mig_profiles) == (True, ("1g.10gb", "3g.40gb"))


def test_a_node_has_no_more_devices_than_fit_in_an_int64_mask() -> None:
    told = read(devices=[{"uuid": f"GPU-{number}"} for number in range(64)])

    assert (1 << len(told.devices)) - 1 == np.iinfo(np.int64).max
