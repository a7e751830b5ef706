"""The GPUs of every node and their pods: simulates the device plugin and the kubelet's device manager."""

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import NAMESPACE_DNS, uuid5

from app.model import marks
from app.model.names import PodUid
from app.model.seam import PodRef, RawObject, Resource
from app.simulation.cluster import SimulatedCluster
from app.simulation.manifests import MEMORY_LABEL, PRODUCT_LABEL
from app.simulation.stock import GPU, milli, requests

MILLI = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """The devices that the containers of a running pod use."""

    pod: PodRef
    uuids: tuple[str, ...]
    part_mib: int
    """The pod's share of each device, in MiB."""


class SimulatedMachine:
    """The GPUs of one node. All have the same model and share one NVSwitch."""

    def __init__(self, node: RawObject) -> None:
        """Create the machine of a node. Only `SimulatedDevices` changes `holders` and `uses`."""
        labels, self.name = node["metadata"].get("labels", {}), node["metadata"]["name"]
        self.product = labels.get(PRODUCT_LABEL, "").replace("-", " ")
        self.memory_mib = int(labels.get(MEMORY_LABEL, "0"))
        number = milli(node["status"]["allocatable"].get(GPU, "0")) // MILLI
        self.uuids = tuple(f"GPU-{uuid5(NAMESPACE_DNS, f'{self.name}/{index}')}" for index in range(number))
        self.holders: dict[str, PodRef] = {}
        """By device, the pod that got it from the kubelet: a pod with whole devices, or a reservation pod."""
        self.uses: dict[PodUid, Use] = {}
        self.broken: set[str] = set()
        """Devices that are not healthy. The device plugin gives them to no pod; tests break and mend them."""

    @property
    def free(self) -> list[str]:
        """Return the free healthy devices, in the driver's order."""
        return [uuid for uuid in self.uuids if uuid not in self.holders and uuid not in self.broken]

    def of(self, pod: PodRef) -> tuple[str, ...]:
        """Return the devices of a pod."""
        return tuple(uuid for uuid, holder in self.holders.items() if holder == pod)


class SimulatedDevices:
    """The machines of one cluster. A machine exists from the first look at its node."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._machines: dict[str, SimulatedMachine] = {}
        self._changed: set[str] = set()

    def machines(self) -> Iterable[SimulatedMachine]:
        """Return the machines with GPUs."""
        for node in self._cluster.objects(Resource.NODES):
            if node["metadata"]["name"] not in self._machines:
                self._machines[node["metadata"]["name"]] = SimulatedMachine(node)
        return [machine for machine in self._machines.values() if machine.uuids]

    def take_changed(self) -> set[str]:
        """Return the nodes whose pods have changed since the last call, and clear them."""
        changed, self._changed = self._changed, set()
        return changed

    def admit(self, pod: RawObject) -> str:
        """Allocate the whole devices that a pod requests; return why it cannot start, in the kubelet's words."""
        asked = requests(pod)[GPU] // MILLI
        machine = self._machine(pod)
        if not asked or machine is None or machine.of(_ref(pod)):
            return ""  # A kubelet that restarts knows from its checkpoint which devices a pod has.
        free = machine.free
        if len(free) < asked:
            lack = f"requested number of devices unavailable for {GPU}. Requested: {asked}, Available: {len(free)}"
            return f"Allocate failed due to {lack}, which is unexpected"
        machine.holders.update(dict.fromkeys(free[:asked], _ref(pod)))
        self._changed.add(machine.name)
        return ""

    def start(self, pod: RawObject) -> None:
        """Record that a pod's containers have started, with allocated devices or those in its annotation."""
        machine, ref, labels = self._machine(pod), _ref(pod), pod["metadata"].get("labels", {})
        if machine is None or labels.get("app") == marks.RESERVATION_APP:
            return
        annotations = pod["metadata"].get("annotations", {})
        told = tuple(annotations.get(marks.DEVICES_ANNOTATION, "").split(",")) if _shares(annotations) else ()
        part_mib = int(annotations[marks.MEMORY_ANNOTATION]) if told else machine.memory_mib
        if uuids := told or machine.of(ref):
            machine.uses[ref.uid] = Use(pod=ref, uuids=uuids, part_mib=part_mib)
            self._changed.add(machine.name)

    def release(self, pod: RawObject) -> None:
        """Release the devices of a pod that has ended."""
        machine, ref = self._machine(pod), _ref(pod)
        if machine is None:
            return
        machine.holders = {uuid: holder for uuid, holder in machine.holders.items() if holder != ref}
        machine.uses.pop(ref.uid, None)
        self._changed.add(machine.name)

    def keep_only(self, pods: Iterable[RawObject]) -> None:
        """Release the devices of all other pods: a kubelet that restarts finds out which pods are gone."""
        alive = {pod["metadata"]["uid"] for pod in pods}
        for machine in self._machines.values():
            gone = [ref for ref in machine.holders.values() if ref.uid not in alive]
            machine.holders = {uuid: ref for uuid, ref in machine.holders.items() if ref.uid in alive}
            machine.uses = {uid: use for uid, use in machine.uses.items() if uid in alive}
            if gone:
                self._changed.add(machine.name)

    def note_changed(self, name: str) -> None:
        """Have the agent of a node look at it soon."""
        self._changed.add(name)

    def _machine(self, pod: RawObject) -> SimulatedMachine | None:
        self.machines()
        found = self._machines.get(pod["spec"].get("nodeName", ""))
        return found if found is not None and found.uuids else None


def _shares(annotations: RawObject) -> bool:
    return marks.DEVICES_ANNOTATION in annotations and marks.MEMORY_ANNOTATION in annotations


def _ref(pod: RawObject) -> PodRef:
    metadata = pod["metadata"]
    return PodRef(namespace=metadata["namespace"], name=metadata["name"], uid=PodUid(metadata["uid"]))
