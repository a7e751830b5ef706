"""Reads what a person can set, and says in one line, naming the variable, what of it cannot be used."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from app.settings import Settings

USERS_KUBECONFIG = "~/.kube/config"


class WrongSettingError(click.ClickException):
    """A setting that cannot be used; the line names its environment variable."""

    exit_code = 2


def read_settings(**given: Any) -> Settings:
    """Read the environment; options that were given win. Raises `WrongSettingError`."""
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        sentences = (_sentence(one["loc"], one["msg"], one["input"]) for one in error.errors())
        raise WrongSettingError("; ".join(sentences)) from error


def port_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for our two ports."""
    for listener in ("operations", "webhook"):
        default = Settings.model_fields[f"{listener}_port"].default
        text = f"Port of the {listener} listener; 0 takes a free one. [default: {default}]"
        command = click.option(f"--{listener}-port", type=click.IntRange(0, 65535), help=text)(command)
    return command


def check_kubeconfig(path: str | None) -> None:
    """Raise `WrongSettingError` when there is no kubeconfig where one is looked for."""
    # The loader takes a missing file for an empty one, and then misses a key in it.
    if path is None and "KUBERNETES_SERVICE_HOST" in os.environ:
        return
    read = os.environ.get("KUBECONFIG", USERS_KUBECONFIG) if path is None else path
    if not any(Path(each).expanduser().is_file() for each in read.split(os.pathsep)):
        sentence = f"kubeconfig {read!r} does not exist; name one with --kubeconfig or LEEBOARD_KUBECONFIG"
        raise WrongSettingError(sentence)


def settings_help() -> str:
    """Return a paragraph for every environment variable: its name, its default, what it does."""
    paragraphs = ["Settings are environment variables:"]
    for name, field in Settings.model_fields.items():
        default = "" if field.default_factory else _shown(field.default)
        text = " ".join((field.description or "").split())
        paragraphs.append(f"LEEBOARD_{name.upper()}{f' [{default}]' if default else ''}: {text}")
    return "\n\n".join(paragraphs)


def _shown(default: object) -> str:
    if isinstance(default, frozenset):
        return ",".join(sorted(map(str, default)))
    return "" if default is None else str(default)


def _sentence(location: tuple[int | str, ...], message: str, given: object) -> str:
    variable = f"LEEBOARD_{location[0]}".upper() if location else "LEEBOARD_*"
    return f"{variable}: {message[:1].lower()}{message[1:]}, not {given!r}"
