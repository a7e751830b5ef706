"""Reads the links between the devices of a machine: NVLinks, peer access, and the PCIe tree.

Behind an NVSwitch, the far end of every link is the switch. A pair there has as many links as the device with fewer
links to the switch, if the driver reports NVLink peer access for the pair. A missing value counts as zero. Both ends
always agree: when the driver reports different values, the smaller one counts.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import pynvml

from app.agent.asking import Asking, DeviceLostError
from app.agent.readings import Link
from app.model.device import DeviceUuid

READ = 0
"""pynvml's own NVML_P2P_CAPS_INDEX_READ is the tuple `(0,)`, because of a stray comma."""

NO_SUCH_LINK = {pynvml.NVML_ERROR_INVALID_ARGUMENT}
NO_FAR_END = {pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_UNKNOWN}
UNKNOWN_TYPE = pynvml.NVML_NVLINK_DEVICE_TYPE_UNKNOWN

ANCESTORS: Mapping[int, str] = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "Board",
    pynvml.NVML_TOPOLOGY_SINGLE: "Switch",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "Switches",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "HostBridge",
    pynvml.NVML_TOPOLOGY_NODE: "Node",
    pynvml.NVML_TOPOLOGY_SYSTEM: "System",
}
NEAREST = {name: rank for rank, name in enumerate(ANCESTORS.values())}

Address = tuple[int, int, int]
"""Domain, bus and device. As text, drivers write the same address in different ways."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """One device and its NVML handle."""

    uuid: DeviceUuid
    handle: Any
    address: Address | None


@dataclass(frozen=True, slots=True)
class _Wires:
    """The active NVLinks of one device."""

    to_devices: Counter[Address]
    to_switch: int
    """Links to a switch. Links to an unknown end count as well, unless other links lead to devices."""


def links(asking: Asking, ends: Sequence[End]) -> Mapping[DeviceUuid, tuple[Link, ...]]:
    """Return for each device its link to each other device, nearest first."""
    ends = _told_apart(ends)
    found: dict[DeviceUuid, list[Link]] = {end.uuid: [] for end in ends}
    wires = {end.uuid: _wires(asking, end, {each.address for each in ends}) for end in ends}
    for one, other in combinations(ends, 2):
        pair = _pair(asking, one, other, wires)
        found[one.uuid].append(_to(other, pair))
        found[other.uuid].append(_to(one, pair))
    return {uuid: tuple(sorted(ways, key=_distance)) for uuid, ways in found.items()}


def address(pci: Any) -> Address:
    """Return the numbers of a PCI address."""
    return int(pci.domain), int(pci.bus), int(pci.device)


def _told_apart(ends: Sequence[End]) -> Sequence[End]:
    # Some virtual machines give every device the same address. The far end of a link is then unknown.
    shared = {each for each, number in Counter(end.address for end in ends).items() if number > 1}
    return [replace(end, address=None) if end.address in shared else end for end in ends]


def _to(end: End, pair: Link) -> Link:
    return Link(uuid=end.uuid, nvlinks=pair.nvlinks, p2p=pair.p2p, ancestor=pair.ancestor)


def _distance(link: Link) -> tuple[int, int]:
    return -link.nvlinks, NEAREST.get(link.ancestor or "", len(NEAREST))


def _wires(asking: Asking, end: End, devices: set[Address | None]) -> _Wires:
    to_devices: Counter[Address] = Counter()
    to_switch = nowhere_known = 0
    try:
        for number in _active(asking, end):
            far = _far_end(asking, end, number)
            if far in devices and far is not None:
                to_devices[far] += 1
                continue
            kind = _kind(asking, end, number)
            to_switch += kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
            nowhere_known += kind in {None, UNKNOWN_TYPE}
    except DeviceLostError:
        pass
    # A device with links to devices has no switch. Its unknown links led to a device that was lost.
    return _Wires(to_devices, to_switch if to_devices else to_switch + nowhere_known)


def _active(asking: Asking, end: End) -> list[int]:
    call = pynvml.nvmlDeviceGetNvLinkState
    numbers = range(pynvml.NVML_NVLINK_MAX_LINKS)
    states = [asking.ask(call, end.handle, number, device=end.uuid, expected=NO_SUCH_LINK) for number in numbers]
    return [number for number in numbers if states[number] == pynvml.NVML_FEATURE_ENABLED]


def _far_end(asking: Asking, end: End, number: int) -> Address | None:
    call = pynvml.nvmlDeviceGetNvLinkRemotePciInfo
    pci = asking.ask(call, end.handle, number, device=end.uuid, expected=NO_FAR_END)
    return None if pci is None else address(pci)


def _kind(asking: Asking, end: End, number: int) -> int | None:
    # Drivers before R470, and some in virtual machines, do not report it. NVLink peer access then decides.
    call = pynvml.nvmlDeviceGetNvLinkRemoteDeviceType
    kind = asking.ask(call, end.handle, number, device=end.uuid, expected={pynvml.NVML_ERROR_FUNCTION_NOT_FOUND})
    return None if kind is None else int(kind)


def _pair(asking: Asking, one: End, other: End, wires: Mapping[DeviceUuid, _Wires]) -> Link:
    """Return the link from one device to the other. It is the same in both directions."""
    try:
        by_nvlink = _reach(asking, one, other, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
        nvlinks = _nvlinks(one, other, wires, by_nvlink=by_nvlink)
        reads = _reach(asking, one, other, READ)
        level = asking.ask(pynvml.nvmlDeviceGetTopologyCommonAncestor, one.handle, other.handle, device=one.uuid)
    except DeviceLostError:
        return Link(uuid=other.uuid)
    return Link(uuid=other.uuid, nvlinks=nvlinks, p2p=_p2p(reads, by_nvlink), ancestor=ANCESTORS.get(level))


def _nvlinks(one: End, other: End, wires: Mapping[DeviceUuid, _Wires], *, by_nvlink: bool | None) -> int:
    here, there = wires[one.uuid], wires[other.uuid]
    direct = 0
    if one.address and other.address:
        direct = min(here.to_devices[other.address], there.to_devices[one.address])
    return direct + (min(here.to_switch, there.to_switch) if by_nvlink else 0)


def _reach(asking: Asking, one: End, other: End, by: int) -> bool | None:
    """Return whether both devices reach each other in this way; None when the driver does not report it."""
    call = pynvml.nvmlDeviceGetP2PStatus
    there = asking.ask(call, one.handle, other.handle, by, device=one.uuid)
    back = asking.ask(call, other.handle, one.handle, by, device=other.uuid)
    if there is None or back is None:
        return None
    return bool(there == back == pynvml.NVML_P2P_STATUS_OK)


def _p2p(reads: bool | None, by_nvlink: bool | None) -> str | None:  # noqa: FBT001 - answers of the driver, not options
    if reads is None:
        return None
    if not reads:
        return "None"
    return "NVLink" if by_nvlink else "PCIe"
