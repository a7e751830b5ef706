"""Joins what agents report of the GPUs of a node with what the books hold for them; decides nothing."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from app.cluster.dra.device_claims import DeviceClaims
from app.cluster.gpus.gpus import Gpus
from app.cluster.gpus.shared_gpus import NodeGpus, SharedGpu
from app.cluster.ledger.reservations import Reservations
from app.model.device import Device, DeviceUuid, GpuNode, Health, Holder
from app.model.dra import ClaimKey
from app.model.names import NodeName, PodUid
from app.model.occupancy import DeviceUse, NodeUse, Occupant, Reserved, SharedMemory, SharedUse
from app.model.pod import PPM, Pod
from app.model.resources import GPU_MILLI


class PodsByUid(Protocol):
    """The known pods."""

    def get(self, uid: PodUid, /) -> Pod | None:
        """Return the pod of this uid."""
        ...


class Books(Protocol):
    """The records of GPUs and pods."""

    @property
    def gpus(self) -> Gpus:
        """The GPUs of every node."""
        ...

    @property
    def pods(self) -> PodsByUid:
        """All known pods."""
        ...


class ReservingBooks(Books, Protocol):
    """The records, together with what is held for pods that are not bound yet."""

    @property
    def reservations(self) -> Reservations:
        """The reservations of all nodes."""
        ...

    @property
    def claims(self) -> DeviceClaims:
        """The ResourceClaims and their devices."""
        ...


def occupancy(books: ReservingBooks, name: NodeName, *, now: float) -> NodeUse | None:
    """Return the use of the GPUs of a node, None when no agent and no driver of DRA has ever reported any.

    `now` is by the feed's clock.
    """
    gpus = books.gpus
    report, heard_at = gpus.agents.all().get(name), gpus.agents.heard_at(name)
    claim_devices, is_reported = books.claims.uses(name), report is not None
    if report is None:
        if not claim_devices:
            return None
        report = GpuNode(name=name, kubelet_answers=True)
    stand = gpus.on(name)
    view = _View(books, stand)
    known = {device.uuid for device in report.devices}
    return NodeUse(
        report=report,
        silent_s=None if heard_at is None else now - heard_at,
        is_trusted=not is_reported or gpus.agents.is_trusted(name),
        reasons=stand.reasons,
        devices=tuple(view.device(bit, device) for bit, device in enumerate(report.devices)),
        opening=tuple(view.shared_use(each, {}) for each in stand.shared if each.uuid not in known),
        reserved=_reserved(books, name),
        claim_devices=claim_devices,
    )


def _reserved(books: ReservingBooks, node: NodeName) -> tuple[Reserved, ...]:
    """Return how many whole devices of a node are held for pods; parts of devices are shown at their device.

    A claim that pods share counts once, until it is allocated: then its devices are shown.
    """
    devices, pods, counted = Counter[str](), Counter[str](), set[ClaimKey]()
    for held in books.reservations.on_node(node):
        pod = books.pods.get(held.pod)
        if pod is None:
            continue
        new = [claim for claim in pod.claims if claim.key not in counted and not books.claims.is_allocated(claim.key)]
        counted.update(claim.key for claim in new)
        if gpu_milli := pod.request.gpu_milli + sum(claim.gpu_milli for claim in new):
            devices[held.state.value] += gpu_milli // GPU_MILLI
            pods[held.state.value] += 1
    return tuple(Reserved(state=state, devices=devices[state], pods=pods[state]) for state in sorted(devices))


def measured(device: Device, sharers: Sequence[PodUid]) -> Mapping[PodUid, int]:
    """Return the memory that pods use on a device, in MiB, as far as it is known.

    Where no report tells the use of each pod, all use counts for the one pod that shares the device.
    """
    used = Counter[PodUid]()
    for uid, mib in device.processes:
        if mib is not None:
            used[uid] += mib
    for holder in device.holders:
        if holder.uid and holder.memory_mib is not None:
            used.setdefault(PodUid(holder.uid), holder.memory_mib)
    everybody = {*sharers, *(uid for uid, _ in device.processes)}
    if not used and sharers and len(everybody) == 1 and device.used_mib is not None:
        used[sharers[0]] = max(0, device.used_mib - device.foreign_mib)
    return used


def by_health(reports: Mapping[NodeName, GpuNode]) -> Mapping[Health, int]:
    """Return the number of devices of each health, as the agents report it."""
    return Counter(device.health for report in reports.values() for device in report.devices)


def shared_memory(gpus: Gpus, reports: Mapping[NodeName, GpuNode]) -> Iterator[SharedMemory]:
    """Return the reported devices in shared use, without their pods: this is read often, for 8,000 devices."""
    for name, report in reports.items():
        promised = Counter[DeviceUuid]()
        for shared in gpus.shared(name):
            promised[shared.uuid] += shared.promised_mib
        for device in report.devices if promised else ():
            if device.uuid in promised:
                yield SharedMemory(
                    node=name,
                    device=device.uuid,
                    total_mib=device.memory_mib,
                    promised_mib=promised[device.uuid],
                    used_mib=device.used_mib,
                )


class _View:
    """The inputs for each device of one node."""

    def __init__(self, books: Books, stand: NodeGpus) -> None:
        self._books = books
        self._stand = stand

    def device(self, bit: int, device: Device) -> DeviceUse:
        """Return the use of the device with this bit."""
        shared = [each for each in self._stand.shared if each.uuid == device.uuid]
        used = measured(device, [uid for each in shared for uid in each.holders])
        whole, named = (one for one in device.holders if not self._reserves(one)), self._by_name(used)
        return DeviceUse(
            device=device,
            is_free=bool(self._stand.idle >> bit & 1),
            whole=tuple(self._whole(one, device, used, named) for one in whole),
            shared=tuple(self.shared_use(each, used) for each in shared),
        )

    def shared_use(self, shared: SharedGpu, used: Mapping[PodUid, int]) -> SharedUse:
        """Return the pods that hold parts of a device in shared use."""
        occupants = (self._sharer(uid, shared, used) for uid in shared.holders)
        return SharedUse(
            name=shared.name,
            state=shared.state.value,
            reason=shared.reason,
            promised_mib=shared.promised_mib,
            occupants=tuple(sorted(filter(None, occupants), key=lambda one: (one.namespace, one.name))),
        )

    def _whole(
        self, holder: Holder, device: Device, used: Mapping[PodUid, int], named: Mapping[tuple[str, str], PodUid]
    ) -> Occupant:
        uid = PodUid(holder.uid) or named.get((holder.namespace, holder.name), PodUid(""))
        return Occupant(
            namespace=holder.namespace,
            name=holder.name,
            uid=uid,
            portion_ppm=PPM,
            promised_mib=device.memory_mib,
            used_mib=used.get(uid, holder.memory_mib),
        )

    def _by_name(self, used: Mapping[PodUid, int]) -> Mapping[tuple[str, str], PodUid]:
        """Return the pods that use a device, by namespace and name; the first entry counts.

        The kubelet reports the holder of a device by name; processes report it by uid. The books map one to the other.
        """
        pods = ((uid, self._books.pods.get(uid)) for uid in reversed(list(used)))
        return {(pod.namespace, pod.name): uid for uid, pod in pods if pod is not None}

    def _sharer(self, uid: PodUid, shared: SharedGpu, used: Mapping[PodUid, int]) -> Occupant | None:
        pod, part = self._books.pods.get(uid), self._books.gpus.parts.of(uid)
        if pod is None or part is None:
            return None
        asked_ppm = pod.sharing.portion_ppm if pod.sharing else 0
        return Occupant(
            namespace=pod.namespace,
            name=pod.name,
            uid=uid,
            portion_ppm=asked_ppm or part.memory_mib * PPM // max(shared.whole_mib, 1),
            promised_mib=part.memory_mib,
            used_mib=used.get(uid),
        )

    def _reserves(self, holder: Holder) -> bool:
        # The kubelet reports no uids: where the agent did not find the uid, the names decide.
        pods = (pod for each in self._stand.shared for pod in each.reservations)
        if any((pod.namespace, pod.name) == (holder.namespace, holder.name) for pod in pods):
            return True
        pod = self._books.pods.get(PodUid(holder.uid))
        return pod is not None and bool(pod.reserves)
