"""What the Dockerfile promises to the chart; whether it can be built shows where there is a container engine."""

import re
import tomllib

import yaml

from app.settings import Settings
from tests.deploy.rendering import CHART, ROOT, objects, rendered

DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_image_the_chart_and_the_package_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    built = re.findall(r"^IMAGE \?= (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert (chart["version"], chart["appVersion"]) == (PROJECT["version"], PROJECT["version"])
    assert built == [f"leeboard:{PROJECT['version']}"]
    assert f'image: "leeboard:{PROJECT["version"]}"' in rendered()


def test_the_image_runs_as_the_user_whom_the_chart_names() -> None:
    (pod,) = [item["spec"]["template"]["spec"] for item in objects(rendered()) if item["kind"] == "Deployment"]
    security = pod["securityContext"]

    assert re.findall(r"^USER (.+)$", DOCKERFILE, re.MULTILINE) == [f"{security['runAsUser']}:{security['runAsGroup']}"]


def test_nothing_is_installed_that_the_lock_does_not_name() -> None:
    installs = [line for line in DOCKERFILE.splitlines() if re.search(r"pip .*(install|wheel) ", line)]

    assert len(installs) == 2
    assert all("--require-hashes" in line or "--no-index" in line for line in installs)


def test_the_image_starts_what_the_package_calls_itself() -> None:
    (command,) = PROJECT["scripts"]

    assert f'ENTRYPOINT ["{command}"]' in DOCKERFILE


def test_the_image_names_the_ports_that_the_chart_uses() -> None:
    ports = yaml.safe_load((CHART / "values.yaml").read_text())["ports"]
    exposed = re.findall(r"^EXPOSE (.+)$", DOCKERFILE, re.MULTILINE)[0].split()

    assert sorted(map(int, exposed)) == sorted(ports.values())
    assert (ports["extender"], ports["operations"]) == tuple(
        Settings.model_fields[f"{name}_port"].default for name in ("webhook", "operations")
    )
