"""The public names for users and other programs: a change of one of them is seen here before a release.

`tests/interface.txt` lists them. A new name is added by `python -m tests.test_interface`, which writes the file again.
A removed name breaks manifests, dashboards or scripts of users, and belongs into CHANGELOG.md under "Removed".
"""

import ast
import asyncio
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import yaml
from pydantic_settings import BaseSettings

from app.agent.settings import AgentSettings
from app.cli import main as commands
from app.model.reason import Reason
from app.settings import Settings
from app.telemetry import Metrics
from app.web import operations
from app.web.callers import Anybody
from tests.web.fakes import FakeInspect, FakePulse
from tests.web.served import get, serving

ROOT = Path(__file__).parents[1]
LISTED = ROOT / "tests" / "interface.txt"
MARK = re.compile(
    r"(?:[a-z0-9-]+\.)*(?:leeboard\.dev|kai\.scheduler|run\.ai|nvidia\.com)/[\w./-]+|(?:gpu|pod-group|runai)-[\w-]+"
)
"""A label, an annotation or a resource with a domain; an older one of KAI; a check of `leeboard doctor`."""


async def test_the_public_interface_changes_only_with_its_list() -> None:
    assert LISTED.read_text().splitlines() == await names()


async def names() -> list[str]:
    """Return every name behind its kind, sorted."""
    kinds = {
        "setting": [*_settings(Settings), *_settings(AgentSettings)],
        "reason": [reason.value for reason in Reason],
        "command": _commands(commands, "leeboard"),
        "mark": _marks(),
        "object": _objects(),
        "field": _fields(),
        "webhook": _webhooks(),
        **await _served(),
    }
    return [f"{kind} {name}" for kind in sorted(kinds) for name in sorted(set(kinds[kind]))]


def _settings(settings: type[BaseSettings]) -> list[str]:
    prefix = settings.model_config["env_prefix"]
    return [f"{prefix}{name}".upper() for name in settings.model_fields]


def _commands(command: click.Command, path: str) -> list[str]:
    """Return each command with its options and arguments."""
    found = [path, *(f"{path} {'/'.join(one.opts)}" for one in command.params)]
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            found += _commands(child, f"{path} {name}")
    return found


def _marks() -> Iterator[str]:
    """Yield each label, annotation and resource that is a text of its own in the code."""
    for path in (ROOT / "app").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and MARK.fullmatch(node.value):
                yield node.value


def _manifests() -> Iterator[Mapping[str, Any]]:
    for path in sorted((ROOT / "deploy" / "kustomize").glob("*/manifests.yaml")):
        yield from (item for item in yaml.load_all(path.read_text(), yaml.CSafeLoader) if item)


def _objects() -> Iterator[str]:
    """Yield the kind and name of each object of the manifests, and the names of ports."""
    for item in _manifests():
        yield f"{item['kind']} {item['metadata']['name']}"
        if item["kind"] == "Service":
            yield from (f"Service {item['metadata']['name']} {one['name']}" for one in item["spec"]["ports"])


def _fields() -> Iterator[str]:
    """Yield each field of our resources, as a path below its kind."""
    for path in (ROOT / "deploy" / "leeboard" / "files" / "crds").glob("*.yaml"):
        for crd in (item for item in yaml.load_all(path.read_text(), yaml.CSafeLoader) if item):
            for version in crd["spec"]["versions"]:
                kind = f"{crd['spec']['names']['kind']}.{crd['spec']['group']}/{version['name']}"
                yield from _properties(version["schema"]["openAPIV3Schema"], kind)


def _properties(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    yield path
    for name, inner in schema.get("properties", {}).items():
        yield from _properties(inner, f"{path}.{name}")
    if "items" in schema:
        yield from _properties(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), Mapping):
        yield from _properties(schema["additionalProperties"], f"{path}.*")


def _webhooks() -> Iterator[str]:
    """Yield the paths that kube-scheduler and the API server call."""
    for path in (ROOT / "scheduler-config").glob("*.yaml"):
        for extender in yaml.safe_load(path.read_text())["extenders"]:
            yield from (f"/{verb}" for key, verb in extender.items() if key.endswith("Verb"))
            yield from (one["name"] for one in extender.get("managedResources", ()))
    for item in _manifests():
        for webhook in item.get("webhooks", ()):
            yield f"{webhook['name']} {webhook['clientConfig']['service']['path']}"


async def _served() -> Mapping[str, list[str]]:
    """Return the metrics, and the paths and the fields of the API, as the operations port serves them."""
    app = operations.application(FakeInspect(), Metrics(), FakePulse(), callers=Anybody())
    async with serving(app) as served:
        metrics = (await served.ask(get("/metrics"))).body.decode()
        api: Any = (await served.ask(get("/openapi.json"))).json
    schemas = api["components"]["schemas"]
    paths = [f"{method.upper()} {path}" for path, methods in api["paths"].items() for method in methods]
    fields = [f"{name}.{field}" for name, schema in schemas.items() for field in schema.get("properties", {})]
    return {"metric": re.findall(r"^# TYPE (\S+)", metrics, re.MULTILINE), "api": [*paths, *fields]}


if __name__ == "__main__":
    LISTED.write_text("\n".join(asyncio.run(names())) + "\n")
