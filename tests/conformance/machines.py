"""Turns the nodes of a scheduling case into columns: what is free, what is being released, which GPUs are shared."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.model.dra import ClaimKey
from app.model.names import NodeName
from app.model.node import Node
from app.model.pod import Pod, Sharing
from app.model.resources import GPU, GPU_MILLI, Amounts, Resources, mig_gpus
from app.model.snapshot import PART, NodeTable, SharedDevice
from tests.conformance.jobs import device_scalar, is_legacy_mig
from tests.conformance.seats import HOLDING, PIPELINED, RELEASING, Seats, tasks
from tests.conformance.vectors import Case, exact


def table(case: Case) -> NodeTable:
    """Read the nodes."""
    return NodeTable.of(_node(name, node, case) for name, node in case["cluster"]["nodes"].items())


def _node(name: str, node: Case, case: Case) -> Node:
    allocatable = node["allocatable"]
    scalars = Counter({each: count for each, count in allocatable["scalars"].items() if each != "pods"})
    claimable = _claimable(name, node, case)
    # `allocatable.gpus` counts the devices of resource slices too; no device plugin offers them.
    gpu_milli = max(0, exact(allocatable["gpus"], GPU_MILLI) - GPU_MILLI * sum(claimable.values()))
    predicates = case["config"]["predicates_plugin_loaded"]
    return Node(
        name=NodeName(name),
        allocatable=Resources(
            cpu_milli=exact(allocatable["cpu_milli"], 1),
            memory_bytes=exact(allocatable["memory_bytes"], 1),
            gpu_milli=0 if node.get("dra_only_gpus") else gpu_milli,
            pods=min(node["max_tasks"], node["max_pods"]) if predicates else node["max_tasks"],
        ),
        scalars=tuple(sorted((scalars + claimable).items())),
        device_memory_mib=node["gpu_memory_mib"] if node.get("gpu_memory_synced", True) else 0,
        shares_devices=node["labels"].get("node-role.kubernetes.io/mig-enabled") != "true",
        labels=node["labels"],
    )


def _claimable(name: str, node: Case, case: Case) -> Counter[str]:
    claimable = Counter[str]()
    for each in (case["cluster"].get("dra") or {}).get("resource_slices", ()):
        if each["all_nodes"] or each["node"] == name or _selects(each["node_selector"], node["labels"]):
            claimable[device_scalar(each["device_class"])] += each["devices"]
    return claimable


def _selects(selector: Any, labels: Mapping[str, str]) -> bool:
    return isinstance(selector, dict) and selector.items() <= labels.items()


@dataclass(slots=True)
class _Parts:
    """Of one shared GPU, in parts: see `PART`."""

    kept: int = 0
    releasing: int = 0
    pipelined: int = 0


class Room:
    """The free resources of the nodes beside the tasks at one moment; built once a session, then only read."""

    def __init__(self, nodes: NodeTable) -> None:
        self.nodes = nodes
        self.free: Amounts = nodes.allocatable.copy()
        self.releasing: Amounts = np.zeros_like(nodes.allocatable)
        self.scalars: dict[str, Amounts] = _scalars(nodes)
        self.releasing_scalars = {name: np.zeros_like(amounts) for name, amounts in self.scalars.items()}
        self.claimed: dict[ClaimKey, tuple[NodeName, int]] = {}
        self._parts: defaultdict[NodeName, dict[str, _Parts]] = defaultdict(dict)

    @staticmethod
    def of(case: Case, nodes: NodeTable, pods: Mapping[str, Pod], seats: Seats) -> "Room":
        """Place every task."""
        room = Room(nodes)
        room._reserve(case, pods)
        # A task that waits for released resources takes part of those, so they must be noted before it.
        for status in (*sorted(HOLDING), RELEASING, PIPELINED):
            for name, seat in seats.items():
                node = NodeName(seat.node or "")
                if seat.status == status and node in nodes.index:
                    room._seat(pods[name], node, seat.devices, status)
        room._count_devices()
        room._close_to_mig(case, seats)
        return room

    @property
    def shared(self) -> dict[NodeName, tuple[SharedDevice, ...]]:
        """The GPUs in shared use."""
        return {
            node: tuple(self._shared_device(name, each, self._whole(node)) for name, each in sorted(devices.items()))
            for node, devices in self._parts.items()
        }

    @staticmethod
    def _shared_device(name: str, parts: _Parts, whole: int) -> SharedDevice:
        if not parts.kept and not parts.releasing:
            # Opened for pending tasks: no task can use it now, others may join them then.
            return SharedDevice(name, free=0, releasing=whole - parts.pipelined)
        free = whole - parts.kept - parts.releasing
        return SharedDevice(name, free=free, releasing=parts.releasing - parts.pipelined)

    def _reserve(self, case: Case, pods: Mapping[str, Pod]) -> None:
        """Note the claims that pods outside the case hold."""
        dra = case["cluster"].get("dra") or {}
        for claim in dra.get("resource_claims", ()):
            status, scalar = claim["status"] or {}, device_scalar(claim["device_class"])
            held = [each["name"] for each in status.get("reservedFor", ())]
            strangers = [name for name in held if name not in pods]
            node = self._allocated_at(status) or self._first_with(scalar)
            if node is not None and (strangers or (self._allocated_at(status) and not held)):
                self.claimed[ClaimKey(claim["namespace"], claim["name"])] = node, len(strangers)
                self._amounts(scalar)[self.nodes.index[node]] -= claim["count"]

    def _allocated_at(self, status: Case) -> NodeName | None:
        results: Sequence[Case] = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ({},)
        pool = NodeName(results[0].get("pool", ""))
        return pool if pool in self.nodes.index else None

    def _first_with(self, scalar: str) -> NodeName | None:
        """The node of a claim that has consumers but no allocation, which only a test can write."""
        return next((node.name for node in self.nodes.nodes if scalar in dict(node.scalars)), None)

    def _seat(self, pod: Pod, node: NodeName, devices: Iterable[str], status: str) -> None:
        column = self.nodes.index[node]
        amounts = np.array(pod.request.amounts, dtype=np.int64)
        if status != PIPELINED:
            self.free[:, column] -= amounts
        if status not in HOLDING:
            self.releasing[:, column] += amounts if status == RELEASING else -amounts
        for name, count in (*pod.scalars, *self._newly_claimed(pod, node, status)):
            if status != PIPELINED:
                self._amounts(name)[column] -= count
            if status not in HOLDING:
                self.releasing_scalars[name][column] += count if status == RELEASING else -count
        if pod.sharing is not None:
            for name in devices:
                self._share(pod.sharing, node, name, status)

    def _newly_claimed(self, pod: Pod, node: NodeName, status: str) -> list[tuple[str, int]]:
        new = [one for each in pod.claims if each.key not in self.claimed for one in each.scalars]
        if status in HOLDING:
            for each in pod.claims:
                at, consumers = self.claimed.get(each.key, (node, 0))
                self.claimed[each.key] = at, consumers + 1
        return new

    def _share(self, sharing: Sharing, node: NodeName, device: str, status: str) -> None:
        parts = self._parts[node].setdefault(device, _Parts())
        memory_mib = self._whole(node) // PART
        amount = sharing.memory_mib * PART or sharing.portion_ppm * memory_mib
        if status in HOLDING:
            parts.kept += amount
        elif status == RELEASING:
            parts.releasing += amount
        else:
            parts.pipelined += amount

    def _count_devices(self) -> None:
        """Remove the shared GPUs from the column; those that all pods release are whole again later."""
        for node, devices in self._parts.items():
            column = self.nodes.index[node]
            for each in devices.values():
                if each.kept or each.releasing:
                    self.free[GPU, column] -= GPU_MILLI
                if each.releasing and not each.kept and not each.pipelined:
                    self.releasing[GPU, column] += GPU_MILLI
                if each.pipelined and not each.kept and not each.releasing:
                    self.releasing[GPU, column] -= GPU_MILLI

    def _close_to_mig(self, case: Case, seats: Seats) -> None:
        """Leave no MIG device where a legacy pod runs: which of them it uses is unknown."""
        for _, task in tasks(case):
            node = NodeName(seats[task["name"]].node or "")
            if is_legacy_mig(task) and node in self.nodes.index:
                for name in self.scalars:
                    if mig_gpus(name):
                        self.scalars[name][self.nodes.index[node]] = 0

    def _amounts(self, scalar: str) -> Amounts:
        if scalar not in self.scalars:
            self.scalars[scalar] = np.zeros(len(self.nodes.nodes), dtype=np.int64)
            self.releasing_scalars[scalar] = np.zeros(len(self.nodes.nodes), dtype=np.int64)
        return self.scalars[scalar]

    def _whole(self, node: NodeName) -> int:
        return int(self.nodes.device_memory_mib[self.nodes.index[node]]) * PART


def _scalars(nodes: NodeTable) -> dict[str, Amounts]:
    amounts: dict[str, Amounts] = {}
    for column, node in enumerate(nodes.nodes):
        for name, count in node.scalars:
            amounts.setdefault(name, np.zeros(len(nodes.nodes), dtype=np.int64))[column] = count
    return amounts
