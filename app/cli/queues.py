"""`leeboard queues`: the tree of queues, with what each deserves, may have, holds and requests."""

import asyncio
import shutil

import click
from pydantic import ValidationError

from app.cli.asking import Service, service_options
from app.cli.findings import few
from app.cli.options import read_settings
from app.cli.queue_tables import RESOURCES, queues_table, subtree
from app.web.answers import QueueList

PATH = "/api/v1/queues"

MOST_NAMES = 20


@click.command
@click.argument("name", required=False)
@click.option(
    "-r", "--resource", type=click.Choice(list(RESOURCES)), default="gpu", show_default=True, help="What to count."
)
@service_options
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def queues(name: str | None, resource: str, url: str | None, token: str | None, output: str) -> None:
    """Show the tree of queues: what each deserves, holds and requests.

    With NAME: only that queue and its descendants. A queue's numbers include its descendants. WAIT counts PodGroups.
    """
    service = Service(read_settings(), url=url, token=token)
    answer = asyncio.run(service.ask(PATH))
    if output == "json" and name is None:
        click.echo(answer)
        return
    shown = _read(answer)
    if name is not None:
        shown = _below(shown, name)
    width = shutil.get_terminal_size().columns
    click.echo(shown.model_dump_json(by_alias=True) if output == "json" else queues_table(shown, resource, width=width))


def _below(known: QueueList, name: str) -> QueueList:
    found = subtree(known, name)
    if not found.items:
        names = [each.name for each in known.items]
        there = f"there are {few(names, MOST_NAMES)}" if names else "there are none"
        raise click.ClickException(f"no queue {name!r} is known; {there}")
    return found


def _read(answer: bytes) -> QueueList:
    try:
        return QueueList.model_validate_json(answer)
    except ValidationError as error:
        raise click.ClickException(
            "the answer cannot be read; does the service have the same version as this command?"
        ) from error
