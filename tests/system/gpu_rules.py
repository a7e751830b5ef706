"""Rules about shared GPUs that hold at any moment: each is a function from a picture to its violations.

Leeboard is never queried: reservations are read from the pods, and holders from the reports of the nodes.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from tests.system.api import Object
from tests.system.shares import (
    GROUP_LABEL,
    VISIBLE,
    asks_for_part,
    devices,
    environment,
    groups,
    is_over,
    is_reservation,
    key,
    node_of,
    number_of_devices,
    part,
    sharing_container,
)

RESERVED = "run.ai/reserve_for_gpu_index"


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The pods that exist, and the devices as they are reported."""

    pods: tuple[Object, ...]
    memory_mib: Mapping[str, int]
    """By node: of each device, according to the label of the node."""
    holders: Mapping[str, Mapping[str, tuple[str, ...]]]
    """By node and UUID: the uids of the pods that hold the device as a whole, and of those that use its memory."""

    @property
    def sharing(self) -> list[Object]:
        """Return the pods that have a part of a device."""
        return [pod for pod in self._bound if asks_for_part(pod)]

    @property
    def reservations(self) -> list[Object]:
        """Return the reservation pods that have a node."""
        return [pod for pod in self._bound if is_reservation(pod)]

    @property
    def _bound(self) -> list[Object]:
        return [pod for pod in self.pods if node_of(pod) and not is_over(pod)]


Rule = Callable[[Picture], Iterable[str]]


def overfull_devices(picture: Picture) -> Iterator[str]:
    """No device is reserved for more than the whole of it; exact."""
    promised: defaultdict[str, Fraction] = defaultdict(Fraction)
    on: defaultdict[str, list[str]] = defaultdict(list)
    for pod in picture.sharing:
        for uuid in devices(pod):
            promised[uuid] += part(pod, picture.memory_mib.get(node_of(pod), 0))
            on[uuid].append(key(pod))
    for uuid, amount in promised.items():
        if amount > 1:
            yield f"device {uuid} is promised to {float(amount):.0%}: {', '.join(sorted(on[uuid]))}"


def pods_without_their_devices(picture: Picture) -> Iterator[str]:
    """A pod that shares sees as many devices as it requested, each once, from the moment of its binding."""
    for pod in picture.sharing:
        had = devices(pod)
        seen = environment(pod).get(sharing_container(pod), {}).get(VISIBLE, "nothing")
        if len(set(had)) != number_of_devices(pod) or len(had) != len(set(had)) or seen != ",".join(had):
            yield f"{key(pod)} was bound with devices {','.join(had) or 'none'} and sees {seen}"


def whole_pods_on_shared_devices(picture: Picture) -> Iterator[str]:
    """A pod with a whole device has it alone."""
    reservations = {pod["metadata"]["uid"] for pod in picture.reservations}
    by_uid = {pod["metadata"]["uid"]: pod for pod in picture.pods}
    for pod in picture.sharing:
        for uuid in devices(pod):
            for uid in picture.holders.get(node_of(pod), {}).get(uuid, ()):
                other = by_uid.get(uid)
                if other is not None and uid not in reservations and not asks_for_part(other):
                    yield f"{key(other)} has device {uuid} as a whole, of which {key(pod)} has a part"


def parts_of_nothing(picture: Picture) -> Iterator[str]:
    """Each shared device belongs to the node, and the reservation pod of its group holds it."""
    reservations = {
        (node_of(pod), pod["metadata"]["labels"][GROUP_LABEL], pod["metadata"]["uid"]) for pod in picture.reservations
    }
    for pod in picture.sharing:
        node = node_of(pod)
        held = picture.holders.get(node, {})
        for uuid, group in zip(devices(pod), groups(pod), strict=False):
            if uuid not in held:
                yield f"{key(pod)} has a part of {uuid}, which {node} does not have"
            elif not any((node, group, uid) in reservations for uid in held[uuid]):
                yield f"{key(pod)} has a part of {uuid}, which no reservation pod of its group {group} holds"


def devices_reserved_twice(picture: Picture) -> Iterator[str]:
    """There is one reservation pod per device, and one per group on each node."""
    uuids = Counter(pod["metadata"].get("annotations", {}).get(RESERVED) for pod in picture.reservations)
    for uuid, number in uuids.items():
        if uuid and number > 1:
            yield f"{number} reservation pods have device {uuid}"
    names = Counter((node_of(pod), pod["metadata"]["labels"][GROUP_LABEL]) for pod in picture.reservations)
    for (node, group), number in names.items():
        if number > 1:
            yield f"{number} reservation pods on {node} are of group {group}"


def orphaned_reservations(picture: Picture) -> Iterator[str]:
    """A reservation pod exists for a pod; also one that has no node yet, or has failed."""
    used = {(node_of(pod), group) for pod in picture.sharing for group in groups(pod)}
    for pod in picture.pods:
        if is_reservation(pod) and (node_of(pod), pod["metadata"]["labels"].get(GROUP_LABEL, "")) not in used:
            yield f"{key(pod)} ({pod['metadata']['uid'][:8]}) reserves a device for nobody"


ALWAYS: tuple[Rule, ...] = (overfull_devices, pods_without_their_devices)
"""Rules that one event of a pod can violate."""
SOON: tuple[Rule, ...] = (whole_pods_on_shared_devices, parts_of_nothing, devices_reserved_twice)
"""Rules about several watches, which are not synchronized."""
EVENTUALLY: tuple[Rule, ...] = (orphaned_reservations,)
