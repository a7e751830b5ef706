"""The plugins for kubectl, krew and k9s: their files are whole, and the commands that they name exist."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from app.cli import OF_THE_SERVICE, PLUGIN, SUMMARIES, main
from tests.deploy.plugin_archive import archive_name, completed
from tests.deploy.rendering import ROOT

KREW = yaml.safe_load((ROOT / "deploy" / "krew" / "leeboard.yaml").read_text())
K9S: Mapping[str, Any] = yaml.safe_load((ROOT / "deploy" / "k9s" / "leeboard.yaml").read_text())["plugins"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SCRIPTS: Mapping[str, str] = PROJECT["scripts"]


def program(folder: Path, name: str) -> None:
    """Install a script of the package as an installer does, for this checkout."""
    module, _, function = SCRIPTS[name].partition(":")
    path = folder / name
    found = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
    path.write_text(f"#!{sys.executable}\n{found}from {module} import {function}\n{function}()\n")
    path.chmod(0o700)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with every program of the package."""
    for name in SCRIPTS:
        program(tmp_path, name)
    return tmp_path


def run(installed: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PATH": f"{installed}:{os.environ['PATH']}", "KUBECONFIG": str(installed / "none")}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


# -- kubectl


@pytest.mark.slow
@pytest.mark.parametrize(("name", "called"), [("leeboard", "leeboard"), (PLUGIN, "kubectl leeboard")])
def test_help_names_the_program_as_it_was_called(installed: Path, name: str, called: str) -> None:
    for arguments, usage in (("--help", "[OPTIONS] COMMAND"), ("why --help", "why [OPTIONS] TARGET")):
        shown = run(installed, str(installed / name), *arguments.split())

        assert shown.stdout.startswith(f"Usage: {called} {usage}")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl")
def test_kubectl_finds_the_plugin_and_its_completion(installed: Path) -> None:
    assert run(installed, "kubectl", "leeboard", "version", "--client").stdout.startswith("client")
    completed = run(installed, "kubectl", "__complete", "leeboard", "pend")
    assert completed.stdout.splitlines() == ["pending\tList the PodGroups that wait, and why.", ":4"]


# -- k9s


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the scope and the arguments of each command that k9s calls."""
    for plugin in K9S.values():
        script, _, *arguments = plugin["args"][1:]
        assert script.startswith('kubectl leeboard "$@"')
        yield from ((scope, arguments) for scope in plugin["scopes"])


def test_every_plugin_of_k9s_has_what_k9s_requires() -> None:
    assert all({"shortCut", "description", "scopes", "command", "args"} <= {*plugin} for plugin in K9S.values())
    keys = [(plugin["shortCut"], scope) for plugin in K9S.values() for scope in plugin["scopes"]]
    assert len(keys) == len(set(keys)), "two plugins have one key"


@pytest.mark.parametrize(("scope", "arguments"), [*commands()], ids=str)
def test_k9s_calls_commands_that_exist_with_options_that_they_have(scope: str, arguments: list[str]) -> None:
    variables = {"$NAME": "train", "$NAMESPACE": "team", "$CONTEXT": "c"}
    given = [re.sub(r"\$[A-Z]+", lambda found: variables[found[0]], each) for each in arguments]
    unset: dict[str, str | None] = dict.fromkeys(("LEEBOARD_SERVER", "LEEBOARD_URL", "KUBERNETES_SERVICE_HOST"))
    environment = unset | {"KUBECONFIG": "/none"}

    result = CliRunner(env=environment).invoke(main, given)

    # All that is missing is the kubeconfig with this context.
    assert (result.exit_code, "kubeconfig '/none' does not exist" in result.stderr) == (2, True), (scope, result.stderr)


# -- krew


def test_the_manifest_of_krew_has_what_krew_requires() -> None:
    spec = KREW["spec"]

    assert (KREW["apiVersion"], KREW["kind"]) == ("krew.googlecontainertools.github.com/v1alpha2", "Plugin")
    assert KREW["metadata"]["name"] == PLUGIN.removeprefix("kubectl-")
    assert spec["version"] == f"v{PROJECT['version']}"
    assert len(spec["shortDescription"]) <= 50
    assert {"homepage", "description", "caveats"} <= {*spec}
    for platform in spec["platforms"]:
        labels = platform["selector"]["matchLabels"]
        assert platform["bin"] == f"{PLUGIN}/{PLUGIN}"
        assert platform["uri"].endswith(f"/v{PROJECT['version']}/{archive_name(labels['os'], labels['arch'])}")


def test_the_manifest_is_completed_for_the_platforms_that_have_an_archive(tmp_path: Path) -> None:
    (tmp_path / archive_name("linux", "arm64")).write_bytes(b"archive")

    (platform,) = completed(KREW, tmp_path)["spec"]["platforms"]

    assert platform["selector"]["matchLabels"] == {"os": "linux", "arch": "arm64"}
    assert platform["sha256"] == hashlib.sha256(b"archive").hexdigest()


def test_the_manifest_of_krew_names_commands_that_exist() -> None:
    named = set(re.findall(r"kubectl leeboard ([a-z]+)", KREW["spec"]["description"] + KREW["spec"]["caveats"]))

    # The plugin has no other commands.
    assert {"why", "version"} <= named <= {*SUMMARIES} - OF_THE_SERVICE
