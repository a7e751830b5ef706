"""`leeboard gpus`: the GPUs of the cluster or of one node, the pods on them, and the links between them."""

from typing import Any
from urllib.parse import quote

import click

from app.cli.asking import Reach, reaching, readable
from app.cli.drawing import few
from app.cli.gpu_tables import node_picture, nodes_table
from app.cli.naming import node_names
from app.cli.output import Printout, Style, like, show, styled
from app.client.reach_errors import NoSuchObjectError

PATH = "/api/v1/gpus"

MOST_NAMES = 20


@click.command
@click.argument("node", required=False, shell_complete=node_names)
@reaching
@styled("wide")
def gpus(node: str | None, reach: Reach, style: Style) -> None:
    """Show the GPUs, the pods on them and how full they are.

    Without NODE: one line for each node. With NODE: its devices, their pods and the links between devices. Memory is in
    GiB: used memory as measured on the node, and memory that is reserved for pods.
    """
    show(lambda: _all(reach, style) if node is None else _one(reach, node), style)


def _all(reach: Reach, style: Style) -> Printout:
    answer = reach.ask(PATH)
    with readable():
        return Printout(
            document=answer,
            names=[_named(each) for each in answer["items"]],
            picture=lambda width: nodes_table(answer, width=width, look=style.look),
        )


def _one(reach: Reach, node: str) -> Printout:
    try:
        answer = reach.ask(f"{PATH}/{quote(node, safe='')}")
    except NoSuchObjectError:
        with readable():
            known = [each["name"] for each in reach.ask(PATH)["items"]]
        names = f"there are {few(known, MOST_NAMES)}" if known else "there are none"
        raise NoSuchObjectError(f"no agent reports GPUs on a node {node!r}; {names}{like(node, known)}") from None
    with readable():
        return Printout(
            document=answer, names=[_named(answer)], picture=lambda width: node_picture(answer, width=width)
        )


def _named(node: Any) -> str:
    return f"gpunode.leeboard.dev/{node['name']}"
