"""Shows the GPUs of a node that claims can get: which are free, and which claims and pods hold the others."""

from collections.abc import Iterable, Iterator, Sequence

from app.cluster.dra.device_models import DeviceModel
from app.cluster.dra.node_devices import NodeHolds, fits
from app.cluster.dra.pools import DevicePools
from app.model.dra import DeviceClaim, DeviceId
from app.model.names import NodeName
from app.model.occupancy import ClaimDevice, ClaimHolder

MOST_TEXT = 63
"""Characters of a name that a driver publishes."""


def device_uses(
    node: NodeName, pools: DevicePools, held: Iterable[tuple[DeviceClaim, Sequence[str]]]
) -> tuple[ClaimDevice, ...]:
    """Return the GPUs of a node in the order of their names; `held` are its allocated claims, each with its pods."""
    there = {device.id: device for device in pools.on(node)}
    holds, holders = NodeHolds(there), dict[DeviceId, list[ClaimHolder]]()
    for claim, pods in held:
        holds.add(claim)
        holder = ClaimHolder(claim=claim.key, pods=tuple(pods))
        for device in dict.fromkeys(each.device for each in claim.allocated or () if not each.is_admin):
            holders.setdefault(device, []).append(holder)
    return tuple(
        ClaimDevice(
            id=device.id,
            model=_name(device.model),
            is_partition=bool(device.model.seventh),
            is_tainted=device.is_tainted,
            is_free=device.id not in holders and not device.is_tainted and fits(device, holds.used, pools),
            claims=tuple(holders.get(device.id, ())),
        )
        for device in sorted(there.values(), key=lambda device: device.id)
        if device.model.is_gpu
    )


def _name(model: DeviceModel) -> str:
    return next(_names(model), "")[:MOST_TEXT]


def _names(model: DeviceModel) -> Iterator[str]:
    """Yield what a person may call the model: the profile of a partition, or the product."""
    for wanted in ("profile", "productname"):
        for name, value in model.attributes:
            if name.rpartition("/")[2].lower() == wanted and isinstance(value, str):
                yield value
