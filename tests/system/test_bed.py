"""Tests of the bed itself, without Leeboard: nodes, pods and Jobs work, and nothing survives a killed parent."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.api import JOBS, NODES, PODS, RUN_FOR, Api, Object, gpu_node, job, pod
from tests.system.bed import Bed
from tests.system.controlplane.build import KUBERNETES_VERSION
from tests.system.identities import User
from tests.system.waiting import eventually, slowness

ROOT = Path(__file__).parents[2]
START_A_BED = """
import sys, time
from pathlib import Path
from tests.system.bed import Bed
bed = Bed(Path(sys.argv[1]))
bed.start_control_plane()
print(*(child.pid for child in bed.children), flush=True)
time.sleep(600)
"""


def test_the_control_plane_has_the_chosen_version(api: Api, bed: Bed) -> None:
    said = subprocess.run([bed.programs / "kube-scheduler", "--version"], capture_output=True, text=True, check=True)

    assert api.call("GET", "/version")["gitVersion"] == f"v{KUBERNETES_VERSION}"
    assert said.stdout.strip() == f"Kubernetes v{KUBERNETES_VERSION}"


@pytest.mark.parametrize(("threads", "times"), [(0.0, 1.0), (1.0, 1.0), (6.0, 6.0), (1000.0, 10.0)])
def test_a_busy_machine_has_more_time(monkeypatch: pytest.MonkeyPatch, threads: float, times: float) -> None:
    wanted = threads * (os.cpu_count() or 1)
    # No test can make the machine that busy.
    monkeypatch.setattr(os, "getloadavg", lambda: (wanted, 0.0, 0.0))

    assert slowness() == times


def test_an_unknown_version_is_refused_with_the_known_ones() -> None:
    asked = [sys.executable, "-m", "tests.system.controlplane.build"]
    env = os.environ | {"LEEBOARD_KUBERNETES": "1.12"}
    done = subprocess.run(asked, cwd=ROOT, env=env, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr.strip() == "LEEBOARD_KUBERNETES=1.12: the test bed has Kubernetes 1.34, 1.35, 1.36 and 1.37."


def test_nodes_become_ready_and_lose_their_taint(api: Api) -> None:
    api.create_all([gpu_node("n1"), gpu_node("n2")])

    eventually(
        lambda: {node["metadata"]["name"]: (_ready(node), node["spec"].get("taints")) for node in api.items(NODES)},
        until=lambda seen: seen == {"n1": ("True", None), "n2": ("True", None)},
        within_s=20,
        what="both nodes are Ready without a taint",
    )


def test_a_pod_placed_by_the_default_scheduler_runs(api: Api) -> None:
    api.create(gpu_node("n-placed", gpus=2))

    api.create(pod("p", gpus=2, scheduler="default-scheduler"))

    api.wait_for_phase("Running", "p", within_s=20)
    assert api.bound_pods() == {"p": "n-placed"}


def test_a_pod_ends_after_the_time_in_its_annotation(api: Api) -> None:
    api.create(gpu_node("n-ends"))
    never = {"restartPolicy": "Never"}

    api.create(pod("short", scheduler="default-scheduler", annotations={RUN_FOR: "500ms"}, spec=never))
    api.create(pod("long", scheduler="default-scheduler", annotations={RUN_FOR: "1h"}, spec=never))

    api.wait_for_phase("Succeeded", "short", within_s=20)
    api.wait_for_phase("Running", "long", within_s=20)


def test_a_job_completes(api: Api) -> None:
    api.create(gpu_node("n-job"))

    api.create(job("j", parallelism=2, template=pod("unnamed", scheduler="default-scheduler")))

    eventually(
        lambda: [each["status"].get("succeeded") for each in api.items(JOBS)],
        until=lambda succeeded: succeeded == [2],
        within_s=30,
        what="the Job's two pods succeed",
    )


def test_a_deleted_pod_is_removed_by_its_kubelet(api: Api) -> None:
    api.create(gpu_node("n-deleted"))
    api.create(pod("p", scheduler="default-scheduler"))
    api.wait_for_phase("Running", "p", within_s=20)

    api.delete("/api/v1/namespaces/default/pods/p")

    eventually(
        lambda: api.items(PODS), until=lambda pods: not pods, within_s=20, what="the pod does not exist any more"
    )


def test_leeboard_is_no_administrator(bed: Bed) -> None:
    with bed.api(User.LEEBOARD) as leeboard:
        assert not _may(leeboard, "list", "secrets")


def test_a_saved_store_can_be_restored(tmp_path: Path) -> None:
    with Bed(tmp_path / "bed") as bed:
        bed.start_control_plane()
        with bed.api() as api:
            api.create(gpu_node("kept"))
            bed.save_store(tmp_path / "saved")
            api.create(gpu_node("lost"))

            bed.restore_store(tmp_path / "saved")

            assert [node["metadata"]["name"] for node in api.items(NODES)] == ["kept"]


def test_no_process_survives_a_killed_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-c", START_A_BED, str(tmp_path / "bed")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(_is_running(pid) for pid in pids)

        parent.send_signal(signal.SIGKILL)

    eventually(
        lambda: [pid for pid in pids if _is_running(pid)],
        until=lambda alive: not alive,
        within_s=10,
        what="etcd and kube-apiserver die with their parent",
    )


def _ready(node: Object) -> str:
    return next(str(each["status"]) for each in node["status"]["conditions"] if each["type"] == "Ready")


def _may(api: Api, verb: str, resource: str) -> bool:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "metadata": {},
        "spec": {"resourceAttributes": {"verb": verb, "resource": resource}},
    }
    return bool(api.create(review)["status"]["allowed"])


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    # A zombie process is dead too.
    return state != "Z"
