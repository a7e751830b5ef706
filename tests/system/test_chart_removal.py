"""The commands of the chart's README for the removal of Leeboard, on a real API server and with kubectl."""

import shlex
import subprocess

import pytest

from tests.deploy.rendering import CHART
from tests.system.api import Api, gpu_node, pod
from tests.system.bed import Bed
from tests.system.cluster import ROOT, install
from tests.system.identities import User


@pytest.fixture
def installed(bed: Bed, api: Api) -> Bed:
    install(api)
    return bed


@pytest.mark.parametrize("verb", ["get", "delete"])
def test_only_pending_pods_are_found(installed: Bed, api: Api, verb: str) -> None:
    elsewhere = pod("elsewhere", scheduler="default-scheduler")
    runs = pod("runs", spec={"nodeName": "removal"})
    api.create_all([gpu_node("removal", gpus=2), pod("waits"), runs, elsewhere])
    (command,) = _commands(f"kubectl {verb} pods")

    found = _kubectl(installed, *command, *(["--dry-run=server"] if verb == "delete" else []))

    assert [name for name in ("waits", "runs", "elsewhere") if name in found] == ["waits"]


def test_without_helm_everything_except_the_objects_of_users_can_be_deleted(installed: Bed) -> None:
    (command,) = _commands("kubectl delete -f all.yaml")
    manifests = str(ROOT / "deploy" / "kustomize" / "own-scheduler" / "manifests.yaml")
    there = [manifests if word == "all.yaml" else word for word in command]

    found = _kubectl(installed, *there, "--dry-run=client", "--ignore-not-found", "--output=name")

    assert "clusterrole.rbac.authorization.k8s.io/leeboard" in found
    kept = ("customresourcedefinition", "priorityclass", "namespace")
    assert not [line for line in found.splitlines() if line.startswith(kept)]


def _commands(beginning: str) -> list[list[str]]:
    """Return the commands of the README, each word by word without `kubectl`."""
    lines = (CHART / "README.md").read_text().splitlines()
    return [shlex.split(line)[2:] for line in lines if line.startswith(f"$ {beginning}")]


def _kubectl(bed: Bed, *arguments: str) -> str:
    command = [str(bed.programs / "kubectl"), f"--kubeconfig={bed.kubeconfig(User.ADMIN)}", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout
