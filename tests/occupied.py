"""Builders of GPUs with pods on them, as an agent and the cache describe them."""

from collections.abc import Sequence

from app.model.device import Device, DeviceUuid, GpuNode
from app.model.layout import NVLINK_SCORE, Layout
from app.model.names import NodeName, PodUid
from app.model.occupancy import DeviceUse, NodeUse, Occupant, SharedUse
from app.model.pod import PPM

GPU_MIB = 81559
"""Of an H100, according to NVML."""


def device(index: int, **more: object) -> Device:
    """Build a healthy H100 that uses nothing."""
    fields = {"product": "NVIDIA H100 80GB HBM3", "memory_mib": GPU_MIB, "used_mib": 0, **more}
    uuid = DeviceUuid(f"GPU-{index:08x}-aaaa-bbbb-cccc-dddddddddddd")
    return Device(uuid=uuid, index=index, **fields)  # type: ignore[arg-type] # free-form by design


def occupant(name: str, *, portion: float = 1, promised_mib: int = GPU_MIB, used_mib: int | None = None) -> Occupant:
    """Build a pod of namespace `team`."""
    return Occupant(
        namespace="team",
        name=name,
        uid=PodUid(f"uid-{name}"),
        portion_ppm=round(portion * PPM),
        promised_mib=promised_mib,
        used_mib=used_mib,
    )


def shared(name: str, *occupants: Occupant, state: str = "ready", reason: str = "") -> SharedUse:
    """Build a device in shared use."""
    promised_mib = sum(each.promised_mib for each in occupants)
    return SharedUse(name=name, state=state, reason=reason, promised_mib=promised_mib, occupants=occupants)


def on(
    device: Device,
    *occupants: Occupant,
    whole: Sequence[Occupant] = (),
    state: str = "ready",
    reason: str = "",
    is_free: bool = False,
) -> DeviceUse:
    """Build a device that pods share, or that one pod has as a whole, or that no pod has."""
    uses = (shared(f"group-{device.index}", *occupants, state=state, reason=reason),) if occupants else ()
    return DeviceUse(device=device, is_free=is_free, whole=tuple(whole), shared=uses)


def node_use(
    name: str,
    *devices: DeviceUse,
    layout: Layout | None = None,
    silent_s: float = 12.0,
    is_trusted: bool = True,
    opening: Sequence[SharedUse] = (),
    **report: object,
) -> NodeUse:
    """Build a node whose kubelet answers."""
    fields = {"kubelet_answers": True, "driver_version": "550.54.15", **report}
    told = GpuNode(
        name=NodeName(name),
        devices=tuple(each.device for each in devices),
        layout=layout,
        **fields,  # type: ignore[arg-type] # free-form by design
    )
    return NodeUse(report=told, silent_s=silent_s, is_trusted=is_trusted, devices=devices, opening=tuple(opening))


def layout(nvlinks: Sequence[Sequence[int]], pcie: int = 10) -> Layout:
    """Build a layout with this number of NVLinks between each two, and one PCIe level among all."""
    size = range(len(nvlinks))
    return Layout(
        tuple(tuple(0 if one == other else NVLINK_SCORE * nvlinks[one][other] + pcie for other in size) for one in size)
    )


def switched(size: int, count: int = 18) -> Layout:
    """Build a machine behind NVSwitch: every two devices have as many NVLinks."""
    return layout([[count] * size] * size)


# NVLinks of a DGX-1 with V100, from NVIDIA's go-gpuallocator (Apache-2.0), `NewDGX1VoltaNode`.
DGX1 = layout(
    [
        [0, 1, 1, 2, 2, 0, 0, 0],
        [1, 0, 2, 1, 0, 2, 0, 0],
        [1, 2, 0, 2, 0, 0, 1, 0],
        [2, 1, 2, 0, 0, 0, 0, 1],
        [2, 0, 0, 0, 0, 1, 1, 2],
        [0, 2, 0, 0, 1, 0, 2, 1],
        [0, 0, 1, 0, 1, 2, 0, 2],
        [0, 0, 0, 1, 2, 1, 2, 0],
    ]
)
