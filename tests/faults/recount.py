"""Counts the books of one cache again, from its own pods, reservations and nodes."""

from collections import defaultdict
from collections.abc import Iterator

from app.cluster.ledger.charge import Charge, Hold
from app.cluster.ledger.charges import Charges
from app.cluster.ledger.reservations import ReservationState
from app.cluster.state.cache import ClusterCache
from app.model.names import NodeName
from app.model.resources import AXES, GPU


def differences(cache: ClusterCache) -> Iterator[str]:
    """Yield what does not add up."""
    yield from _sums(cache)
    yield from _causes(cache)
    yield from _indexes(cache)


def _sums(cache: ClusterCache) -> Iterator[str]:
    """The sums are those of the charges."""
    charges, fresh = cache.charges, Charges()
    for uid, charge in charges._charges.items():
        fresh.set(uid, charge)
    for node, devices in charges._devices.items():
        fresh.set_devices(node, devices)
    if fresh._used._by_name != charges._used._by_name:
        yield f"used by node: {charges._used._by_name} instead of {fresh._used._by_name}"
    for hold, sums in charges._part_of_used.items():
        if fresh._part_of_used[hold]._by_name != sums._by_name:
            yield f"{hold.value} by node: {sums._by_name} instead of {fresh._part_of_used[hold]._by_name}"
    if fresh.usage() != charges.usage():
        yield f"by queue: {charges.usage()} instead of {fresh.usage()}"


def _causes(cache: ClusterCache) -> Iterator[str]:
    """Each pod is charged once, where it is bound or has a reservation."""
    for uid in cache.charges._charges:
        if cache.pods.get(uid) is None:
            yield f"{uid} is charged {cache.charges.get(uid)} and is not known"
    for pod in cache.pods.all():
        charge, held = cache.charges.get(pod.uid), cache.reservations.get(pod.uid)
        node = pod.node or (held.node if held and pod.managed else None)
        if charge != cache._settlement._charge_of(pod):
            yield f"{pod.name} is charged {charge} instead of {cache._settlement._charge_of(pod)}"
        if node is None:
            continue
        if charge is None or charge.node != node or charge.request != pod.request:
            yield f"{pod.name} on {node} is charged {charge}"
        elif pod.managed and charge.hold.value != "leaving" and charge.queue is None:
            yield f"{pod.name} on {node} is charged to no queue"
        if held is not None and pod.node is not None:
            yield f"{pod.name} is bound to {pod.node} and has {held}"


def _indexes(cache: ClusterCache) -> Iterator[str]:
    """Each reservation is found by pod, by group and by node."""
    for held in cache.reservations:
        pod = cache.pods.get(held.pod)
        if pod is None:
            yield f"{held} is for a pod that is not known"
        elif held.group != pod.group:
            yield f"{held} is of {held.group} and its pod of {pod.group}"
        if held not in cache.reservations.of_group(held.group) or held not in cache.reservations.on_node(held.node):
            yield f"{held} is not in the indexes"


def overbooked(cache: ClusterCache) -> Iterator[tuple[str, str]]:
    """Yield the nodes on which more of a resource is bound or reserved than there is, and a reservation is for it.

    A GPU that breaks while pods have it leaves its node overcommitted; a pod without GPUs may start there.
    """
    asked: defaultdict[NodeName, list[Charge]] = defaultdict(list)
    for held in cache.reservations:
        charge = cache.charges.get(held.pod)
        if charge is not None and held.state is not ReservationState.AWAITING:
            asked[held.node].append(charge)
    for name, charges in asked.items():
        node = cache.nodes.get(name)
        if node is None:
            continue
        used = cache.charges._used.amounts_on(name)
        awaited = cache.charges._part_of_used[Hold.AWAITED].amounts_on(name)
        asked_of = [any(amounts) for amounts in zip(*(charge.request.amounts for charge in charges), strict=True)]
        asked_of[GPU] |= any(_opens_gpu(cache, charge) for charge in charges)
        for number, axis in enumerate(AXES):
            amount, there = used[number] - awaited[number], node.allocatable.amounts[number]
            if asked_of[number] and amount > there:
                yield name, f"{amount} {axis} of {there} are bound or reserved on {name}"


def _opens_gpu(cache: ClusterCache, charge: Charge) -> bool:
    """Whether a part is reserved of a shared GPU on which no pod runs yet."""
    found = [cache.gpus.find(charge.node, name) for name in charge.devices] if charge.node else []
    return any(gpu is not None and not gpu.is_bound for gpu in found)
