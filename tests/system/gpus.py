"""Simulated GPUs: for each node named `gpu-...` the kubelet's device plugin, and the agent that publishes its GpuNode.

It runs beside kwok, like a kubelet: pods with whole GPUs start when they have got devices, and fail if there are none.
Tests inject faults by the methods of `DevicePlugins`, and compare with its devices and holders. Beside a Leeboard, a
fault returns when Leeboard has read it: whether a pod that is created next may be placed there is then certain.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from random import Random
from types import TracebackType
from typing import Self

import httpx

from tests.system.agents import Agents
from tests.system.api import NODES, PODS, ApiError, Object
from tests.system.bed import Bed
from tests.system.following import GONE, Following
from tests.system.identities import User
from tests.system.kubelets import Holder, Kubelet, Slot, running
from tests.system.machines import GPU, SIMULATED
from tests.system.reports import ReportReader, wait_until_full, wait_until_read
from tests.system.shares import is_over, node_of, path_of_pod, whole_gpus

GPU_NODES = "/apis/leeboard.dev/v1alpha1/gpunodes"
HEARTBEAT_S = 60.0
REFUSED = "UnexpectedAdmissionError"


class Uuids(Enum):
    """What happens to the UUIDs of the devices when their node restarts."""

    SAME = "same"
    OTHER = "other"


class DevicePlugins:
    """The device plugins and agents of all simulated GPU nodes; use it as a context manager beside a running bed."""

    def __init__(self, bed: Bed, *, chance: Random | None = None, leeboard: ReportReader | None = None) -> None:
        """`leeboard`: the running Leeboard that faults wait for; None: they wait for none."""
        self._api = bed.api(User.KWOK)
        self._agents = Agents(bed)
        self._leeboard = leeboard
        # Which of the free devices a pod gets; None: the first ones.
        self._chance = chance
        # Everything below is written under `_changed`, by the followers' threads and by the faults of a test.
        self._changed = threading.Condition()
        self._kubelets: dict[str, Kubelet] = {}
        self._pods: dict[str, Object] = {}
        self._stale: set[str] = set()
        self._silent: set[str] = set()
        self._ending = False
        self._report_delay_s = 0.0
        self._open = ExitStack()
        self._follow_nodes = Following(bed, NODES, self._see_node)
        self._follow_pods = Following(bed, PODS, self._see_pod)
        self._reporter = threading.Thread(target=self._report, name="agents", daemon=True)

    def __enter__(self) -> Self:
        """Start, and return once all nodes and pods that exist have been seen."""
        self._reporter.start()
        self._open.enter_context(self._follow_nodes)
        self._open.enter_context(self._follow_pods)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop; raise failed writes of the agents, unless another error is already raised."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        self._reporter.join()
        self._open.__exit__(kind, error, trace)
        self._agents.close()
        self._api.close()
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raise the errors of the threads."""
        self._follow_nodes.check()
        self._follow_pods.check()
        if self._agents.failures:
            raise self._agents.failures[0]

    # -- reading

    def uuids(self, node: str) -> list[str]:
        """Return the devices of a node, in the order of the driver."""
        with self._changed:
            return [slot.uuid for slot in self._kubelets[node].slots]

    def held_by(self, pod: Object) -> tuple[str, ...]:
        """Return the devices that the kubelet gave to a pod; empty for a pod that only shares."""
        with self._changed:
            kubelet = self._kubelets.get(node_of(pod))
            return kubelet.held_by(pod["metadata"]["uid"]) if kubelet else ()

    def holder(self, uuid: str) -> str:
        """Return namespace/name of the pod that has a device as a whole, a reservation pod too; empty when none has."""
        with self._changed:
            slot = self._slot(uuid)
            return f"{slot.holder.namespace}/{slot.holder.name}" if slot.holder else ""

    # -- faults

    def reboot(self, node: str, uuids: Uuids) -> None:
        """Restart a node: the kubelet admits its pods before the plugin runs, so pods with whole GPUs fail.

        Pods that share start again with their earlier environment. The plugin starts after that, with every device
        free. When the devices are the same, Leeboard shows nothing by which it could be waited for: wait for what it
        does.
        """

        def restart(kubelet: Kubelet) -> None:
            kubelet.stop_plugin()
            for pod in self._pods_on(node):
                if whole_gpus(pod) and not is_over(pod):
                    self._refuse(pod, "cannot allocate unregistered device nvidia.com/gpu")
            kubelet.start_anew(other_uuids=uuids is Uuids.OTHER)

        self._change(node, restart)

    @contextmanager
    def plugin_away(self, node: str) -> Iterator[None]:
        """Stop the device plugin: nothing is allocatable, new GPU pods are refused, running ones stay."""
        self._change(node, Kubelet.stop_plugin)
        try:
            yield
        finally:
            self._change(node, Kubelet.start_plugin)

    def lose(self, uuid: str) -> None:
        """Let a device fall off the bus: no report lists it any more, and the pod that holds it continues to run."""
        self._change_slot(uuid, lost=True)

    def make_unhealthy(self, uuid: str, reason: str) -> None:
        """Make a device unhealthy; the plugin no longer offers it."""
        self._change_slot(uuid, unhealthy_reason=reason)

    def squat(self, uuid: str, mib: int) -> None:
        """Let processes of no pod use memory of a device."""
        self._change_slot(uuid, foreign_mib=mib)

    def use(self, uuid: str, pod: Object, mib: int) -> None:
        """Let the processes of a pod use memory of a device."""
        with self._changed:
            used = {**self._slot(uuid).used, Holder.of(pod): mib}
        self._change_slot(uuid, used=used)

    def fail(self, pod: Object, message: str = "the node was short of something") -> None:
        """Let the kubelet end a pod as Failed."""
        with self._changed:
            self._refuse(pod, message)

    def fall_silent(self, node: str) -> None:
        """Let the agent of a node stop its reports."""
        with self._changed:
            self._silent.add(node)

    def speak_again(self, node: str) -> None:
        """Let it report again."""
        with self._changed:
            self._silent.discard(node)
            self._mark(node)
        self._wait_until_read(node)

    def blind(self, node: str, message: str) -> None:
        """Make every device unreadable for the agent of a node, as during a replacement of the driver."""
        self._change(node, partial(Kubelet.hide_devices, message=message))

    def see_again(self, node: str) -> None:
        """Make the devices readable again."""
        self._change(node, Kubelet.show_devices)

    def report_after(self, delay_s: float) -> None:
        """Delay the reports of all agents by this time; a fault then takes as long."""
        with self._changed:
            self._report_delay_s = delay_s
            self._changed.notify_all()

    def _change(self, node: str, change: Callable[[Kubelet], None]) -> None:
        with self._changed:
            change(self._kubelets[node])
            self._mark(node)
        self._tell_allocatable(node)
        self._wait_until_read(node)

    def _change_slot(self, uuid: str, **changes: object) -> None:
        with self._changed:
            slot = self._slot(uuid)
            node = next(name for name, each in self._kubelets.items() if slot in each.slots)
        self._change(node, lambda _: slot.change(**changes))

    def _wait_until_read(self, node: str) -> None:
        if self._leeboard is None:
            return
        with self._changed:
            is_silent, is_full = node in self._silent, not self._kubelets[node].allocatable
        if not is_silent:
            wait_until_read(self._leeboard, node, partial(self._reported, node))
        if is_full:
            wait_until_full(self._leeboard, node)

    def _reported(self, node: str) -> Object:
        with self._changed:
            return self._kubelets[node].status(_now())

    def _slot(self, uuid: str) -> Slot:
        return next(slot for each in self._kubelets.values() for slot in each.slots if slot.uuid == uuid)

    # -- the kubelets, in the threads of the followers

    def _see_node(self, kind: str, node: Object) -> None:
        name = node["metadata"]["name"]
        if not name.startswith(SIMULATED):
            return
        with self._changed:
            if kind == GONE:
                self._kubelets.pop(name, None)
            elif name not in self._kubelets:
                self._kubelets[name] = Kubelet.of(node)
                self._mark(name)
                # The two watches are not synchronized.
                for pod in self._pods_on(name):
                    self._admit_or_free(pod)

    def _see_pod(self, kind: str, pod: Object) -> None:
        if not node_of(pod).startswith(SIMULATED):
            return
        uid = pod["metadata"]["uid"]
        with self._changed:
            if kind == GONE:
                self._pods.pop(uid, None)
                self._free(pod)
            else:
                self._pods[uid] = pod
                self._admit_or_free(pod)

    def _admit_or_free(self, pod: Object) -> None:
        if is_over(pod):
            self._free(pod)
        elif whole_gpus(pod) and "deletionTimestamp" not in pod["metadata"]:
            self._admit(pod)

    def _admit(self, pod: Object) -> None:
        kubelet = self._kubelets.get(node_of(pod))
        if kubelet is None or not kubelet.sees_first(pod):
            return
        wanted = whole_gpus(pod)
        if kubelet.give(pod, wanted, self._chance):
            self._write(pod, running(pod, _now()))
            self._mark(node_of(pod))
        else:
            free = f"Requested: {wanted}, Available: {len(kubelet.free)}"
            self._refuse(pod, f"requested number of devices unavailable for {GPU}. {free}")

    def _free(self, pod: Object) -> None:
        kubelet = self._kubelets.get(node_of(pod))
        if kubelet is not None and kubelet.take_back(pod["metadata"]["uid"]):
            self._mark(node_of(pod))

    def _refuse(self, pod: Object, message: str) -> None:
        why = f"Pod was rejected: Allocate failed due to {message}, which is unexpected"
        self._write(pod, {"phase": "Failed", "reason": REFUSED, "message": why})

    def _write(self, pod: Object, status: Object) -> None:
        try:
            self._api.patch(
                f"{path_of_pod(pod)}/status", {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
            )
        except ApiError as refused:
            # It was deleted meanwhile, or another one of that name was created.
            if refused.status not in {httpx.codes.NOT_FOUND, httpx.codes.CONFLICT}:
                raise

    def _pods_on(self, node: str) -> list[Object]:
        return [pod for pod in self._pods.values() if node_of(pod) == node]

    def _tell_allocatable(self, node: str) -> None:
        with self._changed:
            number = str(self._kubelets[node].allocatable)
        self._api.patch(f"{NODES}/{node}/status", {"status": {"allocatable": {GPU: number}}})

    # -- the agents, in a thread of their own

    def _mark(self, node: str) -> None:
        self._stale.add(node)
        self._changed.notify_all()

    def _report(self) -> None:
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: self._ending or self._reporting(), HEARTBEAT_S):
                    self._stale |= self._kubelets.keys()
                self._take_its_time()
                if self._ending:
                    return
                reports = [(name, self._kubelets[name].status(_now())) for name in sorted(self._reporting())]
                self._stale &= self._silent
            missed = self._agents.publish_all(reports)
            with self._changed:
                self._stale |= missed

    def _take_its_time(self) -> None:
        began_s = time.monotonic()
        # If it is shortened meanwhile, it ends at once.
        self._changed.wait_for(
            lambda: self._ending or time.monotonic() - began_s >= self._report_delay_s, self._report_delay_s
        )

    def _reporting(self) -> set[str]:
        return (self._stale - self._silent) & self._kubelets.keys()


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
