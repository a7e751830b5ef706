"""Says which pod has which device of a node, and how much of it.

The agent's report and the accounts of shared GPUs name devices. Other pods with GPUs get devices that are free, the
same ones as long as they are on the node: which ones they have is not known.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from app.cluster.gpus.shared_gpus import SharedGpu
from app.model.device import Device
from app.model.names import PodUid
from app.model.pod import Pod
from app.model.resources import GPU_MILLI, gpu_milli_of

MOST_DEVICES = 128
"""The most devices that are shown of a node."""
MOST_PODS = 512
"""The most pods that are shown on a node."""
ROUNDING_MILLI = 10
"""How much less than a whole device may be free where a whole device is needed: thirds do not add up."""

Holder = PodUid | tuple[str, str]
"""A pod; by namespace and name where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePods:
    """The pods with GPUs on a node, and what is known of their devices."""

    pods: Mapping[PodUid, Pod]
    size: int
    """The number of devices."""
    reported: Sequence[Device] = ()
    shared: Sequence[SharedGpu] = ()
    before: Mapping[tuple[int, Holder], int] = field(default_factory=dict)
    """The last result for this node."""


def shares(on: NodePods) -> Mapping[tuple[int, Holder], int]:
    """Return how many thousandths of a device each pod has, by the index of the device and the pod."""
    placing = _Placing(on)
    placing.place_shared()
    placing.place_reported()
    for uid, pod in on.pods.items():
        if not pod.reserves:
            placing.place_whole(uid, pod)
            placing.place_partitions(uid, pod)
    placing.place_unknown()
    return placing.given


class _Placing:
    """The devices of one node while pods get them."""

    def __init__(self, on: NodePods) -> None:
        self._on = on
        self._free = [GPU_MILLI] * on.size
        self._index = {device.uuid: index for index, device in enumerate(on.reported)}
        self._unknown: list[tuple[int, Holder]] = []
        self.given: dict[tuple[int, Holder], int] = {}

    def place_reported(self) -> None:
        """Give devices to the pods that the agent names."""
        by_name = {(pod.namespace, pod.name): uid for uid, pod in self._on.pods.items()}
        for index, device in enumerate(self._on.reported[: self._on.size]):
            for holder in device.holders[:MOST_PODS]:
                uid = by_name.get((holder.namespace, holder.name))
                pod = self._on.pods[uid] if uid is not None else None
                if uid is None or pod is None:
                    self._unknown.append((index, (holder.namespace, holder.name)))
                elif not pod.reserves and pod.sharing is None and self._free[index] >= ROUNDING_MILLI:
                    self._give(index, uid, _partition_milli(pod) if device.is_mig else GPU_MILLI)

    def place_shared(self) -> None:
        """Give parts of devices to the pods that share them."""
        for gpu in self._on.shared:
            index = self._index.get(gpu.uuid)
            for uid in gpu.holders[:MOST_PODS]:
                pod = self._on.pods.get(uid)
                if pod is None or pod.sharing is None:
                    continue
                milli = pod.sharing.gpu_milli(gpu.whole_mib) // max(pod.sharing.devices, 1)
                if index is None:
                    index = next(self._fitting(uid, GPU_MILLI - ROUNDING_MILLI), None)
                if index is not None:
                    self._give(index, uid, milli)

    def place_whole(self, uid: PodUid, pod: Pod) -> None:
        """Give a pod the whole devices for which none is named."""
        claimed = sum(claim.gpu_milli for claim in pod.claims)
        missing = (pod.request.gpu_milli + claimed) // GPU_MILLI
        missing -= sum(given == GPU_MILLI and holder == uid for (_, holder), given in self.given.items())
        for index in self._fitting(uid, GPU_MILLI - ROUNDING_MILLI):
            if missing <= 0:
                return
            self._give(index, uid, GPU_MILLI)
            missing -= 1

    def place_partitions(self, uid: PodUid, pod: Pod) -> None:
        """Give a pod the MIG partitions for which no device is named."""
        if not pod.scalars or any(holder == uid for _, holder in self.given):
            return
        milli = min(_partition_milli(pod), GPU_MILLI) if _asked_milli(pod) else 0
        index = next(self._fitting(uid, milli), None) if milli else None
        if index is not None:
            self._give(index, uid, milli)

    def place_unknown(self) -> None:
        """Show pods that the agent names and the watch does not: they have just ended, or the report is old."""
        for index, name in self._unknown:
            if self._free[index] >= ROUNDING_MILLI:
                self._give(index, name, self._free[index])

    def _fitting(self, uid: PodUid, milli: int) -> Iterator[int]:
        """Yield the devices with so much free: first those that the pod had before."""
        had = [index for index, holder in self._on.before if holder == uid and index < self._on.size]
        for index in dict.fromkeys((*had, *range(self._on.size))):
            if self._free[index] >= milli:
                yield index

    def _give(self, index: int, holder: Holder, milli: int) -> None:
        milli = min(milli, self._free[index])
        self.given[index, holder] = self.given.get((index, holder), 0) + milli
        self._free[index] -= milli


def _asked_milli(pod: Pod) -> int:
    return sum(gpu_milli_of(name) * amount for name, amount in pod.scalars)


def _partition_milli(pod: Pod | None) -> int:
    """Return what a pod with MIG partitions has of a device; a seventh when that is not known."""
    return min(_asked_milli(pod) if pod else 0, GPU_MILLI) or GPU_MILLI // 7
