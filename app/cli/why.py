"""`leeboard why`: explains why a pod or a PodGroup waits, runs or is gone."""

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote, urlencode

import click
from pydantic import ValidationError

from app.cli.asking import NotFoundAnswer, Service, service_options
from app.cli.options import read_settings
from app.cli.why_tables import answer_picture
from app.web.why_answers import ExplanationAnswer

PATH = "/api/v1/why"

DEFAULT_NAMESPACE = "default"

WORKLOAD = "workload"

KINDS = {"pod": "pod", "pods": "pod", "po": "pod", "podgroup": "podgroup", "podgroups": "podgroup", "pg": "podgroup"}
"""The names that users write for a kind, and the service's name for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
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
@click.argument("target")
@click.option("-n", "--namespace", help=f"Its namespace. [default: {DEFAULT_NAMESPACE}]")
@service_options
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def why(target: str, namespace: str | None, url: str | None, token: str | None, output: str) -> None:
    """Say why a pod or a PodGroup waits, runs or is gone.

    TARGET is NAME, pod/NAME, podgroup/NAME, NAMESPACE/NAME or KIND/NAME of a workload, such as job/NAME. A NAME that
    several objects have means the pod first, then the PodGroup. Pods that were evicted recently are found too.
    """
    asked = _targets(target, namespace)
    service = Service(read_settings(), url=url, token=token)
    answer = asyncio.run(_first_answer(service, asked))
    if output == "json":
        click.echo(answer)
        return
    width = shutil.get_terminal_size().columns
    click.echo(answer_picture(_read(answer), width=width, now=datetime.now(UTC)))


async def _first_answer(service: Service, asked: Sequence[_Target]) -> bytes:
    unknown = ""
    for target in asked:
        try:
            return await service.ask(target.path)
        except NotFoundAnswer as error:
            # Without the API path at the start of the message, which means nothing to a user.
            unknown = unknown or error.message.partition(": ")[2] or error.message
    raise click.ClickException(unknown)


def _targets(target: str, namespace: str | None) -> Sequence[_Target]:
    """Return the possible targets, the most likely first: NAMESPACE/NAME and KIND/NAME look alike."""
    before, slash, name = target.partition("/")
    here = namespace or DEFAULT_NAMESPACE
    if target and not slash:
        return [_Target(namespace=here, name=target)]
    # The form of `kubectl get -o name`: podgroup.scheduling.run.ai/train.
    kind = KINDS.get(before.partition(".")[0].lower())
    if not before or not name or "/" in name:
        raise click.UsageError(f"TARGET is NAME, pod/NAME, podgroup/NAME, NAMESPACE/NAME or KIND/NAME, not {target!r}")
    if kind is not None:
        return [_Target(namespace=here, name=name, kind=kind)]
    workload = _Target(namespace=here, name=name, kind=WORKLOAD)
    # A namespace has no dot, a kind may: job.batch/train.
    if "." in before or namespace not in {None, before}:
        return [workload]
    return [_Target(namespace=before, name=name), workload]


def _read(answer: bytes) -> ExplanationAnswer:
    try:
        return ExplanationAnswer.model_validate_json(answer)
    except ValidationError as error:
        raise click.ClickException(
            "the answer cannot be read; does the service have the same version as this command?"
        ) from error
