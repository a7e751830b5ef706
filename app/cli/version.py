"""`leeboard version`: the versions of this command, of the service and of Kubernetes."""

import json
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from typing import Any

import click

from app.cli.asking import Reach, reaching
from app.client.reach_errors import NoSuchObjectError, ReachError


@click.command
@click.option("--client", "is_client_only", is_flag=True, help="Print only the version of this command.")
@reaching
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Format.")
def version(is_client_only: bool, reach: Reach, output: str) -> None:  # noqa: FBT001 - a flag of the command line
    """Show the versions of this command, of the service and of Kubernetes.

    Ends with 1 when the service does not say its version.
    """
    found: dict[str, str | None] = {"client": own_version()}
    notes = []
    if not is_client_only:
        for name, ask in (("server", _of_service), ("kubernetes", _of_kubernetes)):
            try:
                found[name] = ask(reach)
            except ReachError as error:
                found[name] = None
                notes.append(f"{name}: {error}")
    click.echo(json.dumps(found, indent=2) if output == "json" else _text(found))
    for note in notes:
        click.echo(note, err=True)
    if notes and found["server"] is None:
        raise SystemExit(1)


def own_version() -> str:
    """Return the version of this package; `unknown` where it is not installed."""
    try:
        return installed("leeboard")
    except PackageNotFoundError:
        return "unknown"


def _of_service(reach: Reach) -> str:
    try:
        return _version(reach.ask("/version"))
    except NoSuchObjectError:
        return "does not say; it is older than this command"


def _of_kubernetes(reach: Reach) -> str | None:
    return _version(reach.cluster.get("/version")) if reach.cluster is not None else None


def _version(answer: Any) -> str:
    found = answer.get("version") or answer.get("gitVersion") if isinstance(answer, dict) else None
    return str(found or "unknown")


def _text(found: dict[str, str | None]) -> str:
    width = max(map(len, found))
    return "\n".join(f"{name:{width}}  {said}" for name, said in found.items() if said is not None)
