"""Where a peer comes from: its programs, built once into the cache of `build`, and the manifests of its own module."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from loadtest.contender import CannotError
from tests.system.api import Api, Object
from tests.system.children import Child
from tests.system.cluster import documents, wait_until_served
from tests.system.controlplane import build
from tests.system.waiting import eventually

MODULES = Path(__file__).parent / "go"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
STARTED_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A Go module of ours in `go/` that pins another, of which some packages are programs."""

    name: str
    """Of the folder."""
    module: str
    """The pinned one."""
    kubernetes: str
    """The version of the Kubernetes libraries that it is built with."""
    packages: Sequence[tuple[str, str]]
    """Program, and its package."""

    def programs(self) -> Path:
        """Return the folder with its programs, building what is missing; raises `CannotError` where that fails."""
        wanted = {program: (self.name, package) for program, package in self.packages}
        with _told(f"{self.name} could not be built"):
            return build.built(self.name, wanted, here=MODULES, kubernetes=self.kubernetes)

    def documents(self, path: str) -> Sequence[Object]:
        """Return the objects in a file of the pinned module, or in all files of a folder; raises as `programs` does."""
        found = self._root() / path
        files = sorted(found.glob("*.yaml")) if found.is_dir() else [found]
        return [item for file in files for item in documents(file)]

    def text(self, path: str) -> str:
        """Return a file of the pinned module; raises as `programs` does."""
        return (self._root() / path).read_text()

    def _root(self) -> Path:
        with _told(f"the sources of {self.name} are not to be had"):
            return build.sources(self.module, module=MODULES / self.name)


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Turn what Go says, which is many lines, into a sentence with the last of them."""
    try:
        yield
    except RuntimeError as failed:
        line = str(failed).strip().rpartition("\n")[2].strip().rstrip(".")
        raise CannotError(f"{what}: {line}.") from failed


def install_kinds(api: Api, crds: Sequence[Object]) -> None:
    """Create the CRDs and wait until objects of their kinds can be created."""
    api.create_all(crds)
    for crd in crds:
        name = crd["metadata"]["name"]
        eventually(partial(_is_established, api, name), within_s=30.0, what=f"{name} is established")
        wait_until_served(api, crd)


def namespaces(*names: str) -> Iterable[Object]:
    """Return the namespaces of these names."""
    return [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in names]


def await_line(child: Child, *parts: str) -> None:
    """Wait until one line of a program's log has all of the parts: its caches are filled."""

    def lines() -> Sequence[str]:
        child.check_alive()
        return [line for line in child.log.read_text().splitlines() if all(part in line for part in parts)]

    eventually(lines, within_s=STARTED_WITHIN_S, what=f"{child.name} has filled its caches")


def _is_established(api: Api, name: str) -> bool:
    status = api.get(f"{CRDS}/{name}").get("status", {})
    return any(each["type"] == "Established" and each["status"] == "True" for each in status.get("conditions") or ())
