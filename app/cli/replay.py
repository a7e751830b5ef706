"""`leeboard replay`: repeats what a recording shows, and says where this version acts differently."""

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import click
import orjson
import structlog
from pydantic import BaseModel

from app.cli.replay_tables import replayed_picture
from app.recording.lines import UnreadableLineError
from app.recording.reader import NoRecordingError, recording_at, recordings
from app.service.replay import Replay, Replayed


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
@click.option("--until", type=WallTime(), help="Stop at this time, and show what waited then, and why.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def replay(folder: Path, until: float | None, output: str) -> None:
    """Repeat what a recording shows, and say what differs.

    A service with LEEBOARD_RECORD_DIR writes recordings. DIR is that folder, or one recording in it. Every Command and
    answer is compared with the recorded one. A replay contacts no cluster. With --until 2026-01-31T09:30:00Z, only the
    recording of that time is replayed, and the waiting PodGroups, the reservations and the queues of that time are
    shown. Exit code 1 means that something differs, or that a recording cannot be read.
    """
    structlog.configure(processors=[_drop])
    try:
        found = recordings(folder) if until is None else [recording_at(folder, until)]
        results = [_replayed(one, until) for one in found]
    except (NoRecordingError, UnreadableLineError, OSError) as error:
        raise click.ClickException(str(error)) from None
    if output == "json":
        click.echo(orjson.dumps(results, default=BaseModel.model_dump, option=orjson.OPT_INDENT_2))
    else:
        width = shutil.get_terminal_size().columns
        click.echo("\n\n".join(replayed_picture(one, width=width) for one in results))
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
