"""Tells which devices a request of a claim accepts, and what it costs.

Devices that no selector tells apart are one model. A cluster has few models, so a request is compared with each.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from app.cluster.dra.expressions import IDENTITIES, DeviceFacts, selects
from app.model.dra import AttributeValue, DeviceClass, DeviceRequest, SliceDevice
from app.model.node import DEVICES_PREFIX
from app.model.pod import Operator, Requirement
from app.model.resources import GPU_MILLI, MAX_AMOUNT, MOST_SLICES, Scalars

MOST_MODELS = 64
"""Of a cluster. Further devices of a driver are one model of which no selector can be told."""

MOST_ASKED = 2048
"""Characters in the expressions of one claim. Of a claim with more, no selector can be told."""

HAS_GPUS = f"{DEVICES_PREFIX}gpus"
"""The label that counts the GPUs of a node that claims can have."""

NOWHERE = Requirement(f"{DEVICES_PREFIX}none", Operator.EXISTS)
"""No node fulfils it."""

_PROFILE = re.compile(r"([1-9])g\.[0-9]+gb.*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceModel:
    """Devices that no selector tells apart."""

    driver: str
    attributes: tuple[tuple[str, AttributeValue], ...] = ()
    capacity: tuple[tuple[str, int], ...] = ()
    is_shareable: bool = False
    is_gpu: bool = False
    seventh: int = 0
    """Of a partition of a GPU: its compute slices. 0: the device is a whole one."""
    is_rest: bool = False
    """All devices of the driver that are beyond `MOST_MODELS`."""

    @property
    def profile(self) -> str:
        """The name of a kind of partitions: it is a resource of nodes."""
        named = next((value for name, value in self.attributes if name.endswith("/profile")), None)
        return f"{DEVICES_PREFIX}{self.driver}/{named if isinstance(named, str) else f'{self.seventh}g'}"


@lru_cache(maxsize=1 << 14)
def model_of(driver: str, device: SliceDevice, whole: tuple[tuple[str, str, int], ...]) -> DeviceModel:
    """Return the model of a device; `whole` are the counters of its pool."""
    attributes = tuple(one for one in device.attributes if one[0].rpartition("/")[2].lower() not in IDENTITIES)
    types = (value for name, value in attributes if name.endswith("/type") and isinstance(value, str))
    is_gpu = "gpu" in driver.lower() or any("gpu" in value.lower() or value == "mig" for value in types)
    return DeviceModel(
        driver=driver,
        attributes=attributes,
        capacity=device.capacity,
        is_shareable=device.is_shareable,
        is_gpu=is_gpu,
        seventh=_seventh(device, dict(attributes), whole) if is_gpu and device.consumes else 0,
    )


def _seventh(
    device: SliceDevice, attributes: Mapping[str, AttributeValue], whole: tuple[tuple[str, str, int], ...]
) -> int:
    """Return the compute slices of a partition; 0 for a device that consumes all of its counters."""
    there = {(group, name): amount for group, name, amount in whole}
    parts = [
        min(-(-MOST_SLICES * amount // total), MOST_SLICES)
        for group, name, amount in device.consumes
        if (total := there.get((group, name), 0)) > 0
    ]
    consumed = {(group, name): amount for group, name, amount in device.consumes}
    groups = {group for group, _, _ in device.consumes}
    if all(consumed.get(key, 0) >= total for key, total in there.items() if key[0] in groups):
        return 0
    for name, value in attributes.items():
        if name.endswith("/profile") and isinstance(value, str) and (match := _PROFILE.fullmatch(value)):
            return min(int(match[1]), MOST_SLICES)
    return max(parts, default=MOST_SLICES) or 1


class DeviceModels:
    """The models of a cluster, each with the label of nodes that counts its devices."""

    def __init__(self) -> None:
        """Start without models."""
        self._labels: dict[DeviceModel, str] = {}
        self._users: dict[DeviceModel, int] = {}
        self._next = 0

    def all(self) -> Collection[DeviceModel]:
        """Return the known models."""
        return self._labels.keys()

    def label(self, model: DeviceModel) -> str:
        """Return the label of a known model."""
        return self._labels[model]

    def labels(self, models: Collection[DeviceModel]) -> Sequence[str]:
        """Return the labels of these models; one label for all whole GPUs of the cluster, also of a single model.

        So a further model changes nothing for requests that accept any GPU.
        """
        if models and set(models) == {model for model in self._labels if model.is_gpu and not model.seventh}:
            return [HAS_GPUS]
        return [self._labels[model] for model in models]

    def known(self, model: DeviceModel) -> DeviceModel:
        """Return the model, or the rest of its driver's devices if there are too many models."""
        if model in self._labels or len(self._labels) < MOST_MODELS:
            return model
        return DeviceModel(driver=model.driver, is_gpu=model.is_gpu, seventh=model.seventh, is_rest=True)

    def use(self, model: DeviceModel, number: int) -> bool:
        """Note that so many more devices, or fewer, are of a model; return whether the model is new or gone."""
        self._users[model] = self._users.get(model, 0) + number
        if self._users[model] <= 0:
            del self._users[model]
            return self._labels.pop(model, None) is not None
        if model in self._labels:
            return False
        self._labels[model] = f"{DEVICES_PREFIX}{self._next}"
        self._next += 1
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDemand:
    """What a claim takes of a node, and what its queue pays."""

    gpu_milli: int = 0
    """Of the whole GPUs of a node."""
    scalars: Scalars = ()
    """Partitions by profile."""
    cost_milli: int = 0
    """What the queue pays."""
    places: tuple[tuple[Requirement, ...], ...] = ()
    """For each request the requirements of which a node must fulfil one."""


NO_DEMAND = DeviceDemand()

Classes = Callable[[str], DeviceClass | None]


def demand_of(
    requests: Sequence[DeviceRequest], models: DeviceModels, classes: Classes, largest: Callable[[DeviceModel], int]
) -> DeviceDemand:
    """Return the demand of an unallocated claim for GPUs; devices that are no GPUs are kube-scheduler's affair.

    `largest` returns the most devices of a model that any node has.
    """
    judge = _Judge(models, classes, largest, reads_selectors=asked_length(requests) <= MOST_ASKED)
    return summed(judge.demand(each) for each in requests if not each.is_admin)


def asked_length(requests: Sequence[DeviceRequest]) -> int:
    """Return the characters in the expressions of these requests."""
    stated = (text for each in requests for one in (each, *each.alternatives) for text in one.selectors)
    return sum(map(len, stated))


def summed(demands: Iterable[DeviceDemand]) -> DeviceDemand:
    """Return what several requests demand together."""
    gpu_milli = paid_milli = 0
    scalars: dict[str, int] = {}
    places: dict[tuple[str, ...], tuple[Requirement, ...]] = {}
    for each in demands:
        gpu_milli, paid_milli = gpu_milli + each.gpu_milli, paid_milli + each.cost_milli
        for name, amount in each.scalars:
            scalars[name] = scalars.get(name, 0) + amount
        for place in each.places:
            # The same devices: a node that has enough for the largest request has enough for each.
            labels = tuple(one.key for one in place)
            places[labels] = max(places.get(labels, place), place, key=_least)
    return DeviceDemand(
        gpu_milli=min(gpu_milli, MAX_AMOUNT),
        scalars=tuple(sorted((name, min(amount, MAX_AMOUNT)) for name, amount in scalars.items())),
        cost_milli=min(paid_milli, MAX_AMOUNT),
        places=tuple(places.values()),
    )


def _least(place: tuple[Requirement, ...]) -> int:
    return max((int(number) for one in place for number in one.values), default=0)


class _Judge:
    """Judges the requests of one claim."""

    def __init__(
        self, models: DeviceModels, classes: Classes, largest: Callable[[DeviceModel], int], *, reads_selectors: bool
    ) -> None:
        self._models = models
        self._classes = classes
        self._largest = largest
        self._reads_selectors = reads_selectors

    def demand(self, request: DeviceRequest) -> DeviceDemand:
        if request.alternatives:
            return _first_available([self.demand(each) for each in request.alternatives])
        accepted = [model for model in self._models.all() if self._accepts(request, model)]
        gpus = [model for model in accepted if model.is_gpu]
        if not gpus:
            # Without devices that it accepts, the class tells whether a request is for GPUs; its name, as for KAI.
            is_for_gpus = not accepted and self._may_be_for_gpus(request.device_class)
            unmet = DeviceDemand(cost_milli=GPU_MILLI * request.count, places=((NOWHERE,),))
            return unmet if is_for_gpus else NO_DEMAND
        count = max(map(self._largest, gpus)) if request.is_all else request.count
        costs = [cost_milli(model, request.capacity) for model in gpus]
        places = tuple(Requirement(label, Operator.GT, (str(count - 1),)) for label in self._models.labels(gpus))
        profiles = dict.fromkeys(model.profile for model in gpus if model.seventh)
        if not profiles:
            return DeviceDemand(gpu_milli=count * min(costs), cost_milli=count * max(costs), places=(places,))
        is_one = len(profiles) == 1 and all(model.seventh for model in gpus)
        scalars = ((next(iter(profiles)), count),) if is_one else ()
        return DeviceDemand(scalars=scalars, cost_milli=count * max(costs), places=(places,))

    def _may_be_for_gpus(self, name: str) -> bool:
        of_class = self._classes(name)
        return "gpu" in name.lower() or any(
            model.is_gpu and accepts(of_class, (), model) for model in self._models.all()
        )

    def _accepts(self, request: DeviceRequest, model: DeviceModel) -> bool:
        selectors = request.selectors if self._reads_selectors else ()
        return accepts(self._classes(request.device_class), selectors, model)


def accepts(of_class: DeviceClass | None, selectors: Sequence[str], model: DeviceModel) -> bool:
    """Return whether a request may get devices of a model.

    What cannot be told counts as accepted, and costs: kube-scheduler decides then.
    """
    if of_class is None or model.is_rest:
        return of_class is not None
    return all(_selects(each, model) is not False for each in (*of_class.selectors, *selectors))


@lru_cache(maxsize=1 << 14)
def _selects(expression: str, model: DeviceModel) -> bool | None:
    facts = DeviceFacts(model.driver, dict(model.attributes), dict(model.capacity), model.is_shareable)
    return selects(expression, facts)


def cost_milli(model: DeviceModel, capacity: Sequence[tuple[str, int]]) -> int:
    """Return what one device of a model costs: a whole GPU, N for the partition `Ng` (as MIG), or a share of one.

    `capacity` is the part of a shareable device that is asked for or held.
    """
    if model.seventh:
        return GPU_MILLI * model.seventh
    return _share_milli(model, capacity) if model.is_shareable else GPU_MILLI


def _share_milli(model: DeviceModel, consumed: Sequence[tuple[str, int]]) -> int:
    """Return the share of a device that a part of its capacity is, rounded up; all of it when nothing tells."""
    capacity = dict(model.capacity)
    shares = [
        min(-(-GPU_MILLI * amount // total), GPU_MILLI)
        for name, amount in consumed
        if (total := capacity.get(name if "/" in name else f"{model.driver}/{name}", 0)) > 0
    ]
    return max(shares, default=GPU_MILLI)


def _first_available(choices: Sequence[DeviceDemand]) -> DeviceDemand:
    """Return what a request with alternatives takes at least, and costs at most: which one it gets is not known."""
    each = [tuple(one.places[0]) if one.places else None for one in choices]
    is_anywhere = any(place is None for place in each)
    return DeviceDemand(
        gpu_milli=min(one.gpu_milli for one in choices),
        cost_milli=max(one.cost_milli for one in choices),
        places=() if is_anywhere else (tuple(dict.fromkeys(one for place in each if place for one in place)),),
    )
