"""The real CRDs of Ray, Kubeflow, JobSet and LeaderWorkerSet, from pinned Go modules, once, into the cache of `build`.

They are stored as JSON without their descriptions, which are most of their size and of no use to an API server.
"""

import fcntl
import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.system.api import Api, Object
from tests.system.cluster import apply_all
from tests.system.controlplane import build


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A Go module with CRDs, pinned like in `go.sum`."""

    path: str
    version: str
    checksum: str
    folder: str
    crds: tuple[str, ...]
    """Their names, which are the files' names in the folder: `<group>_<plural>.yaml`."""


MODULES = (
    Module(
        path="github.com/ray-project/kuberay/ray-operator",
        version="v1.5.1",
        checksum="h1:7FJYmB8oM+cnjv1VYCj/TfzRZG4XHvvt5Ayn5pZ5A1c=",
        folder="config/crd/bases",
        crds=("ray.io_rayclusters", "ray.io_rayjobs", "ray.io_rayservices"),
    ),
    # Its MPIJob, version v1, has the same name as that of the MPI operator: a cluster has one of them.
    Module(
        path="github.com/kubeflow/training-operator",
        version="v1.9.3",
        checksum="h1:aaSHqskOtCY8Dn8sVd+l9p5XAczW6O0nYMPjVLAw/lc=",
        folder="manifests/base/crds",
        crds=("kubeflow.org_pytorchjobs", "kubeflow.org_tfjobs", "kubeflow.org_xgboostjobs", "kubeflow.org_jaxjobs"),
    ),
    Module(
        path="github.com/kubeflow/mpi-operator",
        version="v0.7.0",
        checksum="h1:ID1eyzAFOMofgynEvfy4//S3q7Ra1OSexrggb1VcC1o=",
        folder="manifests/base",
        crds=("kubeflow.org_mpijobs",),
    ),
    Module(
        path="github.com/kubeflow/trainer/v2",
        version="v2.1.0",
        checksum="h1:jRABD9ZYToamNH2atHze3L/VC/v6KCAqUEqsOQOjVTg=",
        folder="manifests/base/crds",
        crds=("trainer.kubeflow.org_clustertrainingruntimes", "trainer.kubeflow.org_trainjobs"),
    ),
    Module(
        path="sigs.k8s.io/jobset",
        version="v0.10.1",
        checksum="h1:u8QKifNsrWVrlRFe6w2ofYTqFT9ma2DRHxfeB2m9xyU=",
        folder="config/components/crd/bases",
        crds=("jobset.x-k8s.io_jobsets",),
    ),
    Module(
        path="sigs.k8s.io/lws",
        version="v0.8.0",
        checksum="h1:DdhJ8QabwTfWgbgaHH2gdf8twliioHaoSfmDXRYEVU0=",
        folder="config/crd/bases",
        crds=("leaderworkerset.x-k8s.io_leaderworkersets",),
    ),
)


def install(api: Api) -> None:
    """Apply the missing CRDs, and wait until they are served."""
    there = {item["metadata"]["name"] for item in api.items("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")}
    apply_all(api, [crd for crd in crds() if crd["metadata"]["name"] not in there])


def crds() -> Sequence[Object]:
    """Return every CRD; what is not in the cache is downloaded.

    Raises `ToolchainMissingError` when a download is needed and no Go can be found or installed.
    """
    folder = build.cache_root() / f"crds-{hashlib.sha256(repr(MODULES).encode()).hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for module in MODULES:
            if not all(_kept(folder, name).exists() for name in module.crds):
                _fetch(module, folder)
    return [json.loads(_kept(folder, name).read_bytes()) for module in MODULES for name in module.crds]


def _fetch(module: Module, to: Path) -> None:
    source = _downloaded(module) / module.folder
    for name in module.crds:
        read = yaml.load((source / f"{name}.yaml").read_bytes(), yaml.CSafeLoader)
        # Written beside its place and renamed: an interrupted write must not look like a CRD.
        partial = to / f".{name}.partial"
        partial.write_text(json.dumps(without_descriptions(read)))
        partial.rename(_kept(to, name))


def _downloaded(module: Module) -> Path:
    """Return where Go has put a module; the download is compared with our checksum, not with a server's."""
    wanted = f"{module.path}@{module.version}"
    print(f"downloading the CRDs of {wanted} (once)", file=sys.stderr, flush=True)
    command = [str(build._go()), "mod", "download", "-json", wanted]
    environment = {**build._go_environment(), "GOSUMDB": "off"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    answer = json.loads(done.stdout or "{}")
    if done.returncode:
        raise RuntimeError(f"go mod download {wanted} failed: {answer.get('Error') or done.stderr[-2000:]}")
    if answer["Sum"] != module.checksum:
        raise RuntimeError(f"{wanted} has the checksum {answer['Sum']}, and {module.checksum} is pinned.")
    return Path(answer["Dir"])


def _kept(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def without_descriptions(part: Any) -> Any:
    """Return a part of a CRD without descriptions; a field named `description` has a schema instead of a text."""
    if isinstance(part, list):
        return [without_descriptions(each) for each in part]
    if not isinstance(part, dict):
        return part
    return {
        key: without_descriptions(value)
        for key, value in part.items()
        if not (key == "description" and isinstance(value, str))
    }
