"""docs/reference.md follows from the code: settings, metrics, reasons. `python -m tests.test_reference` writes it."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

from app.agent.settings import AgentSettings
from app.model.reason import Reason, phrase
from app.settings import Settings
from tests.deploy.monitoring import served_metrics

REFERENCE = Path(__file__).parents[1] / "docs" / "reference.md"
HEAD = """\
# Reference

Written from the code by `python -m tests.test_reference`; a test compares it. The values of the chart are in
[its README](../deploy/leeboard/README.md#values), the API in `/openapi.json` of the service.
"""
OF_EACH_COUNTER = "_created"
"""The client library of Python serves when each counter began."""


async def test_the_reference_says_what_the_code_does() -> None:
    assert REFERENCE.read_text() == await written(), "run `python -m tests.test_reference`"


async def written() -> str:
    """Return the whole page."""
    parts = [
        "## Settings\n",
        "Environment variables of `leeboard serve`; the chart takes them as `settings.LEEBOARD_...`, except those that",
        "follow from its other values.\n",
        *_settings(Settings),
        "\n## Settings of the agent\n",
        "Environment variables of `leeboard agent`; the chart takes them as `agent.settings.LEEBOARD_AGENT_...`.\n",
        *_settings(AgentSettings),
        "\n## Metrics\n",
        "What `/metrics` serves. `process_*` are those of every program.\n",
        *_metrics(await served_metrics()),
        "\n## Reasons\n",
        "The reason, and the fixed text that kube-scheduler writes into the condition of the pod.",
        "[Troubleshooting](troubleshooting.md#by-reason) says what each means and what to do.\n",
        "| reason | text |",
        "|---|---|",
        *(f"| `{reason.value}` | {phrase(reason)} |" for reason in Reason),
    ]
    return HEAD + "\n" + "\n".join(parts) + "\n"


def _settings(settings: type[BaseSettings]) -> Iterator[str]:
    prefix = str(settings.model_config["env_prefix"])
    yield "| setting | default | what it does |"
    yield "|---|---|---|"
    for name, field in settings.model_fields.items():
        yield f"| `{(prefix + name).upper()}` | {_default(field)} | {' '.join((field.description or '').split())} |"


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return "follows from the host"
    default = field.get_default()
    if isinstance(default, frozenset):
        default = sorted(default)
    if isinstance(default, tuple | list):
        default = ",".join(default)
    return "unset" if default in {None, "", PydanticUndefined} else f"`{_plain(default)}`"


def _plain(value: object) -> str:
    return json.dumps(value, default=str).strip('"')


def _metrics(text: str) -> Iterator[str]:
    """Yield a row for each family: its name, kind, labels and help."""
    yield "| metric | kind | labels | what it is |"
    yield "|---|---|---|---|"
    helps = dict(re.findall(r"^# HELP (\S+) (.+)$", text, re.MULTILINE))
    for name, kind in sorted(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)):
        if name.startswith("process_") or name.endswith(OF_EACH_COUNTER):
            continue
        series = re.findall(rf"^{name}(?:_bucket|_sum|_count)?\{{([^}}]*)\}} ", text, re.MULTILINE)
        labels = sorted({label for each in series for label in re.findall(r'(\w+)="', each)} - {"le"})
        yield f"| `{name}` | {kind} | {', '.join(labels)} | {helps[name]} |"


if __name__ == "__main__":
    REFERENCE.write_text(asyncio.run(written()))
