"""Judges the tree of queues as a whole: missing parents, circles, and queues below an invalid queue."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from app.model.names import QueueName
from app.model.queue import MOST_LEVELS, Queue
from app.model.resources import QUOTA_AXES, UNLIMITED

CIRCLE_SHOWN = 5
"""How many queues of a circle the message names: a circle of thousands must not fill its own status."""


TOO_DEEP = f"it is more than {MOST_LEVELS} levels deep; change spec.parentQueue to a queue nearer to the top"


class Queues:
    """All known queues, judged when they are read. Only `ClusterCache` calls `put` and `drop`."""

    def __init__(self) -> None:
        """Start without queues."""
        self._by_name: dict[QueueName, Queue] = {}
        self._judged: Mapping[QueueName, Queue] | None = None
        self._lines: dict[QueueName, tuple[QueueName, ...]] = {}

    def put(self, queue: Queue) -> bool:
        """Store a queue; return whether anything changed."""
        if self._by_name.get(queue.name) == queue:
            return False
        self._by_name[queue.name] = queue
        self._note_change()
        return True

    def exists(self, name: QueueName) -> bool:
        """Return whether a queue is known, valid or not."""
        return name in self._by_name

    def takes_pods(self, name: QueueName) -> bool:
        """Return whether a queue is known and valid."""
        queue = self.tree().get(name)
        return queue is not None and not queue.problem

    def drop(self, name: QueueName) -> bool:
        """Forget a queue; return whether it was known."""
        if self._by_name.pop(name, None) is None:
            return False
        self._note_change()
        return True

    def _note_change(self) -> None:
        self._judged = None
        self._lines.clear()

    def line(self, name: QueueName) -> Collection[QueueName]:
        """Return a queue and its ancestors, as far up as they exist."""
        if name not in self._lines:
            names: dict[QueueName, None] = {}
            at: QueueName | None = name
            while at is not None and at not in names and at in self._by_name and len(names) < MOST_LEVELS:
                names[at] = None
                at = self._by_name[at].parent
            self._lines[name] = tuple(names)
        return self._lines[name]

    def limits_above(self, name: QueueName) -> Mapping[QueueName, Sequence[int]]:
        """Return the limits of a queue and its ancestors, in the order of `QUOTA_AXES`; only queues with a limit."""
        queues = [self._by_name[above] for above in self.line(name)]
        limits = {queue.name: [queue.entitlement(axis).limit for axis in QUOTA_AXES] for queue in queues}
        return {above: limit for above, limit in limits.items() if min(limit) != UNLIMITED}

    def tree(self) -> Mapping[QueueName, Queue]:
        """Return the queues, judged as a tree; the same value as long as no queue has changed."""
        if self._judged is None:
            self._judged = judged(self._by_name.values())
        return self._judged


def judged(queues: Iterable[Queue]) -> dict[QueueName, Queue]:
    """Return every queue by name, with `problem` set where the tree above it is invalid.

    A queue's own problem stays. The time is linear in the number of queues, however they are linked.
    """
    known = {queue.name: queue for queue in queues}
    verdicts: dict[QueueName, str] = {}
    levels: dict[QueueName, int] = {}
    for name in known:
        if name not in verdicts:
            _judge_path(name, known, verdicts, levels)
    return {name: replace(queue, problem=verdicts[name]) if verdicts[name] else queue for name, queue in known.items()}


def _judge_path(
    start: QueueName, known: Mapping[QueueName, Queue], verdicts: dict[QueueName, str], levels: dict[QueueName, int]
) -> None:
    """Walk up to a queue that is judged already; then set the problem and level of every queue on the way, top down."""
    path: dict[QueueName, None] = {}
    name: QueueName | None = start
    while name is not None and name in known and name not in verdicts and name not in path:
        path[name] = None
        name = known[name].parent
    if name in path:
        _judge_circle(list(path), name, known, verdicts)
    for below in reversed(path):
        parent = known[below].parent
        levels[below] = 1 if parent is None else levels.get(parent, 0) + 1
        if below not in verdicts:
            too_deep = TOO_DEEP if levels[below] == MOST_LEVELS + 1 else ""
            verdicts[below] = known[below].problem or too_deep or _from_above(parent, known, verdicts)


def _judge_circle(
    path: list[QueueName], first: QueueName, known: Mapping[QueueName, Queue], verdicts: dict[QueueName, str]
) -> None:
    circle = path[path.index(first) :]
    sentence = circle_sentence(circle)
    verdicts.update({name: known[name].problem or sentence for name in circle})


def circle_sentence(circle: Sequence[QueueName]) -> str:
    """Return the message for the owner of a queue whose parents form a circle; the circle starts with this queue."""
    names = " -> ".join([*circle[:CIRCLE_SHOWN], *(["..."] if len(circle) > CIRCLE_SHOWN else []), circle[0]])
    return f"its parents form a circle ({names}); change spec.parentQueue of one of them"


def _from_above(parent: QueueName | None, known: Mapping[QueueName, Queue], verdicts: Mapping[QueueName, str]) -> str:
    if parent is None:
        return ""
    if parent not in known:
        return f"its parent queue {parent} does not exist; create it, or change spec.parentQueue"
    if verdicts[parent]:
        return f"its parent queue {parent} is not valid; the status of that queue says what to change"
    return ""
