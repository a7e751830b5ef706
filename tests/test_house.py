"""What holds for the repository as a whole; which module may import which is held by `lint-imports` in `make check`."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BANNED = {"base", "common", "core", "data", "handle", "handler", "helper", "info", "manager", "misc", "process", "util"}
DOCUMENTS = [path for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md") if path.exists()]


def modules() -> list[Path]:
    return sorted((ROOT / "app").rglob("*.py"))


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_no_module_has_a_name_that_says_nothing() -> None:
    words = {path: set(re.split(r"_|s\b", path.stem)) for path in modules()}

    assert [path.name for path, parts in words.items() if parts & BANNED] == []


def test_every_module_opens_with_a_sentence() -> None:
    silent = [path for path in modules() if not re.match(r'"""\S[^"]*[.?]\n?', path.read_text())]

    assert silent == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.name))
def test_every_make_command_in_the_documents_exists(document: Path) -> None:
    named = set(re.findall(r"[$`] ?make ([a-z-]+)", "\n".join(code(document.read_text()))))

    assert named
    assert named <= targets()


def test_every_link_in_the_readme_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text())

    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_lock_names_no_place_to_download_from() -> None:
    lock = (ROOT / "requirements.lock").read_text()

    assert re.findall(r"://|--index-url|--find-links", lock) == []
    assert all("--hash=" in pin for pin in re.split(r"\n(?=\S+==)", lock)[1:])


def code(text: str) -> list[str]:
    return re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL)
