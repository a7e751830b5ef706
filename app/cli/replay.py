"""`leeboard replay`: repeats what a recording shows, and says where this version acts differently."""

from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import click
import orjson
import structlog

from app.recording.lines import UnreadableLineError
from app.recording.reader import NoRecordingError, recordings
from app.service.replay import Difference, Replay, Replayed

SHOWN = 5
"""So many differences are printed as text; `-o json` has all."""


class WallTime(click.ParamType[float]):
    """An RFC 3339 time, as seconds since the epoch. A time without a zone is UTC."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the time."""
        if isinstance(value, float):
            return value
        try:
            read = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a time such as 2026-01-31T09:30:00Z", param, ctx)
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()


@click.command
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--until", type=WallTime(), help="Stop at this time, such as 2026-01-31T09:30:00Z.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def replay(folder: Path, until: float | None, output: str) -> None:
    """Replay the recordings in DIR, and compare every Command and answer with the recorded one.

    A service with LEEBOARD_RECORD_DIR writes recordings. DIR is that folder, or one recording in it. A replay contacts
    no cluster. Exit code 1 means that something differs, or that a recording cannot be read.
    """
    structlog.configure(processors=[_drop])
    try:
        results = [_replayed(one, until) for one in recordings(folder)]
    except (NoRecordingError, UnreadableLineError) as error:
        raise click.ClickException(str(error)) from None
    if output == "json":
        click.echo(orjson.dumps(results, option=orjson.OPT_INDENT_2))
    else:
        for one in results:
            _print(one)
    if any(one.differences for one in results):
        raise click.exceptions.Exit(1)


def _drop(_logger: object, _method: str, _event: object) -> NoReturn:
    """Leave out what the replayed service logs: it is not what happens now."""
    raise structlog.DropEvent


def _replayed(recording: Path, until: float | None) -> Replayed:
    replay = Replay(recording)
    try:
        return replay.run(until)
    finally:
        replay.close()


def _print(one: Replayed) -> None:
    differences = len(one.differences)
    click.echo(f"{one.recording}: version {one.version}, {one.began} to {one.ended} ({one.lasted_s:.1f} s)")
    click.echo(f"  inputs {one.inputs}, Commands {one.commands}, answers {one.answers}, differences {differences}")
    for difference in one.differences[:SHOWN]:
        click.echo(_text(difference))
    if differences > SHOWN:
        click.echo(f"  and {differences - SHOWN} more; -o json shows them")
    if one.end:
        click.echo(f"  the recording ends because {one.end}")


def _text(difference: Difference) -> str:
    recorded = orjson.dumps(difference.recorded).decode() if difference.recorded else "nothing"
    replayed = orjson.dumps(difference.replayed).decode() if difference.replayed else "nothing"
    return f"  {difference.at}, line {difference.line}\n    recorded  {recorded}\n    replayed  {replayed}"
