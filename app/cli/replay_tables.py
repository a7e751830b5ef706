"""Draws the result of a replay: its counts, its differences, and the state at the time at which it was to stop."""

from collections.abc import Iterator, Sequence

import orjson

from app.cli.drawing import Table, folded, plain
from app.cli.queue_tables import NOTHING, queues_table
from app.service.past_state import PastState
from app.service.replay import Difference, Replayed
from app.web.answers import PodGroupAnswer

SHOWN = 5
"""So many differences are printed as text; `-o json` has all."""

LISTED = 100
"""So many PodGroups and reservations are printed as text; `-o json` has all."""


def replayed_picture(one: Replayed, *, width: int) -> str:
    """Return the text for a person. Lines of a recording are not folded."""
    parts = ["\n".join(_summary(one))]
    if one.state is not None:
        parts += _state(one.state, width)
    return "\n\n".join(parts)


def _summary(one: Replayed) -> Iterator[str]:
    differences = len(one.differences)
    yield f"{one.recording}: version {plain(one.version)}, {one.began} to {one.ended} ({one.lasted_s:.1f} s)"
    yield f"  inputs {one.inputs}, Commands {one.commands}, answers {one.answers}, differences {differences}"
    yield from map(_difference, one.differences[:SHOWN])
    if differences > SHOWN:
        yield f"  and {differences - SHOWN} more; -o json shows them"
    if one.end:
        yield f"  the recording ends because {plain(one.end)}"


def _difference(found: Difference) -> str:
    recorded = orjson.dumps(found.recorded).decode() if found.recorded else "nothing"
    replayed = orjson.dumps(found.replayed).decode() if found.replayed else "nothing"
    return f"  {found.at}, line {found.line}\n    recorded  {recorded}\n    replayed  {replayed}"


# The state ------------------------------------------------------------------------------------------------------------


def _state(then: PastState, width: int) -> Iterator[str]:
    if then.undecided:
        yield folded([f"Nothing was decided at {then.at}: {then.undecided}"], width)
    yield f"Waiting at {then.at}: {_counted(then.waiting, 'PodGroup')}"
    if then.waiting:
        yield _waiting(then.waiting[:LISTED]).drawn(width)
    yield f"Reserved: {_counted(then.reservations, 'place')}"
    if then.reservations:
        yield _reservations(then).drawn(width)
    queues = [each.model_dump(by_alias=True) for each in then.queues]
    yield queues_table(queues, "gpu", width=width)


def _waiting(groups: Sequence[PodGroupAnswer]) -> Table:
    lines = Table("PODGROUP", "QUEUE", ">PODS", "WHY")
    for group in groups:
        why = NOTHING if group.why is None else f"{group.why.reason}: {group.why.sentence}"
        lines.add(f"{group.namespace}/{group.name}", group.queue or NOTHING, f"{group.pending_pods}", why)
    return lines


def _reservations(then: PastState) -> Table:
    lines = Table("POD", "PODGROUP", "NODE", "STATE")
    for held in then.reservations[:LISTED]:
        node = f"{held.node} {', '.join(held.devices)}".rstrip()
        lines.add(f"{held.namespace}/{held.pod}", held.pod_group, node, held.state)
    return lines


def _counted(things: Sequence[object], noun: str) -> str:
    count = len(things)
    more = f", of which {LISTED} are shown; -o json shows all" if count > LISTED else ""
    return f"{count or 'no'} {noun}{'s' * (count != 1)}{more}"
