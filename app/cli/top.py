"""`leeboard top`: a live screen of the GPUs, the queues and what waits."""

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import click

from app.cli import gpus, pending, queues
from app.cli.asking import Reach, reaching, readable
from app.cli.drawing import folded
from app.cli.interrupts import until_interrupted
from app.cli.output import EVERY_S, Screen, width
from app.cli.queue_tables import queues_table
from app.client.reach_errors import ReachError

FEW_LINES = 3
"""A part of the screen with fewer lines would say nothing."""
USUAL_COLUMNS, USUAL_LINES = 80, 24
TITLE_LINES = 3
"""The title, the line below it, and the last line of the terminal, which stays empty."""
NO_ONE_WAITS = "Nothing waits."


@click.command
@click.option(
    "-r",
    "--resource",
    type=click.Choice(["gpu", "cpu", "memory"]),
    default="gpu",
    show_default=True,
    help="What to count.",
)
@click.option("--once", is_flag=True, help="Print it once. [default where the output is not a terminal]")
@reaching
def top(resource: str, once: bool, reach: Reach) -> None:  # noqa: FBT001 - a flag of the command line
    """Show a live screen: the GPUs, the queues and what waits.

    It asks every two seconds. Ctrl-C ends it.
    """
    facts = facts_of(reach)
    if once or not sys.stdout.isatty():
        click.echo(screen(facts, resource, width=width(), height=None))
        return
    with until_interrupted(), Screen() as shown:
        live(shown, facts, lambda: facts_of(reach), resource)


def live(shown: Screen, facts: "Facts", ask: Callable[[], "Facts"], resource: str) -> None:
    """Redraw the screen until Ctrl-C. While nothing answers, the last answer stays, and says how old it is."""
    title = f"leeboard top, {time.strftime('%H:%M:%S')}"
    while True:
        size = os.get_terminal_size(sys.stdout.fileno())
        # A terminal that does not know its size says 0.
        columns, lines = size.columns or USUAL_COLUMNS, size.lines or USUAL_LINES
        shown.draw(screen(facts, resource, width=columns, height=lines - TITLE_LINES), title)
        time.sleep(EVERY_S)
        try:
            facts, title = ask(), f"leeboard top, {time.strftime('%H:%M:%S')}"
        except (ReachError, click.ClickException) as error:
            said = error.message if isinstance(error, click.ClickException) else str(error)
            title = f"{title.partition(' (')[0]} (no answer since: {said})"


Facts = Mapping[str, Any]
"""The answers to three questions: `queues`, `waiting` and `nodes`, or why there is none."""


def facts_of(reach: Reach) -> Facts:
    """Ask for everything; raise `ReachError` when the first question has no answer."""
    waiting = reach.ask(pending.PATH)
    found = {"waiting": waiting["items"]}
    for name, path in (("queues", queues.PATH), ("nodes", gpus.PATH)):
        try:
            found[name] = reach.ask(path)["items"]
        except ReachError as error:
            # A user may see PodGroups and no queues.
            found[name] = str(error)
    return found


def screen(facts: Facts, resource: str, *, width: int, height: int | None) -> str:
    """Return the text; within a height the lists are cut, and say so."""
    with readable():
        parts = [
            _gpus(facts["nodes"], width),
            _refusal(facts["queues"], width)
            or queues_table(facts["queues"], resource, width=width).partition("\n\n")[0],
            pending.pending_table(facts["waiting"], width=width) if facts["waiting"] else NO_ONE_WAITS,
        ]
    if height is None:
        return "\n\n".join(parts)
    queues_lines, waiting_lines = parts[1].split("\n"), parts[2].split("\n")
    room = max(2 * FEW_LINES, height - parts[0].count("\n") - 3)
    for_queues = max(room - len(waiting_lines), room // 2)
    cut = [_cut(queues_lines, for_queues), _cut(waiting_lines, room - min(len(queues_lines), for_queues))]
    return "\n\n".join([parts[0], *cut])


def _gpus(nodes: Any, width: int) -> str:
    if refused := _refusal(nodes, width):
        return refused
    devices = [device for node in nodes for device in node["devices"]]
    free = sum(device["free"] for device in devices)
    reserved = sum(held["devices"] for node in nodes for held in node["reserved"])
    sick = sum(device["health"] != "Healthy" for device in devices)
    whole = max((sum(device["free"] for device in node["devices"]) for node in nodes), default=0)
    largest = f"; at most {whole} free on one node" if free else ""
    where = f"{len(devices)} GPUs on {len(nodes)} node{'s' * (len(nodes) != 1)}"
    return folded([f"{where}: {free} free, {reserved} reserved, {sick} not healthy{largest}"], width)


def _refusal(answer: Any, width: int) -> str:
    return folded([answer], width) if isinstance(answer, str) else ""


def _cut(lines: list[str], most: int) -> str:
    if len(lines) <= most:
        return "\n".join(lines)
    return "\n".join([*lines[: most - 1], f"and {len(lines) - most + 1} more lines"])
