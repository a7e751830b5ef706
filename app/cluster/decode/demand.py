"""Computes what a pod asks for, as kube-scheduler 1.36 does (`component-helpers/resource/helpers.go`, PodRequests)."""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from operator import add
from sys import intern

from app.cluster.decode.reading import NO_FIELDS, Fields, Reading
from app.model.marks import PREFIX
from app.model.quantity import MAX_AMOUNT, QuantityError, milli, shown, whole
from app.model.resources import Resources, Scalars

GPU_RESOURCE = "nvidia.com/gpu"
WHOLE_GPU_MILLI = 1000

Ask = tuple[int, ...]
"""cpu_milli, memory_bytes, gpu_milli, and what is asked of extended resources, in the order in which they are read."""

MAX_EXTENDED = 32
"""Extended resources that one pod may name: each is looked for in each of its containers."""


def gpus_milli(value: object) -> int:
    """Read a number of whole GPUs as thousandths; raise `QuantityError` on a part of one."""
    amount = milli(value)
    if amount % WHOLE_GPU_MILLI:
        raise QuantityError(f"{shown(value)} is not a whole number of GPUs; write 1 or more")
    return amount


Parsers = Mapping[str, Callable[[object], int]]

PARSERS: Parsers = {"cpu": milli, "memory": whole, GPU_RESOURCE: gpus_milli}
"""How each resource is read, in the order of `Ask`."""

USUAL = {*PARSERS, "ephemeral-storage"}
"""What most containers ask for, and nothing else."""


def is_extended(name: str) -> bool:
    """Whether nodes and pods count a resource of this name among their `scalars`.

    What kube-scheduler knows by itself is not (Kubernetes `IsExtendedResourceName`), nor are whole GPUs, nor our own
    markers, which kube-scheduler only routes by: no node has any.
    """
    return "/" in name and name != GPU_RESOURCE and "kubernetes.io/" not in name and not name.startswith(PREFIX)


def request(reading: Reading, spec: Fields, status: Fields) -> tuple[Resources, Scalars]:
    """Return what the pod holds on its node; what cannot be read counts as nothing and is noted.

    Differs from kube-scheduler where containers ask for parts of a millicore or byte: it rounds the sum up, we each.
    """
    demand = _Demand(reading, PARSERS)
    ask = demand.total(spec, status)
    names = list(demand.extended)[:MAX_EXTENDED]
    if names:
        # Few pods ask for these, so all others are spared looking for them first.
        ask = _Demand(reading, {**PARSERS, **dict.fromkeys(names, whole)}).total(spec, status)
    if len(demand.extended) > MAX_EXTENDED:
        reading.doubt(f"its containers ask for more than {MAX_EXTENDED} extended resources; ask for fewer")
    if max(ask) > MAX_AMOUNT:
        reading.doubt(f"its containers together ask for more than {MAX_AMOUNT} of a resource; ask for less")
        ask = tuple(min(amount, MAX_AMOUNT) for amount in ask)
    cpu_milli, memory_bytes, gpu_milli, *extended = ask
    return _shared(cpu_milli, memory_bytes, gpu_milli), scalars(zip(names, extended, strict=True)) if names else ()


def scalars(amounts: Iterable[tuple[str, int]]) -> Scalars:
    """Return amounts of extended resources in the order of their names, one shared value for all that are equal."""
    return _shared_scalars(tuple(sorted((intern(name), amount) for name, amount in amounts if amount)))


class _Demand:
    """Adds up what a pod asks for of some resources."""

    __slots__ = ("_nothing", "_parsers", "_reading", "extended")

    def __init__(self, reading: Reading, parsers: Parsers) -> None:
        """`parsers` tells how to read each resource, in the order of the answers; CPU, memory and GPUs come first."""
        self._reading = reading
        self._parsers = parsers
        self._nothing: Ask = (0,) * len(parsers)
        self.extended: dict[str, None] = {}
        """The extended resources that were come across, read or not."""

    def total(self, spec: Fields, status: Fields) -> Ask:
        """Return what the pod asks for."""
        # 1. containers and sidecars, or the hungriest moment of initialisation  2. pod level  3. overhead
        ask = self._pod_level(spec, self._containers(spec, status))
        if spec.get("overhead") is None:
            return ask
        return _sum(ask, self._read(self._reading.mapping(spec, "overhead"), NO_FIELDS, "overhead"))

    def _containers(self, spec: Fields, status: Fields) -> Ask:
        reading, allocated = self._reading, self._allocated(status)
        total = self._nothing
        for container in reading.mappings(spec, "containers"):
            ask = self._long_lived(container, allocated)
            total = _sum(total, ask) if total is not self._nothing else ask
        if spec.get("initContainers") is None:
            return total
        sidecars = peak = self._nothing
        for container in reading.mappings(spec, "initContainers"):
            if container.get("restartPolicy") == "Always":
                ask = self._long_lived(container, allocated)
                total, sidecars = _sum(total, ask), _sum(sidecars, ask)
                peak = _most(peak, sidecars)
            else:
                peak = _most(peak, _sum(sidecars, self._container(container)))
        return _most(total, peak)

    def _pod_level(self, spec: Fields, ask: Ask) -> Ask:
        """Let `spec.resources` override CPU and memory; Kubernetes knows no other resources there."""
        if spec.get("resources") is None:
            return ask
        requests = self._reading.mapping(self._reading.mapping(spec, "resources"), "requests")
        own = self._read(requests, NO_FIELDS, "resources")
        cpu_milli = own[0] if requests.get("cpu") is not None else ask[0]
        memory_bytes = own[1] if requests.get("memory") is not None else ask[1]
        return cpu_milli, memory_bytes, *ask[2:]

    def _long_lived(self, container: Fields, allocated: Mapping[str, Fields]) -> Ask:
        # A resize that shrinks the pod frees nothing before the kubelet has done it.
        ask = self._container(container)
        held = allocated.get(self._reading.text(container, "name")) if allocated else None
        return _most(ask, self._read(held, NO_FIELDS, "allocatedResources")) if held else ask

    def _container(self, container: Fields) -> Ask:
        resources = container.get("resources")
        if not resources and (resources is None or isinstance(resources, dict)):
            return self._nothing
        resources = self._reading.mapping(container, "resources")
        # Limits stand in for missing requests, as the API server's defaults do.
        requests, limits = self._reading.mapping(resources, "requests"), self._reading.mapping(resources, "limits")
        if not (requests.keys() <= USUAL and limits.keys() <= USUAL):
            self.extended.update(dict.fromkeys(filter(is_extended, (*requests, *limits))))
        return self._read(requests, limits, container.get("name"))

    def _allocated(self, status: Fields) -> Mapping[str, Fields]:
        """Return what the kubelet has given each container, by container name."""
        found: dict[str, Fields] = {}
        for key in ("containerStatuses", "initContainerStatuses"):
            if status.get(key) is None:
                continue
            for container in self._reading.mappings(status, key):
                if container.get("allocatedResources") is not None:
                    name = self._reading.text(container, "name")
                    found[name] = self._reading.mapping(container, "allocatedResources")
        return found

    def _read(self, requests: Fields, fallback: Fields, where: object) -> Ask:
        return tuple([self._amount(requests, fallback, name, where) for name in self._parsers])

    def _amount(self, requests: Fields, fallback: Fields, name: str, where: object) -> int:
        value = requests.get(name)
        if value is None:
            value = fallback.get(name)
        # Most containers leave most resources out: spare them the sentence.
        return 0 if value is None else self._reading.number(f"{name} of {shown(where)}", value, self._parsers[name])


def _sum(one: Ask, other: Ask) -> Ask:
    return tuple(map(add, one, other))


def _most(one: Ask, other: Ask) -> Ask:
    return tuple(map(max, one, other))


# Pods of one template share one value.
@lru_cache(maxsize=8192)
def _shared(cpu_milli: int, memory_bytes: int, gpu_milli: int) -> Resources:
    return Resources(cpu_milli=cpu_milli, memory_bytes=memory_bytes, gpu_milli=gpu_milli, pods=1)


@lru_cache(maxsize=4096)
def _shared_scalars(amounts: Scalars) -> Scalars:
    return amounts
