"""Tells what each claim, and each extended resource that stands for a class, demands; it remembers the answers."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from app.cluster.decode.demand import BY_CLASS, GPU_RESOURCE
from app.cluster.dra.device_models import (
    MOST_ASKED,
    NO_DEMAND,
    DeviceDemand,
    DeviceModel,
    accepts,
    asked_length,
    cost_milli,
    demand_of,
    summed,
)
from app.cluster.dra.pools import DevicePools, PooledDevice
from app.model.dra import AllocatedDevice, ClaimKey, DeviceClaim, DeviceClass, DeviceRequest
from app.model.resources import GPU_MILLI, Scalars

MOST_REMEMBERED = 4096
"""Different requests whose demand is remembered: a few KiB each at most."""


class ClaimDemands:
    """The classes, and the demands that follow from them and from the pools."""

    def __init__(self, pools: DevicePools) -> None:
        """Start without classes."""
        self._pools = pools
        self._classes: dict[str, DeviceClass] = {}
        self._named: Mapping[str, str] = {}
        self._known: dict[ClaimKey, DeviceDemand] = {}
        self._by_request: dict[tuple[DeviceRequest, ...], DeviceDemand] = {}
        """The demands of requests, as long as classes and models stay the same."""
        self._stale: Mapping[tuple[DeviceRequest, ...], DeviceDemand] = {}
        """The same before classes or models changed last."""

    @property
    def names(self) -> Mapping[str, str]:
        """The class by the extended resource that it names."""
        return self._named

    def put_class(self, stated: DeviceClass) -> bool:
        """Store a class; return whether it is new or has changed."""
        if self._classes.get(stated.name) == stated:
            return False
        self._classes[stated.name] = stated
        self._rename()
        return True

    def drop_class(self, name: str) -> bool:
        """Forget a class; return whether it was known."""
        if self._classes.pop(name, None) is None:
            return False
        self._rename()
        return True

    def _rename(self) -> None:
        # The newest class wins, and of equally old ones the first name (KEP-5004).
        ordered = sorted(self._classes.values(), key=lambda one: (-one.created_at, one.name), reverse=True)
        self._named = {one.extended_resource: one.name for one in ordered if one.extended_resource}

    def forget(self, key: ClaimKey) -> None:
        """Forget the demand of a claim that has changed."""
        self._known.pop(key, None)

    def has_changed(self, claim: DeviceClaim) -> bool:
        """Look at a claim again whose devices have changed; return whether its demand is another one now."""
        before = self._known.pop(claim.key, None)
        return before is not None and self.of(claim) != before

    def rejudge(self, claims: Mapping[ClaimKey, DeviceClaim]) -> list[ClaimKey]:
        """Look at all requests again, because classes or models have changed; return the claims with other demands.

        Alike requests are judged once. What allocated claims hold does not depend on classes.
        """
        self._by_request, self._stale = {}, self._by_request
        waiting = [claim for key in self._known if (claim := claims[key]).allocated is None]
        return [claim.key for claim in waiting if self.has_changed(claim)]

    def of(self, claim: DeviceClaim) -> DeviceDemand:
        """Return what a claim demands: what it holds, or before its allocation what it asks for."""
        known = self._known.get(claim.key)
        if known is None:
            known = self._requested(claim.requests) if claim.allocated is None else self._allocated(claim)
            self._known[claim.key] = known
        return known

    def _requested(self, requests: tuple[DeviceRequest, ...]) -> DeviceDemand:
        found = self._by_request.get(requests)
        if found is None:
            found = demand_of(requests, self._pools.models, self._classes.get, self._pools.largest)
            if len(self._by_request) < MOST_REMEMBERED and asked_length(requests) <= MOST_ASKED:
                self._by_request[requests] = found
        return found

    def _allocated(self, claim: DeviceClaim) -> DeviceDemand:
        there = {} if claim.node is None else {each.id: each for each in self._pools.on(claim.node)}
        held = (each for each in claim.allocated or () if not each.is_admin)
        return summed(self.of_device(each, there.get(each.device)) for each in held)

    def of_device(self, held: AllocatedDevice, device: PooledDevice | None) -> DeviceDemand:
        """Return what a held device demands; one that no pool has is judged by the name of its driver."""
        if device is None:
            amount = GPU_MILLI if "gpu" in held.device.driver.lower() else 0
            return DeviceDemand(gpu_milli=amount, cost_milli=amount)
        model = device.model
        if not model.is_gpu:
            return NO_DEMAND
        amount = cost_milli(model, held.consumed)
        if model.seventh:
            return DeviceDemand(scalars=((model.profile, 1),), cost_milli=amount)
        return DeviceDemand(gpu_milli=amount, cost_milli=amount)

    # Extended resources -----------------------------------------------------------------------------------------------

    def names_class(self, scalars: Scalars) -> bool:
        """Return whether an extended resource stands for a class."""
        return any(self._class_of(name) is not None for name, _ in scalars)

    def _class_of(self, name: str) -> str | None:
        if name.startswith(BY_CLASS):
            return name.removeprefix(BY_CLASS)
        return self._named.get(name)

    def by_name(self, scalars: Scalars) -> tuple[Sequence[DeviceDemand], Scalars]:
        """Return the demands of the resources that stand for classes, and the other resources."""
        return list(self._by_name(scalars)), tuple(one for one in scalars if self._class_of(one[0]) is None)

    def _by_name(self, scalars: Scalars) -> Iterator[DeviceDemand]:
        yield from map(self._requested, self._requests(scalars))

    def _requests(self, scalars: Scalars) -> Iterator[tuple[DeviceRequest, ...]]:
        for name, count in scalars:
            named = self._class_of(name)
            if named is not None:
                yield (DeviceRequest(device_class=named, count=count),)

    def have_changed(self, scalars: Scalars) -> bool:
        """Return whether resources that stand for classes may demand something else since the last `rejudge`."""
        return any(self._stale.get(asked) != self._requested(asked) for asked in self._requests(scalars))

    def gives_by_name(self, models: Collection[DeviceModel]) -> bool:
        """Return whether containers that request whole GPUs by name may get devices of all of these models."""
        named = self._named.get(GPU_RESOURCE)
        return named is not None and all(accepts(self._classes[named], (), model) for model in models)
