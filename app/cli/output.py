"""How an answer is printed: as text, JSON, YAML or names, once, or again whenever it changes."""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from types import TracebackType
from typing import Any, Self, TypeVar

import click

from app.cli.drawing import Look
from app.cli.interrupts import until_interrupted
from app.client.reach_errors import ReachError
from app.model.spelling import KnownNames

Command = TypeVar("Command", bound=Callable[..., None])

EVERY_S = 2.0
"""How often a command with --watch asks."""

UNFOLDED = 10_000
"""The width of text that another program reads."""

HOME, CLEAR_LINE, CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""A screen of its own without a cursor, and back to what was there before."""
REVERSE, USUAL_COLOUR = "\x1b[7m", "\x1b[0m"


@dataclass(frozen=True, slots=True, kw_only=True)
class Printout:
    """One answer in every form."""

    document: Any
    """For `json` and `yaml`."""
    names: Sequence[str]
    """For `name`, in the form of `kubectl get -o name`."""
    picture: Callable[[int], str]
    """Draws the text within a width."""
    note: str = ""
    """What the reader has to know about the answer; written to stderr."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """The options that say how an answer is printed."""

    output: str
    no_headers: bool = False
    watch: bool = False

    @property
    def look(self) -> Look:
        """How much a table shows."""
        return Look(is_wide=self.output == "wide", has_headings=not self.no_headers)


def styled(*formats: str) -> Callable[[Command], Command]:
    """Add `-o` with text, these formats, JSON and YAML, `--no-headers` and `-w`. The command gets `style`."""

    def decorate(command: Command) -> Command:
        @wraps(command)
        def with_style(*, output: str, watch: bool, no_headers: bool, **options: Any) -> None:
            command(style=Style(output=output, watch=watch, no_headers=no_headers), **options)

        choice = click.Choice(["text", *formats, "json", "yaml", "name"])
        decorated: Callable[..., None] = with_style
        for option in (
            click.option("-w", "--watch", is_flag=True, help="Ask again and again, and show what has changed."),
            click.option("--no-headers", is_flag=True, help="Leave out headings and notes."),
            click.option("-o", "--output", type=choice, default="text", show_default=True, help="Format."),
        ):
            decorated = option(decorated)
        return decorated  # type: ignore[return-value] # it is called by click

    return decorate


def wait(seconds: float) -> None:
    """Pause between two questions."""
    time.sleep(seconds)


def show(ask: Callable[[], Printout], style: Style) -> None:
    """Print an answer; with --watch, print it again whenever it changes, until Ctrl-C."""
    page = ask()
    if not style.watch:
        _note(page.note)
        _print(text_of(page, style))
        return
    with until_interrupted():
        _follow(page, ask, style)


def text_of(page: Printout, style: Style) -> str:
    """Return the answer in the chosen form."""
    if style.output == "json":
        indent = None if style.watch else 2
        return json.dumps(page.document, indent=indent, ensure_ascii=False)
    if style.output == "yaml":
        import yaml  # noqa: PLC0415 # the kubeconfig may be absent

        text: str = yaml.safe_dump(page.document, sort_keys=False, allow_unicode=True, explicit_start=style.watch)
        return text.rstrip("\n")
    if style.output == "name":
        return "\n".join(page.names)
    return page.picture(width())


def width() -> int:
    """Return the width for text: COLUMNS, else that of the terminal; no limit for another program."""
    given = os.environ.get("COLUMNS", "")
    if given.isascii() and given.isdigit() and int(given):
        return int(given)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or UNFOLDED
    except (OSError, ValueError):
        return UNFOLDED


def _follow(page: Printout, ask: Callable[[], Printout], style: Style) -> None:
    shown = None
    redraws = style.output in {"text", "wide"} and sys.stdout.isatty()
    while True:
        text = text_of(page, style)
        if redraws:
            click.echo(frame("\n\n".join(filter(None, (text, page.note)))), nl=False)
        elif text != shown:
            _note(page.note)
            _print(text)
        shown = text
        wait(EVERY_S)
        page = _asked_again(ask, page)


def frame(text: str) -> str:
    """Return what redraws the screen with a text, without flicker."""
    return HOME + "".join(f"{line}{CLEAR_LINE}\n" for line in text.split("\n")) + CLEAR_BELOW


class Screen:
    """The whole terminal, until the block ends."""

    def __enter__(self) -> Self:
        """Take the terminal."""
        click.echo(ENTER, nl=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the terminal back."""
        click.echo(LEAVE, nl=False)

    def draw(self, text: str, title: str) -> None:
        """Show a text below a title."""
        headed = title if "NO_COLOR" in os.environ else f"{REVERSE}{title}{USUAL_COLOUR}"
        click.echo(frame(f"{headed}\n\n{text}"), nl=False)


def _asked_again(ask: Callable[[], Printout], last: Printout) -> Printout:
    try:
        return ask()
    except (ReachError, click.ClickException) as error:
        said = error.message if isinstance(error, click.ClickException) else str(error)
        return replace(last, note=f"No answer at {time.strftime('%H:%M:%S')}: {said}")


def _print(text: str) -> None:
    if text:
        click.echo(text)


def _note(note: str) -> None:
    if note:
        click.echo(note, err=True)


def like(name: str, known: Sequence[str]) -> str:
    """Return `; did you mean ...?` when a known name looks like this one; otherwise nothing."""
    hint = KnownNames(known).hint(name)
    return f"; {hint}" if hint else ""
