"""Counts the devices of one node that claims can get or have."""

from collections import Counter
from collections.abc import Iterable, Mapping

from app.cluster.dra.demands import ClaimDemands
from app.cluster.dra.device_models import HAS_GPUS, DeviceModel
from app.cluster.dra.pools import DevicePools, PooledDevice
from app.model.dra import DeviceClaim, DeviceId
from app.model.names import NodeName
from app.model.node import NO_DEVICES, NodeDevices
from app.model.resources import GPU_MILLI

Counters = Counter[tuple[str, str, str, str]]
"""Amounts by driver, pool, counter set and counter."""


def counted(node: NodeName, pools: DevicePools, held: Iterable[DeviceClaim], demands: ClaimDemands) -> NodeDevices:
    """Count the devices of a node; `held` are the claims with devices there, with which pods or nodes are charged."""
    there = {device.id: device for device in pools.on(node)}
    holds = NodeHolds(there)
    for claim in held:
        holds.add(claim)
    gpus = [device for device in there.values() if device.model.is_gpu]
    if not gpus:
        return NO_DEVICES
    # What a claim holds is charged, whatever happens to the device.
    usable = [device for device in gpus if not device.is_tainted or device.id in holds.devices]
    whole = [device for device in usable if not device.model.seventh]
    # Of a GPU of which a partition is in use, nothing else is whole.
    gpu_milli = GPU_MILLI * sum(device.id in holds.devices or fits(device, holds.used, pools) for device in whole)
    models = Counter[DeviceModel](device.model for device in usable)
    labels = {pools.models.label(model): str(number) for model, number in models.items()}
    return NodeDevices(
        gpu_milli=gpu_milli,
        scalars=tuple(sorted(_partitions(usable, holds, pools).items())),
        labels=tuple(sorted({**labels, HAS_GPUS: str(len(whole))}.items())),
        by_name=demands.gives_by_name([model for model in models if not model.seventh]),
    )


class NodeHolds:
    """What claims hold of the devices of a node."""

    def __init__(self, there: Mapping[DeviceId, PooledDevice]) -> None:
        self._there = there
        self.devices: dict[DeviceId, None] = {}
        self.used = Counters()

    def add(self, claim: DeviceClaim) -> None:
        """Add what a claim holds. Access for monitoring holds nothing."""
        for each in claim.allocated or ():
            device = self._there.get(each.device)
            if not each.is_admin and device is not None and device.id not in self.devices:
                self.devices[device.id] = None
                self.used.update(_consumed(device))


def _consumed(device: PooledDevice) -> Counters:
    driver, pool, _ = device.id
    return Counters({(driver, pool, group, name): amount for group, name, amount in device.consumes})


def _partitions(usable: Iterable[PooledDevice], holds: NodeHolds, pools: DevicePools) -> Counter[str]:
    """Return for each profile how many partitions are in use or fit as well, if only that profile is used from now."""
    found = Counter[str]()
    used: dict[str, Counters] = {}
    for device in sorted(usable, key=lambda device: device.id):
        if not device.model.seventh:
            continue
        profile = device.model.profile
        more = used.setdefault(profile, Counters(holds.used))
        if device.id in holds.devices:
            found[profile] += 1
        elif fits(device, more, pools):
            more.update(_consumed(device))
            found[profile] += 1
    return found


def fits(device: PooledDevice, used: Counters, pools: DevicePools) -> bool:
    """Return whether the counters of its pool have as much left as a device consumes."""
    there = pools.counters(device.id)
    return all(used[key] + amount <= there.get((key[2], key[3]), 0) for key, amount in _consumed(device).items())
