"""Computes what a pod requests, as kube-scheduler 1.36 does (`component-helpers/resource/helpers.go`, PodRequests)."""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from itertools import repeat
from sys import intern

from app.cluster.decode.parts import CONTAINERS, items
from app.cluster.decode.reading import MOST_ITEMS, NO_FIELDS, Fields, ObjectReading
from app.cluster.decode.sparing import shared
from app.model.marks import PREFIX
from app.model.quantity import QuantityError, TooMuchError, milli, shown, whole
from app.model.resources import MAX_AMOUNT, Resources, Scalars

GPU_RESOURCE = "nvidia.com/gpu"
BY_CLASS = "deviceclass.resource.kubernetes.io/"
"""The prefix of the extended resource that stands for a DeviceClass (KEP-5004)."""
WHOLE_GPU_MILLI = 1000

Ask = dict[str, int]
"""Amounts by resource name; a missing name is 0."""

RESIZABLE = ("cpu", "memory")
"""What a pod as a whole may request, and what may be resized in place."""

OF_DEVICES = "nvidia.com/"
LONGEST_RESOURCE = 317
"""Characters in the name of any resource: a domain, a slash and a label's value."""
MAX_EXTENDED = 32
"""Extended resources that one pod may name."""

UNBOUNDED = 1 << 30
"""All containers of a running pod are charged, whatever their number."""

FEW_NAMES = 16
"""If a container states more amounts than this, amounts that cannot count are removed first."""

MOST_AMOUNTS = 1 << 16
"""Amounts that are read of one pod: the API server has no room for more beside its notes about each.

A pod with more amounts is charged with everything that is free on its node.
"""


def gpus_milli(value: object) -> int:
    """Read a number of whole GPUs as thousandths; raise `QuantityError` on a part of a GPU."""
    amount = milli(value)
    if amount % WHOLE_GPU_MILLI:
        raise QuantityError(f"{shown(value)} is not a whole number of GPUs; write 1 or more")
    return amount


PARSERS: Mapping[str, Callable[[object], int]] = {"cpu": milli, "memory": whole, GPU_RESOURCE: gpus_milli}
"""How each resource that is not extended is read."""

USUAL = {*PARSERS, "ephemeral-storage"}
"""The only resources that most containers request."""


def is_extended(name: str) -> bool:
    """Whether nodes and pods count a resource of this name among their `scalars`.

    Kubernetes' own resources do not count there (Kubernetes `IsExtendedResourceName`). Neither do whole GPUs, nor
    Leeboard's markers, which only tell kube-scheduler when to call the extender: no node has any.
    """
    is_known = name == GPU_RESOURCE or name.startswith(PREFIX)
    return may_be_extended(name) and len(name) <= LONGEST_RESOURCE and not is_known


def may_be_extended(name: str) -> bool:
    """Whether the name may be other than Kubernetes' own, or stands for a DeviceClass; False is certain."""
    return "/" in name and ("kubernetes.io/" not in name or name.startswith(BY_CLASS))


def request(reading: ObjectReading, spec: Fields, status: Fields) -> tuple[Resources, Scalars]:
    """Return what the pod holds on its node; unreadable amounts are noted as missed, excessive amounts are limited.

    One difference from kube-scheduler: it rounds up the sum of parts of a millicore or byte, Leeboard each amount.
    """
    shape = ObjectReading()
    demand = _Demand(reading, shape)
    ask = demand.total(spec, status)
    if shape.problem:
        reading.miss(shape.problem)
    # Resources of device plugins are first: other names must not displace them in a running pod.
    names = [*demand.devices, *demand.others]
    if demand.has_more or len(names) > MAX_EXTENDED:
        reading.doubt(f"its containers ask for more than {MAX_EXTENDED} extended resources; ask for fewer")
        names = names[:MAX_EXTENDED]
    if max(map(ask.get, (*PARSERS, *names), repeat(0))) > MAX_AMOUNT:
        reading.doubt(f"its containers together ask for more than {MAX_AMOUNT} of a resource; ask for less")
        ask = {name: min(amount, MAX_AMOUNT) for name, amount in ask.items()}
    amounts = _shared(*map(ask.get, PARSERS, repeat(0)))
    return amounts, scalars((name, ask.get(name, 0)) for name in names) if names else ()


def scalars(amounts: Iterable[tuple[str, int]]) -> Scalars:
    """Return amounts of extended resources in the order of their names, one shared value for all that are equal."""
    return _shared_scalars(tuple(sorted((intern(name), amount) for name, amount in amounts if amount)))


class _Demand:
    """Adds up what a pod requests, container by container; of each container only the resources that it names."""

    __slots__ = ("_is_infeasible", "_left", "_reading", "_shape", "devices", "has_more", "others")

    def __init__(self, reading: ObjectReading, shape: ObjectReading) -> None:
        """`shape` notes parts of the object that have the wrong shape, so that no amounts could be found there."""
        self._reading = reading
        self._shape = shape
        self._left = MOST_AMOUNTS
        self._is_infeasible = False
        # The extended resources that containers name, whether their amounts can be read or not. Filled by `_counts`.
        self.devices: dict[str, None] = {}
        self.others: dict[str, None] = {}
        self.has_more = False
        """Whether there are others that were not counted."""

    def total(self, spec: Fields, status: Fields) -> Ask:
        """Return what the pod requests."""
        # 1. containers and sidecars, or the peak of initialisation  2. pod level  3. overhead
        self._is_infeasible = _is_infeasible(status)
        ask = self._pod_level(spec, status, self._containers(spec, status))
        if spec.get("overhead") is not None:
            _add(ask, self._read(self._known(self._shape.mapping(spec, "overhead")), NO_FIELDS, "overhead"))
        return ask

    def _containers(self, spec: Fields, status: Fields) -> Ask:
        shape, there = self._shape, self._statuses(spec, status)
        total: Ask = {}
        for container in shape.mappings(spec, "containers", most=UNBOUNDED):
            _add(total, self._long_lived(container, there))
        if spec.get("initContainers") is None:
            return total
        sidecars: Ask = {}
        peak: Ask = {}
        for container in shape.mappings(spec, "initContainers", most=UNBOUNDED):
            if container.get("restartPolicy") == "Always":
                ask = self._long_lived(container, there)
                _add(total, ask)
                _add(sidecars, ask)
            else:
                # Where the container requests nothing, only the sidecars matter, and the total includes them.
                ask = self._container(container)
                _raise(peak, {name: sidecars.get(name, 0) + amount for name, amount in ask.items()})
        return _raise(total, peak)

    def _pod_level(self, spec: Fields, status: Fields, ask: Ask) -> Ask:
        """Let `spec.resources` override CPU and memory; Kubernetes knows no other resources there."""
        if spec.get("resources") is None:
            return ask
        requests = self._shape.mapping(self._shape.mapping(spec, "resources"), "requests")
        stated = {name: requests[name] for name in RESIZABLE if name in requests}
        own = self._resized(self._read(stated, NO_FIELDS, "resources"), status)
        return {**ask, **{name: own[name] for name in stated if name in own}}

    def _long_lived(self, container: Fields, there: Mapping[str, Fields]) -> Ask:
        ask = self._container(container)
        status = there.get(self._shape.text(container, "name")) if there else None
        return self._resized(ask, status) if status else ask

    def _resized(self, ask: Ask, status: Fields) -> Ask:
        """Return the amounts that count, given the requested amounts and the status with the allocated amounts.

        A smaller request frees nothing before the kubelet has resized. A resize that the kubelet reports as infeasible
        takes nothing: otherwise a user who may resize a pod could block a whole node.
        """
        allocated = self._shape.mapping(status, "allocatedResources")
        held = self._read(self._known(allocated), NO_FIELDS, "allocatedResources") if allocated else {}
        resources = self._shape.mapping(status, "resources")
        actuated = self._shape.mapping(resources, "requests")
        if actuated and actuated != allocated:
            _raise(held, self._read(self._known(actuated), NO_FIELDS, "resources of the status"))
        if resources and self._is_infeasible:
            ask = {name: amount for name, amount in ask.items() if name not in RESIZABLE or name not in held}
        return _raise(ask, held)

    def _container(self, container: Fields) -> Ask:
        resources = container.get("resources")
        if not resources and (resources is None or isinstance(resources, dict)):
            return {}
        resources = self._shape.mapping(container, "resources")
        # Limits replace missing requests, as the API server's defaults do.
        requests, limits = self._amounts(resources, "requests"), self._amounts(resources, "limits")
        return self._read({**limits, **requests} if limits else requests, limits, container.get("name"))

    def _amounts(self, resources: Fields, key: str) -> Fields:
        if resources.get(key) is None:
            return NO_FIELDS
        amounts = self._shape.mapping(resources, key)
        if len(amounts) > MOST_ITEMS:
            self._reading.doubt(f"a container has {len(amounts)} {key}; write at most {MOST_ITEMS}")
            return {name: amounts[name] for name in amounts if name in USUAL or name.startswith(OF_DEVICES)}
        return amounts if len(amounts) <= FEW_NAMES else self._that_may_count(amounts)

    def _that_may_count(self, amounts: Fields) -> Fields:
        """Return those amounts that may count: a running pod may state tens of thousands of others."""
        may_count = {name: amounts[name] for name in amounts if name in USUAL or may_be_extended(name)}
        if len(self.others) < MAX_EXTENDED:
            return may_count
        known = {
            name: may_count[name]
            for name in may_count
            if name in self.others or name in USUAL or name.startswith(OF_DEVICES)
        }
        self.has_more |= len(known) < len(may_count)
        return known

    def _statuses(self, spec: Fields, status: Fields) -> Mapping[str, Fields]:
        """Return the statuses of the containers to which the kubelet has allocated resources, by container name."""
        found: dict[str, Fields] = {}
        for key in ("containerStatuses", "initContainerStatuses"):
            if status.get(key) is None:
                continue
            # At most as many as there are containers: other programs may write there, too.
            most = max(MOST_ITEMS, *(len(items(spec, kind)) for kind in CONTAINERS))
            for container in self._shape.mappings(status, key, most=most):
                if container.get("allocatedResources") is not None or container.get("resources") is not None:
                    found[self._shape.text(container, "name")] = container
        return found

    def _known(self, amounts: Fields) -> Fields:
        """Return the amounts of resources that containers name, and of the usual ones."""
        return {name: amounts[name] for name in (*PARSERS, *self.devices, *self.others) if name in amounts}

    def _read(self, amounts: Fields, fallback: Fields, where: object) -> Ask:
        found: Ask = {}
        self._left -= len(amounts)
        if self._left < 0:
            self._reading.miss(f"its containers state more than {MOST_AMOUNTS} amounts; write fewer")
            return found
        for name, stated in amounts.items():
            parse = PARSERS.get(name) or (whole if name not in USUAL and self._counts(name) else None)
            value = fallback.get(name) if stated is None else stated
            if parse is None or value is None:
                continue
            # Nearly all amounts can be read: the text of the error is built only on failure.
            try:
                found[name] = parse(value)
            except TooMuchError as error:
                self._reading.doubt(_unreadable(name, where, error))
                found[name] = MAX_AMOUNT
            except QuantityError as error:
                self._reading.miss(_unreadable(name, where, error))
                found[name] = 0
        return found

    def _counts(self, name: str) -> bool:
        """Whether a resource is extended and counts: only the first ones that the containers name do."""
        names = self.devices if name.startswith(OF_DEVICES) else self.others
        if name in names:
            return True
        if not is_extended(name):
            return False
        if len(names) == MAX_EXTENDED:
            self.has_more = True
            return False
        names[name] = None
        return True


def _unreadable(name: str, where: object, error: QuantityError) -> str:
    return f"{name} of {shown(where)} cannot be read: {error}"


def _is_infeasible(status: Fields) -> bool:
    """Whether the kubelet reports the resize as infeasible; otherwise the complete request counts."""
    conditions = status.get("conditions")
    for one in conditions[:MOST_ITEMS] if isinstance(conditions, list) else ():
        if isinstance(one, dict) and one.get("type") == "PodResizePending":
            return one.get("reason") == "Infeasible"
    return False


def _add(total: Ask, ask: Ask) -> None:
    for name, amount in ask.items():
        total[name] = total.get(name, 0) + amount


def _raise(ask: Ask, least: Ask) -> Ask:
    """Raise each amount to at least this value, in place."""
    for name, amount in least.items():
        if amount > ask.get(name, 0):
            ask[name] = amount
    return ask


# Pods of one template share one value.
@lru_cache(maxsize=8192)
def _shared(cpu_milli: int, memory_bytes: int, gpu_milli: int) -> Resources:
    return Resources(cpu_milli=cpu_milli, memory_bytes=memory_bytes, gpu_milli=gpu_milli, pods=1)


@shared(4096)
def _shared_scalars(amounts: Scalars) -> Scalars:
    return amounts
