"""Rules for the whole repository; `lint-imports` in `make check` checks which module may import which."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BANNED = {"base", "common", "core", "data", "handle", "handler", "helper", "info", "manager", "misc", "process", "util"}
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "deploy" / "leeboard" / "README.md",
]
READ_FIRST = {"README.md": 150, "ARCHITECTURE.md": 200}
"""The documents for newcomers, and the number of lines a newcomer reads; the rest is in docs/."""


def modules() -> list[Path]:
    return sorted((ROOT / "app").rglob("*.py"))


def name(document: Path) -> str:
    return str(document.relative_to(ROOT))


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_no_module_has_a_name_without_a_meaning() -> None:
    words = {path: set(re.split(r"_|s\b", path.stem)) for path in modules()}

    assert [path.name for path, parts in words.items() if parts & BANNED] == []


def test_every_module_starts_with_a_docstring_sentence() -> None:
    silent = [path for path in modules() if not re.match(r'"""\S[^"]*[.?]\n?', path.read_text())]

    assert silent == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_make_command_in_the_documents_exists(document: Path) -> None:
    named = set(re.findall(r"[$`] ?make ([a-z-]+)", "\n".join(code(document.read_text()))))

    assert named <= targets()


def test_the_readme_names_the_two_commands_to_start_with() -> None:
    assert {"$ make run", "$ make test"} <= set(
        re.findall(r"^\$ make \w+", (ROOT / "README.md").read_text(), re.MULTILINE)
    )


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_link_in_the_documents_has_a_target(document: Path) -> None:
    links = re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", document.read_text())
    wanted = [(document.parent / path if path else document, anchor) for path, anchor in links]

    assert [str(path) for path, anchor in wanted if not path.exists() or (anchor and anchor not in anchors(path))] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_source_file_named_in_the_documents_exists(document: Path) -> None:
    text = re.sub(r"\]\([^)]*\)", "", document.read_text())
    named = set(re.findall(r"\b(?:app|tests|loadtest|deploy|scheduler-config)/[\w./-]*\w", text))
    modules_named = set(re.findall(r"[\w/]+\.py\b", text))
    known = [f"/{path}" for folder in ("app", "tests", "loadtest") for path in (ROOT / folder).rglob("*.py")]

    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
    assert [one for one in sorted(modules_named) if not any(path.endswith(f"/{one}") for path in known)] == []


@pytest.mark.parametrize(("document", "lines"), READ_FIRST.items())
def test_the_documents_for_newcomers_are_short(document: str, lines: int) -> None:
    assert len((ROOT / document).read_text().splitlines()) <= lines


def test_the_lock_file_names_no_download_location() -> None:
    lock = (ROOT / "requirements.lock").read_text()

    assert re.findall(r"://|--index-url|--find-links", lock) == []
    assert all("--hash=" in pin for pin in re.split(r"\n(?=\S+==)", lock)[1:])


def anchors(document: Path) -> set[str]:
    """Return the names by which GitHub links the headings of a document."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def code(text: str) -> list[str]:
    return re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL)
