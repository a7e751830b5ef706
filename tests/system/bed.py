"""A real control plane on loopback: etcd, kube-apiserver and the programs started beside them, in one folder.

All programs end with this process, even after SIGKILL. The logs stay in the folder after a failure.
"""

import json
import os
import shutil
import socket
import ssl
import sys
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import cycle
from pathlib import Path
from random import SystemRandom
from types import TracebackType
from typing import Self

import httpx

from tests.system import audit, children, features
from tests.system.api import Api, Object
from tests.system.children import Child
from tests.system.controlplane import build
from tests.system.identities import SERVICE_ACCOUNT_KEY, TOKENS, Identities, User
from tests.system.waiting import eventually

HOST = "127.0.0.1"
MOST_WORKERS = 8
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % MOST_WORKERS
PORTS = range(20000, 32000)[WORKER::MOST_WORKERS]
"""Used by no other parallel test process, and below the kernel's ephemeral range.

A port that is kept for a restart cannot become the port of another program or of a client.
"""
_ports = cycle(SystemRandom().sample(PORTS, len(PORTS)))
STAGES = Path(__file__).parent / "controlplane" / "stages.yaml"
CONTROLLERS = (
    "serviceaccount-controller",
    "root-ca-certificate-publisher-controller",
    "namespace-controller",
    "garbage-collector-controller",
    "pod-garbage-collector-controller",
    "node-lifecycle-controller",
    "taint-eviction-controller",
    "disruption-controller",
    "job-controller",
    "replicaset-controller",
    "deployment-controller",
    "statefulset-controller",
    "cronjob-controller",
    "ttl-after-finished-controller",
    "resourceclaim-controller",
    "device-taint-eviction-controller",
    "validatingadmissionpolicy-status-controller",
)
PLAIN_SCHEDULER = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: "${KUBECONFIG}", qps: 5000, burst: 10000}
leaderElection: {leaderElect: false}
"""
"""The configuration of the cluster's own kube-scheduler, as if Leeboard did not exist."""
WITHOUT_CONTROLLERS = ("ServiceAccount", "TaintNodesByCondition")
"""Admission plugins to turn off when no controller manager runs: both wait for its controllers."""


class Audit(Enum):
    """What the API server logs (every write costs a few percent)."""

    OFF = "off"
    WRITES = "writes"
    WRITES_AND_LEEBOARD = "writes and leeboard"
    """Also the reads of Leeboard."""


class Kept(Enum):
    """What happens to the folder when the bed is stopped without an error."""

    REMOVED = "removed"
    KEPT = "kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServerOptions:
    """Options that differ between the uses of the API server."""

    disabled_admission: tuple[str, ...] = ()
    audit: Audit = Audit.OFF
    flags: tuple[str, ...] = ()


class Bed:
    """The processes of one control plane; use it as a context manager.

    `Bed(folder).start_control_plane()` gives etcd and the API server. Scheduler, controllers, kwok and Leeboard are
    started one by one, so that a bench can leave out the programs that would cost it time.
    """

    def __init__(
        self, folder: Path, *, options: ApiServerOptions | None = None, after_success: Kept = Kept.REMOVED
    ) -> None:
        self.folder = folder
        self.programs = build.programs()
        self.options = options or ApiServerOptions()
        self.audit_log = folder / "audit.log"
        self._after_success = after_success
        self.identities = Identities()
        self._etcd_port, self._etcd_peer_port, self._api_port = free_ports(3)
        # In the order they were started; changed only by `start` and `stop`.
        self._started: dict[str, Child] = {}
        folder.mkdir(parents=True, exist_ok=True)

    # -- what others need to reach it

    @property
    def url(self) -> str:
        """Return the API server's address."""
        return f"https://{HOST}:{self._api_port}"

    @property
    def ca(self) -> Path:
        """Return the API server's certificate file, which contains the CA that signed it."""
        return self.folder / "certs" / "apiserver.crt"

    def token(self, user: User) -> str:
        """Return the bearer token of a user."""
        return self.identities.tokens[user]

    def reading(self, user: User = User.ADMIN) -> dict[str, str]:
        """Return the headers with which a user reads metrics and the read API of Leeboard."""
        return {"Authorization": f"Bearer {self.token(user)}"}

    def kubeconfig(self, user: User) -> Path:
        """Return the kubeconfig file of a user; it exists once the API server has been started."""
        return self.folder / user.file_name

    def api(self, user: User = User.ADMIN) -> Api:
        """Return a client with the identity of `user`; the caller closes it."""
        return Api(self.url, token=self.token(user), verify=ssl.create_default_context(cafile=self.ca))

    # -- starting

    def start(self, name: str, command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> Child:
        """Start any program as part of the bed, for example Leeboard itself; its output goes to `<name>.log`."""
        child = children.start(name, command, log=self.folder / f"{name}.log", env=env)
        self._started[name] = child
        return child

    def start_control_plane(self) -> None:
        """Start etcd and the API server and wait until it is ready (3-5 s)."""
        self.identities.write(self.folder, url=self.url, ca=self.ca)
        self._start_etcd()
        self._start_apiserver()

    def start_scheduler(
        self,
        config: str,
        *,
        name: str = "kube-scheduler",
        user: User = User.SCHEDULER,
        placeholders: Mapping[str, str] | None = None,
        flags: Sequence[str] = (),
    ) -> Child:
        """Start kube-scheduler with a KubeSchedulerConfiguration in which `${KUBECONFIG}` and others are filled in."""
        text = config.replace("${KUBECONFIG}", str(self.kubeconfig(user)))
        for placeholder, value in (placeholders or {}).items():
            text = text.replace(f"${{{placeholder}}}", value)
        path = self.folder / f"{name}.yaml"
        path.write_text(text)
        command = [self.programs / "kube-scheduler", f"--config={path}", "--secure-port=0", *features.GATES, *flags]
        return self.start(name, command)

    def start_controller_manager(self, *flags: str) -> Child:
        """Start the controllers that Jobs, service accounts, namespaces, node failures and claims need."""
        return self.start(
            "kube-controller-manager",
            [
                self.programs / "kube-controller-manager",
                f"--kubeconfig={self.kubeconfig(User.CONTROLLER_MANAGER)}",
                f"--controllers={','.join(CONTROLLERS)}",
                f"--service-account-private-key-file={self.folder / SERVICE_ACCOUNT_KEY}",
                f"--root-ca-file={self.ca}",
                "--use-service-account-credentials=true",
                "--leader-elect=false",
                "--secure-port=0",
                "--kube-api-qps=500",
                "--kube-api-burst=1000",
                *features.GATES,
                *flags,
            ],
        )

    def start_kwok(self, stages: Path = STAGES) -> Child:
        """Start kwok, which simulates the kubelet of every node."""
        (port,) = free_ports(1)
        return self.start(
            "kwok",
            [
                self.programs / "kwok",
                f"--kubeconfig={self.kubeconfig(User.KWOK)}",
                f"--config={stages}",
                "--manage-all-nodes=true",
                "--cidr=10.64.0.0/10",
                "--node-ip=10.0.0.1",
                "--node-lease-duration-seconds=40",
                f"--server-address={HOST}:{port}",
            ],
        )

    # -- stopping

    def child(self, name: str) -> Child:
        """Return a started program by its name."""
        return self._started[name]

    @property
    def children(self) -> tuple[Child, ...]:
        """Return all programs in the order they were started."""
        return tuple(self._started.values())

    def stop(self, name: str) -> None:
        """Stop one program."""
        self._started.pop(name).stop()

    def kill(self, name: str) -> None:
        """End one program at once, like a crash; it may be started again under the same name."""
        self._started.pop(name).kill()

    def stop_all(self) -> None:
        """Stop everything, last started first: etcd last, because an API server without it would use much CPU."""
        for name in reversed(tuple(self._started)):
            self.stop(name)

    def __enter__(self) -> Self:
        """Return the bed itself; nothing is started yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything; after a failure keep the folder and print where the logs are."""
        dead = [child.name for child in self.children if child.process.poll() is not None]
        self.stop_all()
        if (kind is not None and kind is not KeyboardInterrupt) or dead:
            print(f"control plane failed (ended early: {dead or 'none'}); logs: {self.folder}/*.log", file=sys.stderr)
        elif self._after_success is Kept.REMOVED:
            shutil.rmtree(self.folder, ignore_errors=True)

    # -- fixtures: an etcd folder is restored about three times faster than its objects are created

    def save_store(self, to: Path) -> None:
        """Copy etcd's folder; the API server and etcd are restarted around it."""
        self._with_store_at_rest(lambda: _replace(to, by=self._store))

    def restore_store(self, source: Path) -> None:
        """Restore a saved etcd folder; start with the same API server flags or its objects are not served."""
        self._with_store_at_rest(lambda: _replace(self._store, by=source))

    def _with_store_at_rest(self, act: Callable[[], None]) -> None:
        # Before the first start there is nothing to stop.
        for name in ("kube-apiserver", "etcd"):
            if name in self._started:
                self.stop(name)
        act()
        self.start_control_plane()

    def store_unchecked(self, key: str, item: Object) -> None:
        """Store an object as it is, which the API server would refuse: the Endpoints of a Service on loopback."""
        written = {"key": b64encode(key.encode()).decode(), "value": b64encode(json.dumps(item).encode()).decode()}
        httpx.post(f"http://{HOST}:{self._etcd_port}/v3/kv/put", json=written).raise_for_status()

    # -- pieces

    @property
    def _store(self) -> Path:
        return self.folder / "etcd"

    def _start_etcd(self) -> None:
        client, peer = f"http://{HOST}:{self._etcd_port}", f"http://{HOST}:{self._etcd_peer_port}"
        self.start(
            "etcd",
            [
                self.programs / "etcd",
                f"--data-dir={self._store}",
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
                "--unsafe-no-fsync",
                "--log-level=error",
                f"--quota-backend-bytes={4 * 2**30}",
            ],
        )
        self._await_answer("etcd", f"{client}/health", 30.0)

    def _start_apiserver(self) -> None:
        self.start(
            "kube-apiserver",
            [
                self.programs / "kube-apiserver",
                f"--etcd-servers=http://{HOST}:{self._etcd_port}",
                f"--secure-port={self._api_port}",
                f"--bind-address={HOST}",
                f"--cert-dir={self.ca.parent}",
                f"--service-account-key-file={self.folder / SERVICE_ACCOUNT_KEY}",
                f"--service-account-signing-key-file={self.folder / SERVICE_ACCOUNT_KEY}",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--token-auth-file={self.folder / TOKENS}",
                "--authorization-mode=RBAC",
                "--service-cluster-ip-range=10.0.0.0/24",
                # Priority and fairness are off: the two limits below are then the only ones, for every program.
                "--enable-priority-and-fairness=false",
                "--max-requests-inflight=4000",
                "--max-mutating-requests-inflight=2000",
                *features.GATES,
                *features.SERVED,
                *self._apiserver_options(),
            ],
        )
        # The key is written when the certificate is complete; the certificate alone may still be empty.
        eventually(self.ca.with_suffix(".key").exists, within_s=30.0, what="the API server's certificate and key")
        self._await_answer("kube-apiserver", f"{self.url}/readyz", 60.0)

    def _apiserver_options(self) -> list[str]:
        flags = list(self.options.flags)
        if self.options.disabled_admission:
            flags.append(f"--disable-admission-plugins={','.join(self.options.disabled_admission)}")
        if self.options.audit is not Audit.OFF:
            reads_of = User.LEEBOARD.value[0] if self.options.audit is Audit.WRITES_AND_LEEBOARD else None
            flags += audit.flags(self.folder / "audit-policy.yaml", self.audit_log, reads_of=reads_of)
        return flags

    def _await_answer(self, name: str, address: str, within_s: float) -> None:
        verify = ssl.create_default_context(cafile=self.ca) if address.startswith("https") else False
        headers = {"Authorization": f"Bearer {self.token(User.ADMIN)}"}
        with httpx.Client(verify=verify, headers=headers, trust_env=False) as client:

            def look() -> int:
                self.child(name).check_alive()
                return client.get(address).status_code

            eventually(look, until=lambda status: status == 200, within_s=within_s, what=f"{name} answers {address}")


def free_ports(count: int) -> list[int]:
    """Return unused ports that were given to no other caller here."""
    held: list[socket.socket] = []
    try:
        while len(held) < count:
            candidate = socket.socket()
            try:
                candidate.bind((HOST, next(_ports)))
            except OSError:
                candidate.close()
                continue
            held.append(candidate)
        return [int(each.getsockname()[1]) for each in held]
    finally:
        for each in held:
            each.close()


def _replace(target: Path, *, by: Path) -> None:
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(by, target)
