"""`leeboard queues`: the tree of queues, with what each deserves, may have, holds and requests."""

from collections.abc import Mapping
from typing import Any

import click

from app.cli.asking import Reach, reaching, readable
from app.cli.drawing import few
from app.cli.naming import queue_names
from app.cli.output import Printout, Style, like, show, styled
from app.cli.queue_objects import queue_list
from app.cli.queue_tables import RESOURCES, queues_table, subtree
from app.client.reach_errors import NoSuchObjectError

PATH = "/api/v1/queues"

MOST_NAMES = 20


@click.command
@click.argument("name", required=False, shell_complete=queue_names)
@click.option(
    "-r", "--resource", type=click.Choice(list(RESOURCES)), default="gpu", show_default=True, help="What to count."
)
@reaching
@styled("wide")
def queues(name: str | None, resource: str, reach: Reach, style: Style) -> None:
    """Show the tree of queues: what each deserves, holds and requests.

    With NAME: only that queue and its descendants. A queue's numbers include its descendants. WAIT counts PodGroups.

    The status of the Queue objects answers first, with your own rights; the service adds WAIT.
    """
    show(lambda: _page(reach, name, resource, style), style)


def _page(reach: Reach, name: str | None, resource: str, style: Style) -> Printout:
    known, _ = reach.ask_both(PATH, queue_list)
    with readable():
        shown = known if name is None else _below(known, name)
        return Printout(
            document=shown,
            names=[f"queue.scheduling.run.ai/{each['name']}" for each in shown["items"]],
            picture=lambda width: queues_table(shown["items"], resource, width=width, look=style.look),
            note=known.get("incomplete") or "",
        )


def _below(known: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = subtree(known["items"], name)
    if not found:
        names = [each["name"] for each in known["items"]]
        there = f"there are {few(names, MOST_NAMES)}" if names else "there are none"
        raise NoSuchObjectError(f"no queue {name!r} is known; {there}{like(name, names)}")
    return {**known, "items": found}
