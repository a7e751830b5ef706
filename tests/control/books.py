"""GPU bookkeeping of one node, without the rest of the cache."""

from dataclasses import dataclass, field, replace

from app.cluster.dra.device_claims import DeviceClaims
from app.cluster.gpus.gpus import Gpus
from app.cluster.gpus.shared_gpus import Part
from app.cluster.ledger.reservations import Reservations
from app.control.gpus.occupancy import PodsByUid
from app.model.device import Device, GpuNode
from app.model.names import NodeName
from app.model.pod import PPM, Pod, Sharing
from app.model.snapshot import PART
from tests import given

A = NodeName("a")
WHOLE_MIB = 80_000
GROUP = "uid-opener-0"


@dataclass
class Books:
    """The parts of the cache that the tests read."""

    gpus: Gpus
    pods: PodsByUid
    reservations: Reservations = field(default_factory=Reservations)
    claims: DeviceClaims = field(default_factory=DeviceClaims)


def sharer(name: str, *, memory_mib: int = 0, portion_ppm: int = 0) -> Pod:
    return given.pod(name, gpus=0, node=A, sharing=Sharing(memory_mib=memory_mib, portion_ppm=portion_ppm))


def reservation(name: str = "r", group: str = GROUP) -> Pod:
    pod = given.pod(name, node=A, managed=False, reserves=group)
    return replace(pod, namespace="kai-resource-reservation")


def books(
    *devices: Device, pods: tuple[Pod, ...] = (), uuid: str = "", is_bound: bool = True, **report: object
) -> Books:
    """Build the bookkeeping with all sharing pods on one device, `uuid`, which `reservation` holds."""
    gpus = Gpus(given.GpuSizes(WHOLE_MIB, len(devices)), tolerance_mib=0)
    told = GpuNode(name=A, devices=devices, **{"kubelet_answers": True, **report})  # type: ignore[arg-type] # free-form
    gpus.report(told, heard_at=100.0)
    for pod in pods:
        if pod.sharing is not None:
            memory_mib = pod.sharing.memory_mib or pod.sharing.portion_ppm * WHOLE_MIB // PPM
            uuids = (uuid,) if is_bound else ()
            part = Part(
                pod=pod.uid,
                node=A,
                names=(GROUP,),
                uuids=uuids,
                parts=memory_mib * PART,
                memory_mib=memory_mib,
                is_bound=is_bound,
            )
            gpus.parts.put(pod.uid, part)
        if pod.reserves:
            gpus.reservations.put(pod.uid, pod)
    gpus.refresh(A)
    return Books(gpus, {pod.uid: pod for pod in pods})
