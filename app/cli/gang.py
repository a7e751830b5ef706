"""`leeboard gang`: every pod of a PodGroup, where it is, and what the PodGroup waits for."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import click

from app.cli.asking import Reach, namespace_option, reaching, readable
from app.cli.drawing import USUAL, Look, Table, folded
from app.cli.naming import workload_names
from app.cli.object_answers import pod_member, pods_of_group
from app.cli.output import Printout, Style, show, styled
from app.cli.queue_tables import NOTHING
from app.cli.why import KINDS, Asked, explain
from app.cli.why_tables import ago
from app.client.reach_errors import NoSuchObjectError, ReachError

GROUP = "podgroup"
FORMS = "write NAME, podgroup/NAME or NAMESPACE/NAME of a PodGroup"
WHY_KNOWS = "`leeboard why {0}` names the PodGroup of a pod or a workload"


@click.command
@click.argument("name", shell_complete=workload_names)
@namespace_option
@reaching
@styled("wide")
def gang(name: str, namespace: str | None, reach: Reach, style: Style) -> None:
    """Show every pod of a PodGroup: its state, its node, and how many are missing.

    NAME is a PodGroup: NAME, podgroup/NAME or NAMESPACE/NAME.
    """
    target = _target(name, namespace, reach)
    show(lambda: _page(reach, target, name, style), style)


def _target(written: str, namespace: str | None, reach: Reach) -> Asked:
    """Return the PodGroup that is meant; raise `click.UsageError` for what cannot be one."""
    before, slash, name = written.partition("/")
    if not slash:
        before, name = "", written
    if not name or "/" in name or (slash and not before):
        raise click.UsageError(f"{FORMS}, not {written!r}")
    kind = KINDS.get(before.partition(".")[0].lower())
    if kind == GROUP or not before:
        return Asked(namespace=reach.namespace(namespace), name=name, kind=GROUP)
    # A namespace has no dot, a kind may: job.batch/train.
    if kind is not None or "." in before:
        raise click.UsageError(f"{FORMS}, not {written!r}; {WHY_KNOWS.format(written)}")
    if namespace not in {None, before}:
        raise click.UsageError(f"{FORMS}: {written!r} is in namespace {before}, and -n names {namespace}")
    return Asked(namespace=before, name=name, kind=GROUP)


def _explained(reach: Reach, target: Asked, written: str) -> Any:
    try:
        return explain(reach, [target])
    except NoSuchObjectError as error:
        if written != f"{target.namespace}/{target.name}":
            raise
        # What was meant as a kind has been read as a namespace.
        raise NoSuchObjectError(f"{error}; {FORMS}; {WHY_KNOWS.format(written)}") from error


def _page(reach: Reach, target: Asked, written: str, style: Style) -> Printout:
    told = _explained(reach, target, written)
    now = datetime.now(UTC)
    with readable():
        told["members"] = _members(reach, told)
        return Printout(
            document=told,
            names=[f"pod/{each['name']}" for each in told["members"]],
            picture=lambda width: gang_picture(told, width=width, now=now, look=style.look),
            note=told.get("incomplete") or "",
        )


def _members(reach: Reach, told: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the members that the service names, and those that name their PodGroup themselves."""
    members = {each["name"]: dict(each) for each in told["members"]}
    if reach.cluster is not None:
        with suppress(ReachError):
            for pod in map(pod_member, pods_of_group(reach.cluster, told["namespace"], told["name"])):
                members[pod["name"]] = pod | members.get(pod["name"], {})
    return [members[name] for name in sorted(members, key=lambda name: (len(name), name))]


def gang_picture(told: Mapping[str, Any], *, width: int, now: datetime, look: Look = USUAL) -> str:
    """Return the sentence of the PodGroup, and a line for each pod."""
    known, least = sum(told["podsByState"].values()), told["minMember"] or 1
    counts = ", ".join(f"{count} {state}" for state, count in told["podsByState"].items()) or "no pods"
    missing = f", {least - known} missing" if known < least else ""
    title = f"{told['namespace']}/{told['name']}: {counts}; {least} start together{missing}"
    more = ("PHASE", ">AGE") if look.is_wide else ()
    lines = Table("POD", "STATE", "NODE", *more, has_headings=look.has_headings)
    for each in told["members"]:
        wide = (each.get("phase") or NOTHING, ago(each.get("createdAt"), now)) if look.is_wide else ()
        lines.add(each["name"], each["state"], each["node"] or NOTHING, *wide)
    rest = known - len(told["members"])
    parts = [
        folded([told["why"]["sentence"], title], width) if look.has_headings else "",
        lines.drawn(width) if told["members"] else "",
        f"and {rest} more" if rest > 0 and look.has_headings else "",
    ]
    return "\n\n".join(filter(None, parts))
