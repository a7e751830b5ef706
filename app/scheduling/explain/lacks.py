"""Counts why no node takes a pod: missing free resources, reservations, and exclusions.

`exclusions` finds the exclusions and counts each node under one of them. A node may lack several resources.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from app.model.node import DEVICES_PREFIX
from app.model.pod import PPM, Pod, Sharing
from app.model.resources import AXES, CPU, GPU, MEMORY, PODS, Amounts
from app.model.sentence import Sentence, say
from app.model.snapshot import Mask
from app.scheduling.placement.exclusions import Exclusion, exclusions
from app.scheduling.placement.rivals import ReservedRoom
from app.scheduling.placement.state import PlacementState
from app.scheduling.queues.wording import amount_text

UNDIVIDED = "no agent identifies them, or they use MIG or time-slicing; see leeboard gpus"

BLOCKED = "(unhealthy, contested, or already in use; see leeboard gpus)"

ONE_MORE = "{said} and {what}"
"""Joins two causes of the same node."""

SCARCE = {CPU: "too little CPU", MEMORY: "too little memory", GPU: "too few GPUs", PODS: "no room for another pod"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lacks:
    """Why a pod finds no node, in words and in numbers."""

    words: Sentence
    """A part of a sentence, such as `12 of 14 nodes have too few GPUs (requested 8, at most 4 free)`."""
    details: Mapping[str, int | str]


def of(pod: Pod, board: PlacementState, promises: ReservedRoom) -> Lacks:
    """Return what keeps the pod off the nodes in their current state on the board."""
    eligible, out = board.eligible(pod), exclusions(pod, board)
    promised = promises.in_the_way(pod, board)
    lacking = [*_scarce(pod, board, eligible & ~promised), *_without_parts(pod, board, eligible)]
    first = promises.first(promised)
    held = Exclusion(
        key="promised",
        count=int(promised.sum()),
        one=say("is reserved for {first}", first=first),
        many=say("are already reserved, the first for {first}", first=first),
    )
    counts: dict[str, int | str] = {"nodes": eligible.size, "excluded": int(eligible.size - eligible.sum())}
    told = [*lacking, held, *out]
    counts |= {each.key: each.count for each in lacking} | {each.key: each.count for each in (held, *out) if each.count}
    counts |= _most_free(board, eligible)
    blocked = _blocked(pod, board, eligible)
    counts |= {"blocked": blocked} if blocked else {}
    return Lacks(words=_said(told, eligible.size, blocked), details=counts)


def part_text(sharing: Sharing) -> str:
    """Return the requested part of a GPU as text, such as `0.5 of a GPU`."""
    part = f"{sharing.memory_mib} MiB" if sharing.memory_mib else f"{sharing.portion_ppm / PPM:g}"
    return f"{part} of a GPU" if sharing.devices == 1 else f"{part} of each of {sharing.devices} GPUs"


def _said(told: list[Exclusion], nodes: int, blocked: int) -> Sentence:
    given = [each for each in told if each.count]
    if not nodes:
        return say("the cluster has no nodes")
    if not given:
        return say("none of {nodes} nodes has all requested resources", nodes=nodes)
    first, *more = given
    which = "the only node" if nodes == 1 else f"{first.count} of {nodes} nodes"
    said = say("{which} {what}", which=which, what=first.words)
    for each in more:
        said = say(ONE_MORE if nodes == 1 else "{said}, {count} {what}", said=said, count=each.count, what=each.words)
    if blocked:
        said = say("{said}, {gpus} no pods {why}", said=said, gpus=_gpus_take(blocked), why=BLOCKED)
    return said


def _gpus_take(count: int) -> str:
    return "1 GPU accepts" if count == 1 else f"{count} GPUs accept"


def _scarce(pod: Pod, board: PlacementState, eligible: Mask) -> Iterator[Exclusion]:
    amounts = board.stock.amounts(pod)
    for axis, amount in enumerate(pod.request.amounts if amounts is None else amounts[: len(AXES)]):
        if amount > 0:
            free = board.stock.free[axis]
            mask = eligible & (free < amount)
            yield _lacking(AXES[axis], mask, f"{SCARCE[axis]}{_asked(axis, amount, free, mask)}")
    scalars = Counter(dict(pod.scalars))
    for claim in pod.claims:
        scalars.update(dict(claim.scalars) if amounts is None or board.stock.is_new(claim) else {})
    for name, count in scalars.items():
        free = board.stock.free_of(name)
        mask = eligible & (free < count)
        what = name.removeprefix(DEVICES_PREFIX)
        yield _lacking(name, mask, f"too few {what} (requested {count}, at most {_most(free, mask)} free)")


def _lacking(key: str, mask: Mask, what: str) -> Exclusion:
    return Exclusion(key=key, count=int(mask.sum()), one=f"has {what}", many=f"have {what}")


def _asked(axis: int, amount: int, free: Amounts, mask: Mask) -> str:
    if axis == PODS:
        return ""
    asked, most = amount_text(axis, amount), amount_text(axis, _most(free, mask))
    unit = "" if axis == GPU else f" {asked.partition(' ')[2]}"
    return f" (requested {asked.partition(' ')[0]}{unit}, at most {most.partition(' ')[0]} free)"


def _most(free: Amounts, mask: Mask) -> int:
    return max(int(np.max(free[mask], initial=0)), 0)


def _most_free(board: PlacementState, eligible: Mask) -> dict[str, int]:
    return {"most_free_gpu_milli": int(np.max(board.stock.free[GPU][eligible], initial=0))}


def _without_parts(pod: Pod, board: PlacementState, eligible: Mask) -> Iterator[Exclusion]:
    if pod.sharing is None:
        return
    nodes = board.snapshot.nodes
    lacking = eligible & ~board.stock.has_devices(pod.sharing)
    without = lacking & (nodes.allocatable[GPU] <= 0)
    undivided = lacking & ~nodes.shares_devices & ~without
    part = part_text(pod.sharing)
    yield Exclusion(
        key="devices", count=int((lacking & ~without & ~undivided).sum()), one=f"lacks {part}", many=f"lack {part}"
    )
    # This is the most frequent fault where sharing is new, and a user cannot guess it.
    yield _lacking("undivided", undivided, f"GPUs that cannot be shared ({UNDIVIDED})")
    yield _lacking("without_gpus", without, "no GPUs")


def _blocked(pod: Pod, board: PlacementState, eligible: Mask) -> int:
    if pod.sharing is None and not pod.request.gpu_milli:
        return 0
    index, blocked = board.snapshot.nodes.index, board.snapshot.blocked_devices
    return sum(number for name, number in blocked.items() if eligible[index[name]])
