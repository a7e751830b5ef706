"""The pod of a process, by every form of cgroup path of kubelets and runtimes."""

from pathlib import Path

import pytest

from app.agent.cgroups import owners, pod_of

UID = "3f6b2a10-5c1d-4e8f-9a7b-0123456789ab"
ESCAPED = UID.replace("-", "_")
ID = "e" * 64


@pytest.mark.parametrize(
    "cgroup",
    [
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{ESCAPED}.slice/cri-containerd-{ID}.scope",
        f"0::/kubepods.slice/kubepods-pod{ESCAPED}.slice/crio-{ID}.scope/container",
        f"0::/kubepods/besteffort/pod{UID}/{ID}",
        f"0::/kubepods/pod{UID}/{ID}",
        f"0::/../../kubepods-besteffort.slice/kubepods-besteffort-pod{ESCAPED}.slice/cri-containerd-{ID}.scope",
        f"0::/../../pod{UID}/{ID}",
        f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{ESCAPED}.slice/cri-containerd-{ID}.scope",
        f"12:devices:/kubepods/burstable/pod{UID}/{ID}\n11:cpu,cpuacct:/kubepods/burstable/pod{UID}/{ID}\n0::/",
        f"1:name=systemd:/kubepods.slice/kubepods-pod{ESCAPED}.slice/docker-{ID}.scope",
        f"0::/system.slice/containerd.service/kubepods-burstable-pod{ESCAPED}.slice:cri-containerd:{ID}",
        # a container may create groups of its own
        f"0::/kubepods.slice/kubepods-pod{ESCAPED}.slice/cri-{ID}.scope/pod11111111-2222-3333-4444-555555555555/x",
    ],
)
def test_the_pod_is_found(cgroup: str) -> None:
    assert pod_of(cgroup) == UID


def test_a_static_pod_is_named_by_the_hash_of_its_file() -> None:
    assert pod_of(f"0::/kubepods/burstable/pod{'a1' * 16}/{ID}") == "a1" * 16


@pytest.mark.parametrize(
    "cgroup",
    ["", "0::/", "0::/user.slice/user-1000.slice", f"0::/system.slice/docker-{ID}.scope", "0::/podman/pods", "junk"],
)
def test_every_other_path_is_in_no_pod(cgroup: str) -> None:
    assert pod_of(cgroup) is None


def test_ended_processes_are_left_out(tmp_path: Path) -> None:
    for pid, cgroup in ((1, "0::/init.scope\n"), (2, f"0::/kubepods/pod{UID}/{ID}\n")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(cgroup)

    assert owners([1, 2, 3], tmp_path) == {1: None, 2: UID}
