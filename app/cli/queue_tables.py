"""Draws the tree of queues as text within the given width, also for thousands of queues."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from app.cli.drawing import folded, plain
from app.web.answers import AmountsAnswer, QueueAnswer, QueueList

NOTHING = "-"
GIB = 1 << 30
MILLI = 1000
INDENT = 2
MOST_INDENTED = 10
"""Levels that are indented. Deeper names would have no room."""
LEAST_NAME = 8
GAP = 2
MOST_PROBLEMS = 20
NO_QUEUES = "There are no queues, so every managed pod waits; kubectl apply -f deploy/default-queues.yaml creates some."

Row = tuple[str, ...]

RESOURCES: Mapping[str, Callable[[AmountsAnswer], str]] = {
    "gpu": lambda amounts: number(amounts.gpu_milli, MILLI),
    "cpu": lambda amounts: number(amounts.cpu_milli, MILLI),
    "memory": lambda amounts: number(amounts.memory_bytes, GIB),
}
UNITS = {"gpu": "GPUs", "cpu": "CPU cores", "memory": "GiB of memory"}
NAMES = {"gpu": "GPUs", "cpu": "CPU", "memory": "memory"}
HEADINGS = ("QUEUE", "DESERVED", "LIMIT", "FAIR", "ALLOC", "REQUEST", "WAIT")


def number(amount: int | None, unit: int) -> str:
    """Return an amount in larger units, with at most three decimals; a dash when there is no limit."""
    return NOTHING if amount is None else f"{amount / unit:.3f}".rstrip("0").rstrip(".")


def subtree(known: QueueList, name: str) -> QueueList:
    """Return a queue and its descendants."""
    roots = [each for each in known.items if each.name == name]
    return QueueList(items=tuple(queue for _, queue in _tree(known.items, roots)))


def queues_table(known: QueueList, resource: str, *, width: int) -> str:
    """Return one line per queue, with descendants indented, and the problems of queues."""
    if not known.items:
        return NO_QUEUES
    rows = [HEADINGS, *(_row(depth, queue, RESOURCES[resource]) for depth, queue in _forest(known.items))]
    parts = ["\n".join(_aligned(rows, width)), folded(list(_notes(known, resource)), width)]
    return "\n\n".join(filter(None, parts))


# The tree -------------------------------------------------------------------------------------------------------------


def _forest(queues: Sequence[QueueAnswer]) -> Iterator[tuple[int, QueueAnswer]]:
    """Yield every queue with its depth. A queue without a known parent is a root, and so is the first of a cycle."""
    known = {each.name for each in queues}
    tops = [each for each in queues if each.parent not in known]
    return _tree(queues, [*tops, *queues])


def _tree(queues: Sequence[QueueAnswer], roots: Sequence[QueueAnswer]) -> Iterator[tuple[int, QueueAnswer]]:
    """Yield these queues and their descendants, each once, after its parent, with its depth."""
    # Without recursion: a chain of a thousand queues is unusual but possible.
    seen = set[str]()
    children: dict[str, list[QueueAnswer]] = {}
    for each in queues:
        children.setdefault(each.parent or "", []).append(each)
    for root in roots:
        left = [(0, root)]
        while left:
            depth, queue = left.pop()
            if queue.name in seen:
                continue
            seen.add(queue.name)
            yield depth, queue
            left += [(depth + 1, each) for each in reversed(children.get(queue.name, ()))]


# Drawing --------------------------------------------------------------------------------------------------------------


def _row(depth: int, queue: QueueAnswer, shown: Callable[[AmountsAnswer], str]) -> Row:
    return (
        " " * INDENT * min(depth, MOST_INDENTED) + plain(queue.name) + (" !" if queue.problem else ""),
        shown(queue.deserved),
        shown(queue.limit),
        NOTHING if queue.fair_share is None else shown(queue.fair_share),
        shown(queue.allocated),
        shown(queue.requested),
        f"{queue.waiting_pod_groups}",
    )


def _aligned(rows: Sequence[Row], width: int) -> Iterator[str]:
    """Yield the lines: names left-aligned and folded when too long, numbers right-aligned."""
    # Without `drawing.table`, which takes seconds for thousands of lines.
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    room = max(LEAST_NAME, width - sum(widths[1:]) - GAP * (len(widths) - 1))
    first = min(widths[0], room)
    for name, *cells in rows:
        numbers = "".join(f"{'':{GAP}}{cell:>{wide}}" for cell, wide in zip(cells, widths[1:], strict=True))
        parts = [name[start : start + first] for start in range(0, len(name), first)]
        yield f"{parts[0]:{first}}{numbers}"
        yield from parts[1:]


def _notes(known: QueueList, resource: str) -> Iterator[str]:
    broken = [each for each in known.items if each.problem]
    yield f"In {UNITS[resource]}. {NOTHING} means unlimited; under FAIR it means that the queue gets no share."
    for each in broken[:MOST_PROBLEMS]:
        yield f"! {each.name}: {each.problem}"
    if len(broken) > MOST_PROBLEMS:
        yield f"! and {len(broken) - MOST_PROBLEMS} more are not valid"
    others = [name for name in RESOURCES if name != resource and any(_is_governed(each, name) for each in known.items)]
    if others:
        yield f"Queues also govern {' and '.join(NAMES[each] for each in others)}: -r {' or -r '.join(others)}."


def _is_governed(queue: QueueAnswer, resource: str) -> bool:
    return {RESOURCES[resource](queue.deserved), RESOURCES[resource](queue.limit)} != {NOTHING}
