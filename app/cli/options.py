"""Reads settings. For an unusable value, one line names its variable."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from pydantic import ValidationError
from pydantic_settings import BaseSettings

from app.grouping import defaults_of
from app.settings import Settings

S = TypeVar("S", bound=BaseSettings)

USERS_KUBECONFIG = "~/.kube/config"


class WrongSettingError(click.ClickException):
    """A setting that cannot be used. The message names its environment variable."""

    exit_code = 2


def read_settings(**given: Any) -> Settings:
    """Read the environment. Given options take precedence. Raises `WrongSettingError`."""
    settings = read(Settings, **given)
    try:
        defaults_of(settings.workload_defaults)
    except ValueError as error:
        raise WrongSettingError(f"{prefix_of(Settings)}WORKLOAD_DEFAULTS: {error}") from error
    return settings


def read(kind: type[S], **given: Any) -> S:
    """Read settings of any class, as `read_settings` does. Raises `WrongSettingError`."""
    try:
        return kind(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        prefix = prefix_of(kind)
        sentences = (_sentence(prefix, one["loc"], one["msg"], one["input"]) for one in error.errors())
        raise WrongSettingError("; ".join(sentences)) from error


def prefix_of(kind: type[BaseSettings]) -> str:
    """Return the prefix of the environment variables of these settings."""
    return kind.model_config.get("env_prefix", "")


def port_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for the ports."""
    text = "Port of the page and the state of the cluster; 0 takes a free one. [default: none; 8089 in the demo]"
    command = click.option("--view-port", type=click.IntRange(0, 65535), help=text)(command)
    for listener in ("operations", "webhook"):
        default = Settings.model_fields[f"{listener}_port"].default
        text = f"Port of the {listener} listener; 0 takes a free one. [default: {default}]"
        command = click.option(f"--{listener}-port", type=click.IntRange(0, 65535), help=text)(command)
    return command


def check_kubeconfig(path: str | None, *, by: str = "--kubeconfig or LEEBOARD_KUBECONFIG") -> None:
    """Raise `WrongSettingError` when no kubeconfig exists at the expected path; `by` says how to name one."""
    # The loader treats a missing file as an empty one, and then reports a missing key.
    if path is None and "KUBERNETES_SERVICE_HOST" in os.environ:
        return
    read = os.environ.get("KUBECONFIG", USERS_KUBECONFIG) if path is None else path
    if not any(Path(each).expanduser().is_file() for each in read.split(os.pathsep)):
        sentence = f"kubeconfig {read!r} does not exist; name one with {by}"
        raise WrongSettingError(sentence)


def settings_help(kind: type[BaseSettings] = Settings) -> str:
    """Return one paragraph per environment variable: its name, its default, and its description."""
    paragraphs = ["Settings are environment variables:"]
    for name, field in kind.model_fields.items():
        default = "" if field.default_factory else _shown(field.default)
        text = " ".join((field.description or "").split())
        paragraphs.append(f"{prefix_of(kind)}{name.upper()}{f' [{default}]' if default else ''}: {text}")
    return "\n\n".join(paragraphs)


def _shown(default: object) -> str:
    if isinstance(default, frozenset):
        return ",".join(sorted(map(str, default)))
    return "" if default is None else str(default)


def _sentence(prefix: str, location: tuple[int | str, ...], message: str, given: object) -> str:
    variable = _variable(prefix, str(location[0])) if location else f"{prefix}*"
    but_given = "" if given is None or given == "" else f", not {given!r}"
    return f"{variable}: {message[:1].lower()}{message[1:]}{but_given}"


def _variable(prefix: str, place: str) -> str:
    """Return the variable that was read: a field has its own, and may have an alias."""
    if not place.isupper():
        return f"{prefix}{place.upper()}"
    return place if place in os.environ else place.removeprefix(prefix)
