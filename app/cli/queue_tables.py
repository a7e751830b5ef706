"""Draws the tree of queues as text within the given width, also for thousands of queues."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from app.cli.drawing import USUAL, Look, folded, plain

NOTHING = "-"
GIB = 1 << 30
MILLI = 1000
INDENT = 2
MOST_INDENTED = 10
"""Levels that are indented. Deeper names would have no room."""
LEAST_NAME = 8
GAP = 2
MOST_PROBLEMS = 20
MOST_CLAIMED = 20
NO_QUEUES = "There are no queues, so every managed pod waits; kubectl apply -f deploy/default-queues.yaml creates some."

Row = tuple[str, ...]
Queue = Mapping[str, Any]
"""One queue of `/api/v1/queues`."""
Amounts = Mapping[str, int | None]

RESOURCES: Mapping[str, Callable[[Amounts], str]] = {
    "gpu": lambda amounts: number(amounts["gpuMilli"], MILLI),
    "cpu": lambda amounts: number(amounts["cpuMilli"], MILLI),
    "memory": lambda amounts: number(amounts["memoryBytes"], GIB),
}
UNITS = {"gpu": "GPUs", "cpu": "CPU cores", "memory": "GiB of memory"}
NAMES = {"gpu": "GPUs", "cpu": "CPU", "memory": "memory"}
HEADINGS = ("QUEUE", "DESERVED", "LIMIT", "FAIR", "ALLOC", "REQUEST", "WAIT")
WIDE_HEADINGS = ("NONPREEMPT", "WEIGHT", "PRIORITY")
WEIGHT_SCALE = 1_000_000


def number(amount: int | None, unit: int) -> str:
    """Return an amount in larger units, with at most three decimals; a dash when there is no limit."""
    return NOTHING if amount is None else f"{amount / unit:.3f}".rstrip("0").rstrip(".")


def subtree(queues: Sequence[Queue], name: str) -> list[Queue]:
    """Return a queue and its descendants."""
    roots = [each for each in queues if each["name"] == name]
    return [queue for _, queue in _tree(queues, roots)]


def queues_table(queues: Sequence[Queue], resource: str, *, width: int, look: Look = USUAL) -> str:
    """Return one line per queue, with descendants indented, and the problems of queues."""
    if not queues:
        return NO_QUEUES if look.has_headings else ""
    headings = [HEADINGS + WIDE_HEADINGS * look.is_wide] if look.has_headings else []
    rows = [*headings, *(_row(depth, queue, resource, look) for depth, queue in _forest(queues))]
    notes = folded(list(_notes(queues, resource)), width) if look.has_headings else ""
    return "\n\n".join(filter(None, ("\n".join(_aligned(rows, width)), notes)))


# The tree -------------------------------------------------------------------------------------------------------------


def _forest(queues: Sequence[Queue]) -> Iterator[tuple[int, Queue]]:
    """Yield every queue with its depth. A queue without a known parent is a root, and so is the first of a cycle."""
    known = {each["name"] for each in queues}
    tops = [each for each in queues if each["parent"] not in known]
    return _tree(queues, [*tops, *queues])


def _tree(queues: Sequence[Queue], roots: Sequence[Queue]) -> Iterator[tuple[int, Queue]]:
    """Yield these queues and their descendants, each once, after its parent, with its depth."""
    # Without recursion: a chain of a thousand queues is unusual but possible.
    seen = set[str]()
    children: dict[str, list[Queue]] = {}
    for each in queues:
        children.setdefault(each["parent"] or "", []).append(each)
    for root in roots:
        left = [(0, root)]
        while left:
            depth, queue = left.pop()
            if queue["name"] in seen:
                continue
            seen.add(queue["name"])
            yield depth, queue
            left += [(depth + 1, each) for each in reversed(children.get(queue["name"], ()))]


# Drawing --------------------------------------------------------------------------------------------------------------


def _row(depth: int, queue: Queue, resource: str, look: Look) -> Row:
    shown = RESOURCES[resource]
    waiting = queue["waitingPodGroups"]
    more = (
        shown(queue["allocatedNonPreemptible"]),
        number(queue["overQuotaWeightMicro"][resource], WEIGHT_SCALE),
        f"{queue['priority']}",
    )
    return (
        " " * INDENT * min(depth, MOST_INDENTED) + plain(queue["name"]) + (" !" if queue["problem"] else ""),
        shown(queue["deserved"]),
        shown(queue["limit"]),
        NOTHING if queue["fairShare"] is None else shown(queue["fairShare"]),
        shown(queue["allocated"]),
        shown(queue["requested"]),
        NOTHING if waiting is None else f"{waiting}",
        *(more if look.is_wide else ()),
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


def _notes(queues: Sequence[Queue], resource: str) -> Iterator[str]:
    broken = [each for each in queues if each["problem"]]
    yield f"In {UNITS[resource]}. {NOTHING} means unlimited; under FAIR it means that the queue gets no share."
    # The status of a Queue does not tell it.
    claims = ((each, each.get("claimedGpuMilli")) for each in queues)
    claimed = [f"{plain(each['name'])} {number(held, MILLI)}" for each, held in claims if held]
    if claimed and resource == "gpu":
        more = f" and {len(claimed) - MOST_CLAIMED} more queues" if len(claimed) > MOST_CLAIMED else ""
        yield f"Of the allocated GPUs, ResourceClaims hold: {', '.join(claimed[:MOST_CLAIMED])}{more}."
    for each in broken[:MOST_PROBLEMS]:
        yield f"! {each['name']}: {each['problem']}"
    if len(broken) > MOST_PROBLEMS:
        yield f"! and {len(broken) - MOST_PROBLEMS} more are not valid"
    others = [name for name in RESOURCES if name != resource and any(_is_governed(each, name) for each in queues)]
    if others:
        yield f"Queues also govern {' and '.join(NAMES[each] for each in others)}: -r {' or -r '.join(others)}."


def _is_governed(queue: Queue, resource: str) -> bool:
    return {RESOURCES[resource](queue["deserved"]), RESOURCES[resource](queue["limit"])} != {NOTHING}
