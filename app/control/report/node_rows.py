"""The rows of one node in the live view: the node, its devices, and what pods have of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from app.cluster.gpus.shared_gpus import GpuState, NodeGpus
from app.cluster.state.cache import ClusterCache
from app.control.report.device_shares import MOST_DEVICES, Holder, NodePods, shares
from app.model import links
from app.model.device import Device, GpuNode, Health
from app.model.layout import Layout
from app.model.live import Row, in_public
from app.model.names import NodeName, PodUid
from app.model.node import Node
from app.model.pod import Pod
from app.model.resources import GPU_MILLI, MOST_SLICES, mig_gpus
from app.model.seam import rfc3339

MODEL_LABEL = "nvidia.com/gpu.product"
CORDON = "it is cordoned: no new pods"
NOT_READY = "its kubelet does not report that it is Ready"

Amounts = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRows:
    """What is shown of one node."""

    tables: Mapping[str, Mapping[str, Row]] = field(default_factory=dict)
    """By table and key."""
    keys: Mapping[tuple[int, Holder], str] = field(default_factory=dict)
    """The keys of the shares, by device and pod."""
    given: Mapping[tuple[int, Holder], int] = field(default_factory=dict)
    amounts: Amounts = field(default_factory=dict)
    """What it adds to the sums of the cluster, in thousandths of GPUs."""
    free_whole: int = 0
    """Whole GPUs that a pod could get now."""


NO_ROWS = NodeRows()


class NodeView:
    """Shows single nodes. It reads the cache and changes nothing."""

    def __init__(self, cache: ClusterCache, next_key: Callable[[], str]) -> None:
        """`next_key` returns a new key of a share."""
        self._cache = cache
        self._next_key = next_key

    def rows(self, name: NodeName, uids: Sequence[PodUid], levels: Sequence[str], before: NodeRows) -> NodeRows:
        """Return the rows of a node with these pods on it; no rows for a node without GPUs."""
        node, gpus = self._cache.nodes.get(name), self._cache.gpus
        if node is None:
            return NO_ROWS
        report = gpus.agents.all().get(name)
        last = gpus.agents.reliable(name) or gpus.agents.last_read(name)
        reported = last.devices[:MOST_DEVICES] if last else ()
        size = min(max(_offered(node), len(reported)), MOST_DEVICES)
        if not size:
            return NO_ROWS
        pods = {uid: pod for uid in uids if (pod := self._cache.pods.get(uid)) is not None}
        stand = gpus.on(name)
        on = NodePods(pods=pods, size=size, reported=reported, shared=stand.shared, before=before.given)
        given = shares(on)
        keys = {each: before.keys.get(each) or self._next_key() for each in given}
        shown = [
            self._share(name, index, holder, milli, keys[index, holder]) for (index, holder), milli in given.items()
        ]
        devices = list(_devices(node, reported, size, last.layout if last else None))
        state, reason = _state(node, report, stand)
        amounts = _amounts(devices, shown, is_open=state == "ready")
        free_whole = max(self._cache.charges.free_on(node).gpu_milli // GPU_MILLI, 0) if state == "ready" else 0
        row = [
            name,
            _model(node, reported),
            size,
            amounts["free"],
            _domain(node, levels),
            state,
            "none" if report is None else "ok" if gpus.agents.is_trusted(name) else "stale",
            reason,
            "claims" if node.by_claim_only else "plugin",
        ]
        tables = {"nodes": [row], "devices": devices, "shares": shown}
        return NodeRows(
            tables={table: {each[0]: each for each in found} for table, found in tables.items()},
            keys=keys,
            given=given,
            amounts=amounts,
            free_whole=min(free_whole, size),
        )

    def _share(self, node: NodeName, index: int, holder: Holder, milli: int, key: str) -> Row:
        device = f"{node}/{index}"
        if isinstance(holder, tuple):
            # Every pod of the cluster is known: this one has just ended.
            return [key, device, milli, "leaving", "", *holder, "", None]
        pod, charge = self._cache.pods.get(holder), self._cache.charges.get(holder)
        if pod is None:
            return [key, device, milli, "foreign", "", "", "", "", None]
        queue = (charge.queue if charge else None) or ""
        group = (pod.group.name if pod.names_group else pod.name) if pod.managed else ""
        since = self._cache.groups.started_at(holder)
        at = rfc3339(since) if since is not None else None
        return [key, device, milli, _share_state(pod), queue, pod.namespace, pod.name, group, at]


def _share_state(pod: Pod) -> str:
    if pod.deleting:
        return "leaving"
    if not pod.managed:
        return "foreign"
    return "bound" if pod.node is not None else "reserved"


def _offered(node: Node) -> int:
    """Return how many GPUs a node has, as it states it; partitions count as the GPUs that they fill."""
    slices = sum(min(mig_gpus(name), MOST_SLICES) * amount for name, amount in node.scalars)
    return node.allocatable.gpu_milli // GPU_MILLI + -(-slices // MOST_SLICES)


def _devices(node: Node, reported: Sequence[Device], size: int, layout: Layout | None) -> Iterator[Row]:
    model = _model(node, reported)
    clique = _cliques(layout) if layout is not None else {}
    for index in range(size):
        key = f"{node.name}/{index}"
        if index >= len(reported):
            yield [key, node.name, index, model, node.device_memory_mib or None, None, "unknown", None, ""]
            continue
        device = reported[index]
        yield [
            key,
            node.name,
            device.index,
            device.product or model,
            device.memory_mib or None,
            device.used_mib,
            device.health.value.lower(),
            clique.get(index),
            ",".join(device.mig_profiles) or ("MIG" if device.is_mig else ""),
        ]


@lru_cache(maxsize=64)
def _cliques(layout: Layout) -> Mapping[int, int]:
    """Return the number of the NVLink clique of each device that is in one."""
    return {device: number for number, found in enumerate(links.cliques(layout)) for device in found}


def _model(node: Node, reported: Sequence[Device]) -> str:
    return next((device.product for device in reported if device.product), "") or node.labels.get(MODEL_LABEL, "")


def _domain(node: Node, levels: Sequence[str]) -> str:
    found = [node.labels.get(level, "") for level in levels]
    return "/".join(found) if any(found) else ""


def _state(node: Node, report: GpuNode | None, stand: NodeGpus) -> tuple[str, str]:
    """Return the state of a node, and why it is not used in full."""
    doubts = [*stand.reasons, *([report.message or report.problem] if report else [])]
    reason = next((in_public(doubt) for doubt in doubts if doubt), "")
    if not node.takes_work:
        return "notReady", in_public(node.problem) or NOT_READY
    if node.unschedulable:
        return "cordoned", CORDON
    if any(gpu.state is GpuState.CONTESTED for gpu in stand.shared):
        said = next(gpu.reason for gpu in stand.shared if gpu.state is GpuState.CONTESTED)
        return "contested", in_public(said) or reason
    return "ready", reason


def _amounts(devices: Sequence[Row], shown: Sequence[Row], *, is_open: bool) -> dict[str, int]:
    """Return what a node adds to each sum; together they are its GPUs."""
    held = dict.fromkeys((row[0] for row in devices), 0)
    sums = {"total": GPU_MILLI * len(devices), "free": 0, "allocated": 0, "reserved": 0, "unhealthy": 0, "unmanaged": 0}
    of = {"bound": "allocated", "leaving": "allocated", "reserved": "reserved", "foreign": "unmanaged"}
    for row in shown:
        milli = min(row[2], GPU_MILLI - held[row[1]])
        held[row[1]] += milli
        sums[of[row[3]]] += milli
    for row in devices:
        is_usable = is_open and row[6] != Health.UNHEALTHY.value.lower()
        sums["free" if is_usable else "unhealthy"] += GPU_MILLI - held[row[0]]
    return sums
