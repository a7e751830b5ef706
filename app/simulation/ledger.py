"""The usage of each node in kube-scheduler's own accounting: bound pods and assumed pods."""

from collections import Counter, defaultdict

from app.simulation.stock import Amounts


class Holdings:
    """Holdings by pod uid. A pod holds resources on one node at a time."""

    def __init__(self) -> None:
        # Only `hold` and `release` change these, so the sums always match the holdings.
        self._holdings: dict[str, tuple[str, Amounts]] = {}
        self._used: dict[str, Amounts] = defaultdict(Counter)

    def __contains__(self, uid: str) -> bool:
        return uid in self._holdings

    def used(self, node: str) -> Amounts:
        """Return the used amounts of a node. The caller must not change them."""
        return self._used[node]

    def hold(self, uid: str, node: str, amounts: Amounts) -> None:
        """Charge a pod to this node only. Nothing changes when it is charged there already."""
        if self._holdings.get(uid, ("", None))[0] == node:
            return
        self.release(uid)
        self._holdings[uid] = (node, amounts)
        self._used[node].update(amounts)

    def release(self, uid: str) -> None:
        """Remove the charge of a pod, if there is one."""
        if uid in self._holdings:
            node, amounts = self._holdings.pop(uid)
            self._used[node].subtract(amounts)
