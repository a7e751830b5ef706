"""`leeboard why`: explains why a pod or a PodGroup waits, runs or is gone."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

import click

from app.cli.asking import Reach, namespace_option, reaching, readable
from app.cli.naming import workload_names
from app.cli.object_answers import explained, names_like
from app.cli.output import Printout, Style, show, styled
from app.cli.why_tables import answer_picture
from app.client.reach_errors import NoSuchObjectError, UnansweredError

PATH = "/api/v1/why"

WORKLOAD = "workload"

KINDS = {"pod": "pod", "pods": "pod", "po": "pod", "podgroup": "podgroup", "podgroups": "podgroup", "pg": "podgroup"}
"""The names that users write for a kind, and the service's name for it."""

RESOURCES = {"PodExplanation": "pod", "PodGroupExplanation": "podgroup.scheduling.run.ai"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The object in question."""

    namespace: str
    name: str
    kind: str = ""

    @property
    def path(self) -> str:
        """The API path of the question."""
        query = f"?{urlencode({'kind': self.kind})}" if self.kind else ""
        return f"{PATH}/{quote(self.namespace, safe='')}/{quote(self.name, safe='')}{query}"


@click.command
@click.argument("target", shell_complete=workload_names)
@namespace_option
@reaching
@styled()
def why(target: str, namespace: str | None, reach: Reach, style: Style) -> None:
    """Say why a pod or a PodGroup waits, runs or is gone.

    TARGET is NAME, pod/NAME, podgroup/NAME, NAMESPACE/NAME or KIND/NAME of a workload, such as job/NAME. A NAME that
    several objects have means the pod first, then the PodGroup. Pods that were evicted recently are found too.

    Kubernetes objects answer first, with your own rights; the service adds the position, numbers and decisions.
    """
    asked = targets(target, namespace, reach)
    show(lambda: _page(explain(reach, asked)), style)


def explain(reach: Reach, asked: Sequence[Asked]) -> Any:
    """Return the answer about the first of these targets that exists; raise `ReachError`."""
    unknown: NoSuchObjectError | None = None
    unanswered: UnansweredError | None = None
    for target in asked:
        try:
            return _explained(reach, target)
        except NoSuchObjectError as error:
            unknown = unknown or error
        except UnansweredError as error:
            unanswered = unanswered or error
    if unanswered is not None:
        raise unanswered
    first = asked[0]
    hint = names_like(reach.cluster, first.namespace, first.name) if reach.cluster is not None else ""
    raise NoSuchObjectError(f"{unknown}{hint}")


def _explained(reach: Reach, target: Asked) -> Any:
    told, of_objects = reach.ask_both(
        target.path, lambda cluster: explained(cluster, target.namespace, target.name, target.kind)
    )
    if of_objects is not None and told.get("kind"):
        told["events"] = of_objects["events"]
    return told


def _page(told: Any) -> Printout:
    now = datetime.now(UTC)

    def picture(width: int) -> str:
        with readable():
            return answer_picture(told, width=width, now=now)

    with readable():
        name = f"{RESOURCES.get(told['kind'], WORKLOAD)}/{told['name']}"
        return Printout(document=told, names=[name], picture=picture, note=told.get("incomplete") or "")


def targets(target: str, namespace: str | None, reach: Reach) -> Sequence[Asked]:
    """Return the possible targets, the most likely first: NAMESPACE/NAME and KIND/NAME look alike."""
    before, slash, name = target.partition("/")
    if target and not slash:
        return [Asked(namespace=reach.namespace(namespace), name=target)]
    # The form of `kubectl get -o name`: podgroup.scheduling.run.ai/train.
    kind = KINDS.get(before.partition(".")[0].lower())
    if not before or not name or "/" in name:
        raise click.UsageError(f"TARGET is NAME, pod/NAME, podgroup/NAME, NAMESPACE/NAME or KIND/NAME, not {target!r}")
    here = reach.namespace(namespace)
    if kind is not None:
        return [Asked(namespace=here, name=name, kind=kind)]
    workload = Asked(namespace=here, name=name, kind=WORKLOAD)
    # A namespace has no dot, a kind may: job.batch/train.
    if "." in before or namespace not in {None, before}:
        return [workload]
    return [Asked(namespace=before, name=name), workload]
