"""The promises of the Dockerfile to the chart; a container engine would show whether it can be built."""

import re
import subprocess
import tomllib
from base64 import b64decode
from xml.etree import ElementTree as ET

import yaml

from app.settings import Settings
from app.web.service_version import COMMIT
from tests.deploy.rendering import CHART, ROOT, objects, rendered

DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_image_the_chart_and_the_package_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    built = re.findall(r"^IMAGE \?= (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert (chart["version"], chart["appVersion"]) == (PROJECT["version"], PROJECT["version"])
    assert built == [f"leeboard:{PROJECT['version']}"]
    assert f'image: "leeboard:{PROJECT["version"]}"' in rendered()


def test_the_license_is_in_the_checkout_the_package_the_image_and_the_chart() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    text = (ROOT / "LICENSE").read_text()

    assert text.split()[:4] == ["Apache", "License", "Version", "2.0,"]
    assert "END OF TERMS AND CONDITIONS" in text
    assert (PROJECT["license"], PROJECT["license-files"]) == ("Apache-2.0", ["LICENSE"])
    assert "LICENSE" in re.findall(r"^COPY (pyproject.+)$", DOCKERFILE, re.MULTILINE)[0].split()
    assert "!LICENSE" in (ROOT / ".dockerignore").read_text().split()
    assert chart["annotations"]["artifacthub.io/license"] == PROJECT["license"]
    assert f'org.opencontainers.image.licenses="{PROJECT["license"]}"' in DOCKERFILE


def test_the_image_is_described_like_the_chart_and_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert chart["description"] == PROJECT["description"]
    assert f'org.opencontainers.image.description="{PROJECT["description"]}"' in DOCKERFILE


def test_the_chart_names_its_source_and_shows_a_picture() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    kind, _, picture = chart["icon"].partition(",")

    assert all(url.startswith("https://") for url in (chart["home"], *chart["sources"]))
    assert [one["name"] for one in chart["maintainers"]] == ["The Leeboard maintainers"]
    assert kind == "data:image/svg+xml;base64"
    assert ET.fromstring(b64decode(picture)).tag == "{http://www.w3.org/2000/svg}svg"


def test_the_image_runs_as_the_user_named_by_the_chart() -> None:
    (pod,) = [item["spec"]["template"]["spec"] for item in objects(rendered()) if item["kind"] == "Deployment"]
    security = pod["securityContext"]

    assert re.findall(r"^USER (.+)$", DOCKERFILE, re.MULTILINE) == [f"{security['runAsUser']}:{security['runAsGroup']}"]


def test_only_packages_in_the_lock_file_are_installed() -> None:
    installs = [line for line in DOCKERFILE.splitlines() if re.search(r"pip .*(install|wheel) ", line)]

    assert len(installs) == 2
    assert all("--require-hashes" in line or "--no-index" in line for line in installs)


def test_the_image_starts_the_program_of_the_package() -> None:
    assert "leeboard" in PROJECT["scripts"]
    assert 'ENTRYPOINT ["leeboard"]' in DOCKERFILE


def test_the_image_keeps_the_commit_that_it_was_built_from() -> None:
    dry = subprocess.run(["make", "--dry-run", "image"], cwd=ROOT, capture_output=True, text=True, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    final = DOCKERFILE.rpartition("FROM ")[2]

    assert f"--build-arg GIT_COMMIT={head.stdout.strip()}" in dry.stdout
    assert "ARG GIT_COMMIT=\n" in final
    assert f"ENV {COMMIT}=${{GIT_COMMIT}}\n" in final


def test_the_image_names_the_ports_that_the_chart_uses() -> None:
    ports = yaml.safe_load((CHART / "values.yaml").read_text())["ports"]
    exposed = re.findall(r"^EXPOSE (.+)$", DOCKERFILE, re.MULTILINE)[0].split()

    assert sorted(map(int, exposed)) == sorted(ports.values())
    assert (ports["extender"], ports["operations"]) == tuple(
        Settings.model_fields[f"{name}_port"].default for name in ("webhook", "operations")
    )
