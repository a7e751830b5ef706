"""The shipped Leeboard with admission, on simulated GPU nodes, with an observer of every assigned device."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count

import httpx

from tests.system.agents import GPU_NODES
from tests.system.api import DEFAULT_PODS, PODS, Api, Object, gpu_node, pod
from tests.system.bed import HOST, PLAIN_SCHEDULER, Bed, free_ports
from tests.system.cluster import DEFAULT_QUEUES, documents
from tests.system.conftest import sweep
from tests.system.forms import Deployed, Form, deployed
from tests.system.gpu_observer import GRACE_S, GpuObserver
from tests.system.gpus import DevicePlugins
from tests.system.held import METRICS_OPEN
from tests.system.machines import H100, SIMULATED, Machine, machine_node
from tests.system.shares import RESERVATIONS, devices, environment, is_reservation, path_of_pod
from tests.system.waiting import eventually

QUEUE = "default-queue"
RESERVATION_PODS = f"/api/v1/namespaces/{RESERVATIONS}/pods"
WITHIN_S = 30.0
"""Not a promise of Leeboard, but the time that a busy machine may need."""

_node_numbers = count()


def sharer(name: str, fraction: str = "", **more: object) -> Object:
    """Build a pod that requests a fraction of a GPU; `annotations` and all else as for `pod`."""
    own: dict[str, str] = {"gpu-fraction": fraction} if fraction else {}
    annotations: Mapping[str, str] = more.pop("annotations", {})  # type: ignore[assignment] # free-form by design
    return pod(name, gpus=0, cpu="100m", memory="64Mi", queue=QUEUE, annotations=own | dict(annotations), **more)  # type: ignore[arg-type] # as above


def whole(name: str, gpus: int = 1) -> Object:
    """Build a pod that requests whole GPUs."""
    return pod(name, gpus=gpus, cpu="100m", memory="64Mi", queue=QUEUE)


class SharingCluster:
    """A running cluster whose nodes the test creates."""

    def __init__(self, running: Deployed, plugins: DevicePlugins, observer: GpuObserver, scheduler_port: int) -> None:
        self.api = running.api
        self.running = running
        self.plugins = plugins
        self.observer = observer
        self._scheduler_port = scheduler_port

    # -- changes

    def add_gpu_nodes(self, number: int, *, gpus: int, machine: Machine = H100) -> list[str]:
        """Create GPU nodes, and return their names when Leeboard has read the reports of their agents."""
        names = [f"{SIMULATED}s{next(_node_numbers):03}" for _ in range(number)]
        self.api.create_all(machine_node(name, gpus=gpus, machine=machine) for name in names)
        for name in names:
            eventually(partial(self._knows_gpus, name), within_s=WITHIN_S, what=f"Leeboard knows the GPUs of {name}")
        return names

    def add_cpu_nodes(self, number: int) -> None:
        """Create nodes without GPUs."""
        self.api.create_all(gpu_node(f"cpu-s{next(_node_numbers):03}", gpus=0) for _ in range(number))

    def delete(self, *names: str) -> None:
        """Delete pods at once."""
        for name in names:
            self.api.delete_now(f"{DEFAULT_PODS}/{name}")

    def kill_leeboard(self) -> None:
        """End Leeboard like a crash."""
        self.running.bed.kill("leeboard")

    def start_leeboard(self) -> None:
        """Start it again; it need not be ready on return."""
        self.running.start_leeboard()

    # -- reading

    def run(self, *pods: Object) -> list[Object]:
        """Create pods and wait until they run; return their current state, in this order."""
        self.api.create_all(pods)
        return self.wait_until_run(*(one["metadata"]["name"] for one in pods))

    def wait_until_run(self, *names: str, within_s: float = WITHIN_S) -> list[Object]:
        """Wait until pods run; return them."""
        self.api.wait_for_phase("Running", *names, within_s=within_s)
        return [self.api.get(f"{DEFAULT_PODS}/{name}") for name in names]

    def get(self, name: str) -> Object:
        """Return the current state of a pod."""
        return self.api.get(f"{DEFAULT_PODS}/{name}")

    def sees(self, one: Object) -> dict[str, dict[str, str]]:
        """Return the environment of each container of a pod."""
        return environment(one, self.plugins.held_by(one))

    def wait_for_why(self, name: str, text: str) -> None:
        """Wait until the reason for which a pod is pending contains the text."""
        eventually(
            lambda: str(self.running.why(name)),
            until=lambda said: text in said,
            within_s=WITHIN_S,
            what=f"{name} is told {text!r}",
        )

    def reservations(self) -> list[Object]:
        """Return the reservation pods."""
        return [one for one in self.api.items(RESERVATION_PODS) if is_reservation(one)]

    def reservation_of(self, uuid: str) -> Object:
        """Return the reservation pod that holds a device."""
        return self.api.get(f"/api/v1/namespaces/{RESERVATIONS}/pods/{self.plugins.holder(uuid).rpartition('/')[2]}")

    def wait_for_reservations(self, number: int, within_s: float = WITHIN_S) -> list[Object]:
        """Wait until there is exactly this number of reservation pods; return them."""
        return eventually(
            self.reservations,
            until=lambda seen: len(seen) == number,
            within_s=within_s,
            what=f"{number} reservation pods",
        )

    def told(self, *beginnings: str) -> float:
        """Return the sum of the metrics of kube-scheduler whose lines begin with this text."""
        # Its serving certificate is self-signed and created again at each start.
        address = f"https://{HOST}:{self._scheduler_port}/metrics"
        text = httpx.get(address, verify=False, trust_env=False).raise_for_status().text
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(beginnings))

    def check(self) -> None:
        """Check that no device was ever assigned wrongly."""
        found = self.observer.breaches()
        assert not found, "\n".join(found)

    def _knows_gpus(self, node: str) -> bool:
        return bool(self.running.gpus(node).get("devices"))

    def clear(self) -> None:
        """Remove all pods; reservation pods are deleted by Leeboard if nothing is wrong."""
        for one in self.api.items(PODS):
            if one["metadata"]["namespace"] == "default":
                self.api.delete_now(path_of_pod(one))
        self.wait_for_reservations(0)


def same_device(*pods: Object) -> bool:
    """Whether all of them share the same device."""
    return len({devices(one) for one in pods}) == 1 and len(devices(pods[0])) == 1


class Ground:
    """A running form on which tests are made one after the other."""

    def __init__(self, running: Deployed, scheduler_port: int) -> None:
        self.running = running
        self._scheduler_port = scheduler_port

    @contextmanager
    def cluster(self, *, grace_s: float = GRACE_S) -> Iterator[SharingCluster]:
        """Yield it to one test: checked and cleaned at the end, and the rest is removed in any case.

        For `grace_s` the devices may be in dispute.
        """
        api, bed = self.running.api, self.running.bed
        for item in documents(DEFAULT_QUEUES):
            api.apply(item)
        try:
            plugins = DevicePlugins(bed, leeboard=self.running)
            with plugins, GpuObserver(bed, grace_s=grace_s) as observer:
                cluster = SharingCluster(self.running, plugins, observer, self._scheduler_port)
                yield cluster
                cluster.check()
                cluster.clear()
        finally:
            sweep(api)
            api.empty(GPU_NODES)


@contextmanager
def ground(bed: Bed, api: Api, **settings: str) -> Iterator[Ground]:
    """Run Leeboard in its usual form, with these settings."""
    (port,) = free_ports(1)
    flags = [f"--secure-port={port}", f"--bind-address={HOST}", *METRICS_OPEN]
    with deployed(bed, api, Form.HELD, PLAIN_SCHEDULER, manifests=None, scheduler_flags=flags, **settings) as running:
        yield Ground(running, port)
