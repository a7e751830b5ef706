"""`leeboard gpus`: the GPUs of the cluster or of one node, the pods on them, and the links between them."""

import asyncio
import shutil
from typing import TypeVar
from urllib.parse import quote

import click
from pydantic import BaseModel, ValidationError

from app.cli.asking import NotFoundAnswer, Service, service_options
from app.cli.findings import few
from app.cli.gpu_tables import node_picture, nodes_table
from app.cli.options import read_settings
from app.web.gpu_answers import GpuNodeDetail, GpuNodeList

PATH = "/api/v1/gpus"

MOST_NAMES = 20

T = TypeVar("T", bound=BaseModel)


@click.command
@click.argument("node", required=False)
@service_options
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def gpus(node: str | None, url: str | None, token: str | None, output: str) -> None:
    """Show the GPUs, the pods on them and how full they are.

    Without NODE: one line for each node. With NODE: its devices, their pods and the links between devices. Memory is in
    GiB: used memory as measured on the node, and memory that is reserved for pods.
    """
    service = Service(read_settings(), url=url, token=token)
    width = shutil.get_terminal_size().columns
    if node is None:
        answer = asyncio.run(service.ask(PATH))
        text = answer.decode() if output == "json" else nodes_table(_read(GpuNodeList, answer), width=width)
    else:
        answer = asyncio.run(_of_node(service, node))
        text = answer.decode() if output == "json" else node_picture(_read(GpuNodeDetail, answer), width=width)
    click.echo(text)


async def _of_node(service: Service, node: str) -> bytes:
    try:
        return await service.ask(f"{PATH}/{quote(node, safe='')}")
    except NotFoundAnswer:
        known = [each.name for each in _read(GpuNodeList, await service.ask(PATH)).items]
        names = f"there are {few(known, MOST_NAMES)}" if known else "there are none"
        raise click.ClickException(f"no agent reports GPUs on a node {node!r}; {names}") from None


def _read(kind: type[T], answer: bytes) -> T:
    try:
        return kind.model_validate_json(answer)
    except ValidationError as error:
        raise click.ClickException(
            "the answer cannot be read; does the service have the same version as this command?"
        ) from error
