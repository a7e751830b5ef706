"""Computes what a pod asks for, as kube-scheduler 1.36 does (`component-helpers/resource/helpers.go`, PodRequests)."""

from collections.abc import Callable, Mapping
from functools import lru_cache

from app.cluster.decode.reading import NO_FIELDS, Fields, Reading
from app.model.quantity import MAX_AMOUNT, QuantityError, milli, shown, whole
from app.model.resources import Resources

GPU_RESOURCE = "nvidia.com/gpu"
WHOLE_GPU_MILLI = 1000

Ask = tuple[int, int, int]
"""cpu_milli, memory_bytes, gpu_milli."""

NO_ASK: Ask = (0, 0, 0)


def gpus_milli(value: object) -> int:
    """Read a number of whole GPUs as thousandths; raise `QuantityError` on a part of one."""
    amount = milli(value)
    if amount % WHOLE_GPU_MILLI:
        raise QuantityError(f"{shown(value)} is not a whole number of GPUs; write 1 or more")
    return amount


PARSERS: Mapping[str, Callable[[object], int]] = {"cpu": milli, "memory": whole, GPU_RESOURCE: gpus_milli}
"""How each resource is read, in the order of `Ask`."""


def request(reading: Reading, spec: Fields, status: Fields) -> Resources:
    """Return what the pod holds on its node; what cannot be read counts as nothing and is noted.

    Differs from kube-scheduler where containers ask for parts of a millicore or byte: it rounds the sum up, we each.
    """
    # 1. containers and sidecars, or the hungriest moment of initialisation  2. pod level  3. overhead
    ask = _pod_level(reading, spec, _containers(reading, spec, status))
    if spec.get("overhead") is not None:
        ask = _sum(ask, _read(reading, reading.mapping(spec, "overhead"), NO_FIELDS, "overhead"))
    if max(ask) > MAX_AMOUNT:
        reading.doubt(f"its containers together ask for more than {MAX_AMOUNT} of a resource; ask for less")
        ask = min(ask[0], MAX_AMOUNT), min(ask[1], MAX_AMOUNT), min(ask[2], MAX_AMOUNT)
    return _shared(*ask)


def _containers(reading: Reading, spec: Fields, status: Fields) -> Ask:
    allocated = _allocated(reading, status)
    total = NO_ASK
    for container in reading.mappings(spec, "containers"):
        total = _sum(total, _long_lived(reading, container, allocated))
    if spec.get("initContainers") is None:
        return total
    sidecars = peak = NO_ASK
    for container in reading.mappings(spec, "initContainers"):
        if container.get("restartPolicy") == "Always":
            ask = _long_lived(reading, container, allocated)
            total, sidecars = _sum(total, ask), _sum(sidecars, ask)
            peak = _most(peak, sidecars)
        else:
            peak = _most(peak, _sum(sidecars, _container(reading, container)))
    return _most(total, peak)


def _long_lived(reading: Reading, container: Fields, allocated: Mapping[str, Fields]) -> Ask:
    # A resize that shrinks the pod frees nothing before the kubelet has done it.
    ask = _container(reading, container)
    held = allocated.get(reading.text(container, "name")) if allocated else None
    return _most(ask, _read(reading, held, NO_FIELDS, "allocatedResources")) if held else ask


def _container(reading: Reading, container: Fields) -> Ask:
    resources = container.get("resources")
    if not resources and (resources is None or isinstance(resources, dict)):
        return NO_ASK
    resources = reading.mapping(container, "resources")
    # Limits stand in for missing requests, as the API server's defaults do.
    requests, limits = reading.mapping(resources, "requests"), reading.mapping(resources, "limits")
    return _read(reading, requests, limits, container.get("name"))


def _allocated(reading: Reading, status: Fields) -> Mapping[str, Fields]:
    """Return what the kubelet has given each container, by container name."""
    found: dict[str, Fields] = {}
    for key in ("containerStatuses", "initContainerStatuses"):
        if status.get(key) is None:
            continue
        for container in reading.mappings(status, key):
            if container.get("allocatedResources") is not None:
                found[reading.text(container, "name")] = reading.mapping(container, "allocatedResources")
    return found


def _pod_level(reading: Reading, spec: Fields, ask: Ask) -> Ask:
    """Let `spec.resources` override CPU and memory; Kubernetes knows no GPUs there."""
    if spec.get("resources") is None:
        return ask
    requests = reading.mapping(reading.mapping(spec, "resources"), "requests")
    own = _read(reading, requests, NO_FIELDS, "resources")
    cpu_milli = own[0] if requests.get("cpu") is not None else ask[0]
    memory_bytes = own[1] if requests.get("memory") is not None else ask[1]
    return cpu_milli, memory_bytes, ask[2]


def _read(reading: Reading, requests: Fields, fallback: Fields, where: object) -> Ask:
    cpu, memory, gpu = (_amount(reading, requests, fallback, name, where) for name in PARSERS)
    return cpu, memory, gpu


def _amount(reading: Reading, requests: Fields, fallback: Fields, name: str, where: object) -> int:
    value = requests.get(name)
    if value is None:
        value = fallback.get(name)
    # Most containers leave most resources out: spare them the sentence.
    return 0 if value is None else reading.number(f"{name} of {shown(where)}", value, PARSERS[name])


def _sum(one: Ask, other: Ask) -> Ask:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def _most(one: Ask, other: Ask) -> Ask:
    return max(one[0], other[0]), max(one[1], other[1]), max(one[2], other[2])


# Pods of one template share one value.
@lru_cache(maxsize=8192)
def _shared(cpu_milli: int, memory_bytes: int, gpu_milli: int) -> Resources:
    return Resources(cpu_milli=cpu_milli, memory_bytes=memory_bytes, gpu_milli=gpu_milli, pods=1)
