"""What each node has given away, by kube-scheduler's own books: bound pods and those it assumes."""

from collections import Counter, defaultdict

from app.simulation.stock import Amounts


class Holdings:
    """Holdings by uid; a pod holds on one node at a time."""

    def __init__(self) -> None:
        # Changed by `hold` and `release` only: the sums are always those of the holdings.
        self._holdings: dict[str, tuple[str, Amounts]] = {}
        self._used: dict[str, Amounts] = defaultdict(Counter)

    def __contains__(self, uid: str) -> bool:
        return uid in self._holdings

    def used(self, node: str) -> Amounts:
        """Return what is taken of the node; not to be changed."""
        return self._used[node]

    def hold(self, uid: str, node: str, amounts: Amounts) -> None:
        """Book a pod on a node, and nowhere else; booked there already, nothing changes."""
        if self._holdings.get(uid, ("", None))[0] == node:
            return
        self.release(uid)
        self._holdings[uid] = (node, amounts)
        self._used[node].update(amounts)

    def release(self, uid: str) -> None:
        """Strike a pod out, booked or not."""
        if uid in self._holdings:
            node, amounts = self._holdings.pop(uid)
            self._used[node].subtract(amounts)
