"""Keeps NVML open while there is a driver, reopens it after a replacement, and reads the whole machine.

All calls block and belong to one thread. No error of the driver is raised to the caller.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pynvml

from app.agent import connections, health, nvml
from app.agent.asking import Asking, DeviceLostError, DriverGoneError, told, twice, words
from app.agent.connections import End
from app.agent.events import DriverEvents, Flag
from app.agent.readings import DeviceReading, DriverFailure, Link, MachineReading
from app.model.device import DeviceUuid, Health

MOST_DEVICES = 64
"""The most devices that a GpuNode can hold."""

NAME = re.compile(r"[A-Za-z0-9-]{1,96}")
"""The UUIDs that a GpuNode accepts."""

LINKS_EVERY = 6
"""The links are read once in this many polls: they take hundreds of calls and rarely change."""

NO_LIBRARY = "no NVIDIA driver here: libnvidia-ml.so.1 is not found (the RuntimeClass nvidia adds it to a pod)"
MESSAGES = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: NO_LIBRARY,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
    pynvml.NVML_ERROR_NO_PERMISSION: "no permission to open the NVIDIA driver",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "the NVIDIA driver and libnvidia-ml.so.1 have different versions: restart the container"
    ),
}
NO_GPU = "the NVIDIA driver sees no GPU"


@dataclass(frozen=True, slots=True)
class _Opened:
    """A device of an open driver. Its identity does not change until the driver is closed."""

    device: DeviceReading
    end: End
    is_complete: bool
    """Whether every identity field was answered or can never be answered."""


class _Session:
    """One driver from init to shutdown."""

    def __init__(self, events: DriverEvents | None) -> None:
        self._count = int(twice(pynvml.nvmlDeviceGetCount))
        self._events = events
        # By index. `_open` fills it until all devices are known. A lost device keeps its name.
        self._opened: dict[int, _Opened] = {}
        # Failures of calls that are not made in every poll.
        self._failed_once: list[DriverFailure] = []
        self._failed_links: list[DriverFailure] = []
        self._links: Mapping[DeviceUuid, tuple[Link, ...]] = {}
        self._linked: list[End] = []
        self._looks = 0

    def read(self) -> MachineReading:
        """Read everything; raise `DriverGoneError` when the driver must be reopened."""
        asking = Asking()
        if asking.ask(pynvml.nvmlDeviceGetCount) not in {self._count, None}:
            raise DriverGoneError("the number of devices has changed")
        version = asking.ask(pynvml.nvmlSystemGetDriverVersion) or ""
        if self._count > MOST_DEVICES:
            asking.failed("nvmlDeviceGetCount", f"{self._count} devices, of which the first {MOST_DEVICES} are read")
        for index in range(min(self._count, MOST_DEVICES)):
            self._open(asking, index)
        ends = [self._opened[index].end for index in sorted(self._opened)]
        if self._events:
            self._events.follow(asking, ends)
        self._read_links_now_and_then(ends)
        devices = tuple(self._look(asking, self._opened[index]) for index in sorted(self._opened))
        failures = [*self._failed_once, *self._failed_links, *asking.failures]
        return MachineReading(
            devices=devices,
            driver_version=nvml.plain(str(version)),
            failures=told(failures, [device.uuid for device in devices]),
            message="" if self._count else NO_GPU,
        )

    def close(self) -> None:
        """Release the driver."""
        if self._events:
            self._events.stop()

    def _open(self, asking: Asking, index: int) -> None:
        known = self._opened.get(index)
        if known is None:
            handle, uuid = self._named(asking, index)
        else:
            handle, uuid = known.end.handle, known.end.uuid
        if uuid is None or (known is not None and known.is_complete):
            return
        once = Asking()
        opened = _identified(once, handle, index, uuid, known)
        self._opened[index] = opened
        if opened.is_complete:
            self._failed_once += once.failures
        else:
            asking.failures += once.failures

    def _named(self, asking: Asking, index: int) -> tuple[Any, DeviceUuid | None]:
        """Return a device's handle and UUID. Without a UUID it cannot be reported, which is recorded as a failure."""
        name = f"index {index}"
        try:
            handle = asking.ask_twice(pynvml.nvmlDeviceGetHandleByIndex, index, device=name)
            if handle is None:
                return None, None
            found = asking.ask_twice(pynvml.nvmlDeviceGetUUID, handle, device=name)
        except DeviceLostError:
            return None, None
        uuid = str(found or "")
        if reason := self._unfit(uuid):
            if not asking.has_failed("nvmlDeviceGetUUID", name):
                asking.failed("nvmlDeviceGetUUID", reason, name)
            return None, None
        return handle, DeviceUuid(uuid)

    def _unfit(self, uuid: str) -> str:
        if not uuid:
            return "it has no UUID"
        if not NAME.fullmatch(uuid):
            return f"not a valid UUID: {nvml.plain(uuid)}"
        of = next((each.device.index for each in self._opened.values() if each.end.uuid == uuid), None)
        return "" if of is None else f"index {of} has the same UUID: {uuid}"

    def _read_links_now_and_then(self, ends: list[End]) -> None:
        if self._looks % LINKS_EVERY == 0 or ends != self._linked:
            asking = Asking()
            self._links = connections.links(asking, ends)
            self._failed_links, self._linked = asking.failures, ends
        self._looks += 1

    def _look(self, asking: Asking, opened: _Opened) -> DeviceReading:
        uuid, handle = opened.end.uuid, opened.end.handle
        device = replace(opened.device, links=self._links.get(uuid, ()))
        xids = self._events.xids(uuid) if self._events else frozenset[int]()
        try:
            memory = nvml.memory(asking, handle, uuid)
            judged, reason = health.judge(asking, handle, uuid, xids=xids, memory=memory)
            return replace(
                device,
                memory=memory,
                health=judged,
                health_reason=reason,
                mig=nvml.mig(asking, handle, uuid),
                fabric=nvml.fabric(asking, handle, uuid),
                processes=nvml.processes(asking, handle, uuid),
            )
        except DeviceLostError as lost:
            reasons = [str(lost), *(f"XID {xid}" for xid in sorted(xids))]
            return replace(device, health=Health.UNHEALTHY, health_reason="; ".join(reasons))


def _identified(asking: Asking, handle: Any, index: int, uuid: DeviceUuid, known: _Opened | None) -> _Opened:
    """Read the identity of a device. Fields of `known` stay when their call fails now."""

    def ask(call: Callable[..., Any]) -> Any:
        try:
            return asking.ask(call, handle, device=uuid)
        except DeviceLostError:
            return None  # its UUID is enough to report that it is lost

    pci, product, node = (
        ask(pynvml.nvmlDeviceGetPciInfo),
        ask(pynvml.nvmlDeviceGetName),
        ask(pynvml.nvmlDeviceGetNumaNodeId),
    )
    if node is None:
        # NVML reports this only for a GPU that is a NUMA node itself. For others, the nearest memory's node is read.
        node = ask(nvml.nvmlDeviceGetMemoryAffinity)
    device = DeviceReading(
        uuid=uuid,
        index=index,
        minor=ask(pynvml.nvmlDeviceGetMinorNumber),
        product=None if product is None else nvml.plain(str(product)),
        pci_bus_id=None if pci is None else nvml.bus_id(pci),
        numa_node=node if node is not None and node >= 0 else None,
    )
    address = None if pci is None else connections.address(pci)
    if known is not None:
        device, address = _completed(device, known.device), address or known.end.address
    # A call that failed although the library has it may succeed in the next poll.
    is_complete = not any(failure.device for failure in asking.failures)
    return _Opened(device, End(uuid=uuid, handle=handle, address=address), is_complete)


def _completed(device: DeviceReading, known: DeviceReading) -> DeviceReading:
    fields = ("minor", "product", "pci_bus_id", "numa_node")
    return replace(device, **{name: getattr(known, name) for name in fields if getattr(device, name) is None})


class Driver:
    """The node's driver, whether it is present or not."""

    def __init__(self, *, ignored_xids: frozenset[int], reported: Flag | None = None) -> None:
        """Without `reported`, which each event of the driver sets, events are not awaited."""
        self._ignored = ignored_xids | health.USUALLY_IGNORED
        self._reported = reported
        # None while there is no driver. Only `read` and `close` change it, in the same thread.
        self._session: _Session | None = None
        self._was_open = False

    def read(self) -> MachineReading:
        """Read the machine. When this is impossible, the message says why."""
        message = ""
        for _ in range(2):  # the second attempt succeeds when the driver was only restarted
            try:
                return self._opened().read()
            except DriverGoneError as gone:
                message = f"the NVIDIA driver is gone: {gone}"
                self.close()
            except pynvml.NVMLError as error:
                self.close()
                message = MESSAGES.get(error.value, f"the NVIDIA driver cannot be opened: {words(error)}")
                # If the driver never opened here, a new container would not help.
                is_outdated = self._was_open and error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
                return MachineReading(message=message, is_outdated=is_outdated)
        return MachineReading(message=message)

    def close(self) -> None:
        """Release the driver, so that it can be unloaded."""
        session, self._session = self._session, None
        if session is None:
            return
        session.close()
        _shut_down()

    def _opened(self) -> _Session:
        if self._session is None:
            twice(pynvml.nvmlInit)
            try:
                self._session = _Session(self._events())
            except pynvml.NVMLError:
                _shut_down()
                raise
            self._was_open = True
        return self._session

    def _events(self) -> DriverEvents | None:
        return DriverEvents(ignored_xids=self._ignored, reported=self._reported) if self._reported else None


def _shut_down() -> None:
    try:
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return  # the driver was already gone
