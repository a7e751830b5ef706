"""Tells who has room where: on one node, or for several pods at once on the nodes that are held for them."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from app.cluster.charges import Charge, Charges, Hold
from app.cluster.nodes import Nodes
from app.model.names import NodeName, PodUid
from app.model.node import Node
from app.model.pod import Pod
from app.model.resources import NOTHING, Resources


class Room:
    """Looks at nodes and charges; changes neither."""

    def __init__(self, nodes: Nodes, charges: Charges) -> None:
        self._nodes = nodes
        self._charges = charges

    def held_by(self, pods: Iterable[Pod]) -> Resources:
        """Return what these pods hold together."""
        charges = (self._charges.get(pod.uid) for pod in pods)
        return sum((one.request for one in charges if one is not None and one.node is not None), NOTHING)

    def is_free(self, name: NodeName, request: Resources) -> bool:
        """Whether the node takes work and has this much free."""
        node = self._usable(name)
        return node is not None and self._charges.fits(node, request)

    def is_free_later(self, name: NodeName, request: Resources) -> bool:
        """Whether the node takes work and has this much free once the pods have gone that are leaving it."""
        node = self._usable(name)
        return node is not None and self._charges.fits_later(node, request)

    def suffices(self, uids: Collection[PodUid]) -> bool:
        """Whether these pods fit on the nodes held for them, now and all at once.

        Others that wait for room there count as if they were not there.
        """
        return self._fit_together(uids, without=(Hold.AWAITED,))

    def is_overbooked(self, uid: PodUid) -> bool:
        """Whether the node held for the pod lacks what it asks for although all of its room is given out by now.

        Others that wait for room there count as if they were not there.
        """
        charge = self._charges.get(uid)
        node = self._nodes.get(charge.node) if charge is not None and charge.node is not None else None
        return (
            charge is not None
            and node is not None
            and not self._charges.fits_beside(charge, node, without=(Hold.AWAITED,))
        )

    def suffices_later(self, uids: Collection[PodUid]) -> bool:
        """Whether these pods fit on the nodes held for them once the pods have gone that are leaving these."""
        return self._fit_together(uids, without=(Hold.AWAITED, Hold.LEAVING))

    def _fit_together(self, uids: Collection[PodUid], *, without: Collection[Hold]) -> bool:
        held: dict[tuple[NodeName | None, Hold], list[Charge]] = {}
        for uid in uids:
            charge = self._charges.get(uid)
            if charge is None:
                return False
            held.setdefault((charge.node, charge.hold), []).append(charge)
        for (name, _), charges in held.items():
            node = self._usable(name)
            if node is None or not self._charges.fits_beside(_together(charges), node, without=without):
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
