"""`leeboard pending`: the PodGroups that wait, and why."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from app.cli.asking import Reach, reaching, readable
from app.cli.drawing import USUAL, Look, Table
from app.cli.naming import queue_names
from app.cli.object_answers import waiting_groups
from app.cli.output import Printout, Style, show, styled
from app.cli.queue_tables import NOTHING

PATH = "/api/v1/podgroups"
HIDDEN = "(hidden)"
"""The namespace of a PodGroup that the caller may not see."""


@click.command
@click.option("-n", "--namespace", help="Only this namespace. [default: that of the context]")
@click.option("-A", "--all-namespaces", is_flag=True, help="All namespaces; what you may not see has no name.")
@click.option("-q", "--queue", shell_complete=queue_names, help="Only this queue.")
@reaching
@styled("wide")
def pending(namespace: str | None, all_namespaces: bool, queue: str | None, reach: Reach, style: Style) -> None:  # noqa: FBT001 - a flag of the command line
    """List the PodGroups that wait, and why.

    A pod without a PodGroup is a line of its own. A long sentence is cut: -o wide shows it whole, and `leeboard why`
    says more about one PodGroup.
    """
    within = "" if all_namespaces else reach.namespace(namespace)
    show(lambda: _page(reach, within, queue, style), style)


def _page(reach: Reach, namespace: str, queue: str | None, style: Style) -> Printout:
    known, _ = reach.ask_both(PATH, lambda cluster: waiting_groups(cluster, namespace))
    with readable():
        items = [
            each for each in known["items"] if namespace in {"", each["namespace"]} and queue in {None, each["queue"]}
        ]
        where = f"in namespace {namespace}" if namespace else "in any namespace"
        empty = "" if items else f"No PodGroup waits {where}{f' in queue {queue}' if queue else ''}."
        return Printout(
            document={**known, "items": items},
            names=[f"podgroup.scheduling.run.ai/{each['name']}" for each in items if each["namespace"]],
            picture=lambda width: pending_table(items, width=width, look=style.look) if items else "",
            note=" ".join(filter(None, (empty, known.get("incomplete")))),
        )


def pending_table(items: Sequence[Mapping[str, Any]], *, width: int, look: Look = USUAL) -> str:
    """Return one line for each PodGroup; only a wide table has the whole sentence."""
    more = (">PRIORITY", ">MIN", ">RUNNING") if look.is_wide else ()
    why_heading = "WHY" if look.is_wide else "-WHY"
    lines = Table("NAMESPACE", "NAME", "QUEUE", ">PODS", *more, why_heading, has_headings=look.has_headings)
    for each in items:
        why = each["why"]
        said = NOTHING if why is None else f"{why['reason']}: {why['sentence']}"
        priority = NOTHING if each["priority"] is None else f"{each['priority']}"
        wide = (priority, f"{each['minMember']}", f"{each['activePods']}") if look.is_wide else ()
        name = (each["namespace"] or HIDDEN, each["name"], each["queue"] or NOTHING)
        lines.add(*name, f"{each['pendingPods']}", *wide, said)
    return lines.drawn(width)
