"""Replicas as the own-scheduler form runs them: each a Leeboard and a kube-scheduler that competes for one Lease."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import httpx
import pytest
import yaml

from app.model.marks import BIND_MARKER
from tests.system.api import Api, Object
from tests.system.bed import HOST, Bed, free_ports
from tests.system.cluster import ADMITTING_SCHEDULER_CONFIG, ROOT, SCHEDULER_CONFIG
from tests.system.identities import User
from tests.system.waiting import eventually

NAMESPACE, LEASE = "leeboard", "leeboard-scheduler"
LEASE_PATH = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{LEASE}"
SHORT = {"leaseDuration": "8s", "renewDeadline": "5s", "retryPeriod": "1s"}
"""Half of kube-scheduler's defaults: the tests wait for the lease to expire. Longer than our connection takes (5 s)."""

UNDER_ANOTHER_NAME = ("unshare", "--uts", "sh", "-c", 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"')
"""kube-scheduler's identity begins with its host name and has no flag: two on one machine need other host names."""


def need_names() -> None:
    """Skip the test if the host name of one program cannot be set: that needs root, as in a container."""
    tool = shutil.which(UNDER_ANOTHER_NAME[0])
    if tool is None or subprocess.run([tool, "--uts", "true"], check=False, capture_output=True).returncode:
        pytest.skip("two kube-schedulers on one machine need `unshare --uts`, which is not allowed here")


def allow_election(api: Api) -> None:
    """Let kube-scheduler compete for our Lease, and forget earlier holders."""
    api.delete(LEASE_PATH)
    role: Object = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "election", "namespace": NAMESPACE},
        "rules": [
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create", "get", "update"]}
        ],
    }
    binding: Object = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "election", "namespace": NAMESPACE},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "election"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": User.SCHEDULER.value[0]}],
    }
    api.apply(role)
    api.apply(binding)


class Pair:
    """A Leeboard and its kube-scheduler, as two containers of one pod; the test plays the kubelet."""

    def __init__(self, bed: Bed, name: str, *, election: Mapping[str, str] | None = None, marked: bool = False) -> None:
        """`marked`: policies mark the pods that Leeboard has to bind."""
        self.name = name
        self._bed = bed
        self._marked = marked
        self._election = dict(election or SHORT)
        self._webhooks, self._operations = free_ports(2)
        self._leeboard, self._scheduler = f"leeboard-{name}", f"scheduler-{name}"

    def start(self) -> None:
        """Start both."""
        self.start_leeboard()
        self.start_scheduler()

    def start_leeboard(self) -> None:
        """Start Leeboard, with the same host name as the kube-scheduler."""
        settings = {
            "kubeconfig": str(self._bed.kubeconfig(User.LEEBOARD)),
            "webhook_port": str(self._webhooks),
            "operations_port": str(self._operations),
            "scheduler_lease": f"{NAMESPACE}/{LEASE}",
            "hostname": self.name,
            "markers": BIND_MARKER if self._marked else "",
        }
        env = {f"LEEBOARD_{name.upper()}": value for name, value in settings.items()}
        self._bed.start(self._leeboard, [sys.executable, "-m", "app", "serve"], env | {"PYTHONPATH": str(ROOT)})

    def start_scheduler(self) -> None:
        """Start the kube-scheduler as shipped, except for its election."""
        path = self._bed.folder / f"{self._scheduler}.yaml"
        path.write_text(yaml.safe_dump(self._config()))
        program = self._bed.programs / "kube-scheduler"
        command: list[str | Path] = [*UNDER_ANOTHER_NAME, self.name, program, f"--config={path}", "--secure-port=0"]
        self._bed.start(self._scheduler, command)

    def _config(self) -> Object:
        shipped = ADMITTING_SCHEDULER_CONFIG if self._marked else SCHEDULER_CONFIG
        config: Object = yaml.safe_load(shipped.read_text())
        config["clientConnection"]["kubeconfig"] = str(self._bed.kubeconfig(User.SCHEDULER))
        config["leaderElection"] |= self._election
        for entry in config["extenders"]:
            entry["urlPrefix"] = f"http://{HOST}:{self._webhooks}"
        return config

    # -- its end

    def send(self, number: signal.Signals) -> None:
        """Send a signal to both at almost the same time."""
        for program in (self._scheduler, self._leeboard):
            self._bed.child(program).process.send_signal(number)

    def kill(self) -> None:
        """End both like a machine failure."""
        self.send(signal.SIGKILL)
        self.forget()

    def forget(self) -> None:
        """Forget both, in whatever state they are."""
        for program in (self._scheduler, self._leeboard):
            with suppress(KeyError):
                self._bed.kill(program)

    def await_end(self) -> None:
        """Wait until both have ended by themselves."""
        self.await_end_of_scheduler()
        self._await_end_of(self._leeboard)

    def await_end_of_scheduler(self) -> None:
        """Wait until kube-scheduler has ended by itself, as it does when it has lost its lease."""
        self._await_end_of(self._scheduler)

    def _await_end_of(self, program: str) -> None:
        process = self._bed.child(program).process
        eventually(lambda: process.poll() is not None, within_s=20, what=f"{program} ends")
        self._bed.kill(program)

    # -- its answers

    def failing(self) -> set[str]:
        """Return which checks of /readyz fail."""
        lines = httpx.get(f"http://{HOST}:{self._operations}/readyz?verbose", timeout=5.0).text.splitlines()
        return {line.removeprefix("[-]").split()[0] for line in lines if line.startswith("[-]")}

    def filter(self, asked: Object, *nodes: str) -> Object:
        """Call filter as kube-scheduler does."""
        question = {"Pod": asked, "NodeNames": list(nodes)}
        answer: Object = httpx.post(f"http://{HOST}:{self._webhooks}/filter", json=question, timeout=5.0).json()
        return answer

    def wait_until_active(self, within_s: float = 30.0) -> None:
        """Wait until it decides."""
        eventually(self.failing, until=lambda failing: not failing, within_s=within_s, what=f"{self.name} is active")

    def wait_until_standing_by(self, within_s: float = 30.0) -> None:
        """Wait until it is ready except for the lease."""
        eventually(
            self.failing, until=lambda failing: failing == {"active"}, within_s=within_s, what=f"{self.name} stands by"
        )

    def log(self) -> str:
        """Return the log of its Leeboard so far."""
        return Path(self._bed.folder / f"{self._leeboard}.log").read_text()


@contextmanager
def two_replicas(bed: Bed, suffix: str, *, marked: bool = False) -> Iterator[tuple[Pair, Pair]]:
    """Run two replicas; the first one yielded is active. The bed forgets both at the end."""
    both = [Pair(bed, f"{name}-{suffix}", marked=marked) for name in ("one", "two")]
    for pair in both:
        pair.start()
    active, standby = eventually(partial(in_order, *both), within_s=40, what="one is active, the other stands by")
    yield active, standby
    for pair in both:
        pair.forget()


def in_order(one: Pair, other: Pair) -> tuple[Pair, ...]:
    """Return the active replica, then the standby; nothing while there are not both."""
    failing = one.failing(), other.failing()
    if failing == (set(), {"active"}):
        return one, other
    return (other, one) if failing == ({"active"}, set()) else ()
