"""Checks whether room is free: on one node, or for several pods at once on the nodes that are reserved for them."""

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from app.cluster.gpus.gpus import Gpus
from app.cluster.ledger.charge import NO_LOAD, Charge, Hold, Load
from app.cluster.ledger.charges import Charges
from app.cluster.ledger.nodes import Nodes
from app.cluster.queues.tree import Queues
from app.cluster.state.claim_charges import ClaimCharges
from app.cluster.state.limits import QueueLimits
from app.model.names import NodeName, PodUid
from app.model.node import Node
from app.model.pod import Pod
from app.model.resources import GPU_MILLI, NOTHING, Resources
from app.model.snapshot import PART


class Room:
    """Reads nodes and charges; changes neither."""

    def __init__(self, nodes: Nodes, charges: Charges, gpus: Gpus, queues: Queues, claim_charges: ClaimCharges) -> None:
        self._nodes = nodes
        self._charges = charges
        self._gpus = gpus
        self._queues = queues
        self._claim_charges = claim_charges

    def held_by(self, pods: Iterable[Pod]) -> Resources:
        """Return the sum that queues pay for these pods, as far as they have nodes."""
        charges = (self._charges.get(pod.uid) for pod in pods)
        return sum((one.paid for one in charges if one is not None and one.node is not None), NOTHING)

    def asked_by(self, pods: Iterable[Pod]) -> Resources:
        """Return the sum that queues pay for these pods once all have nodes."""
        charges = ((pod, self._charges.get(pod.uid)) for pod in pods)
        return sum((pod.request if one is None else one.paid for pod, one in charges), NOTHING)

    def is_free(self, name: NodeName, load: Load) -> bool:
        """Whether the node accepts work and has this much free."""
        node = self._usable(name)
        return node is not None and self._charges.fits(node, load)

    def is_free_later(self, name: NodeName, load: Load, freed: Load = NO_LOAD) -> bool:
        """Whether the node accepts work and has this much free once its pods that are being deleted are gone.

        `freed` is what other pods free too, whose eviction is not ordered yet.
        """
        node = self._usable(name)
        return node is not None and self._charges.fits_later(node, load, freed)

    def suffices(self, uids: Collection[PodUid]) -> bool:
        """Whether these pods fit on the nodes reserved for them, now and all at once.

        Other pods that wait for room there do not count.
        """
        return self._fit_together(uids, without=(Hold.AWAITED,))

    def limits(self) -> QueueLimits:
        """Return the limits check for what the queues hold; valid until a change that is not counted in it."""
        return QueueLimits(self._charges, self._queues, self._claim_charges)

    def is_overbooked(self, uid: PodUid) -> bool:
        """Whether the node reserved for the pod has too little room for it, because other pods hold the room.

        Other pods that wait for room there do not count.
        """
        charge = self._charges.get(uid)
        node = self._nodes.get(charge.node) if charge is not None and charge.node is not None else None
        return (
            charge is not None
            and node is not None
            and not self._charges.fits_beside(charge, node, without=(Hold.AWAITED,))
        )

    def suffices_later(self, uids: Collection[PodUid]) -> bool:
        """Whether these pods fit on the nodes reserved for them once the pods there that are being deleted are gone."""
        return self._fit_together(uids, without=(Hold.AWAITED, Hold.LEAVING))

    def _fit_together(self, uids: Collection[PodUid], *, without: Collection[Hold]) -> bool:
        if not self._parts_fit(uids, without):
            return False
        held: dict[tuple[NodeName | None, Hold], list[Charge]] = {}
        for uid in uids:
            charge = self._charges.get(uid)
            if charge is None:
                return False
            held.setdefault((charge.node, charge.hold), []).append(charge)
        for charge in self._claim_charges.awaited(uids):
            held.setdefault((charge.node, charge.hold), []).append(charge)
        for (name, _), charges in held.items():
            node = self._usable(name)
            if node is None or not self._charges.fits_beside(self._together(charges), node, without=without):
                return False
        return True

    def _together(self, charges: Sequence[Charge]) -> Charge:
        """Return one charge in place of several that hold the same node in the same way."""
        together = _together(charges)
        names = dict.fromkeys(name for charge in charges for name in charge.devices)
        found = [self._gpus.find(together.node, name) for name in names] if together.node is not None else []
        # Parts for which no device is open yet take a whole device.
        opened = sum(one is not None and one.hold is Hold.AWAITED for one in found)
        return replace(together, request=together.request + Resources(gpu_milli=GPU_MILLI * opened))

    # Parts of GPUs ----------------------------------------------------------------------------------------------------

    def parts_free(self, node: NodeName, name: str, *, without: Container[PodUid], later: bool) -> int | None:
        """Return the free parts of a shared GPU without these pods, and, if `later`, without pods being deleted.

        None when there is no such GPU, or the GPU accepts no new pods.
        """
        found = self._gpus.find(node, name)
        if found is None or not found.is_open:
            return None
        going = sum(
            part.parts
            for part in self._gpus.parts.on(node)
            if name in part.names and part.pod in without and part.hold is not Hold.LEAVING
        )
        return found.free + going + (found.releasing if later else 0)

    def whole_again(self, node: NodeName, leaving: AbstractSet[PodUid]) -> Mapping[str, Hold]:
        """Return the shared GPUs of a node without any part in use once these pods and all pods being deleted are gone.

        Each comes with its present state: GPUs in the state `kept` are not yet counted as being freed.
        """
        staying = {part.pod for part in self._gpus.parts.on(node) if part.hold is not Hold.LEAVING} - leaving
        return {each.name: each.hold for each in self._gpus.shared(node) if staying.isdisjoint(each.holders)}

    def _parts_fit(self, uids: Collection[PodUid], without: Collection[Hold]) -> bool:
        mine = set(uids)
        parts = [part for uid in uids if (part := self._gpus.parts.of(uid)) is not None]
        for node, name in dict.fromkeys((part.node, name) for part in parts for name in part.names):
            found = self._gpus.find(node, name)
            others = (part for part in self._gpus.parts.on(node) if name in part.names)
            counted = sum(part.parts for part in others if part.pod in mine or part.hold not in without)
            if found is None or counted > found.whole_mib * PART:
                return False
            if not found.is_open and not (found.may_pass and Hold.LEAVING in without):
                return False
        return True

    def _usable(self, name: NodeName | None) -> Node | None:
        node = self._nodes.get(name) if name is not None else None
        return node if node is not None and node.takes_work else None


def _together(charges: Sequence[Charge]) -> Charge:
    """Return one charge in place of several that hold the same node in the same way."""
    if len(charges) == 1:
        return charges[0]
    scalars = Counter[str]()
    for charge in charges:
        scalars.update(dict(charge.scalars))
    request = sum((charge.request for charge in charges), NOTHING)
    return replace(charges[0], request=request, scalars=tuple(scalars.items()))
