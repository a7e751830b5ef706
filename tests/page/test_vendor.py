"""The libraries of the page are what their authors published, and nothing else lies beside them."""

import json
from pathlib import Path

import pytest

from tests.page.vendoring import LOCK, PACKAGES, PAGE, TESTS, as_published, sha256


@pytest.mark.parametrize("folder", [PAGE, TESTS], ids=["page", "tests"])
def test_every_vendored_file_has_the_locked_hash_and_no_other_file_lies_there(folder: Path) -> None:
    locked = json.loads((folder / LOCK).read_text())
    wanted = {name: of["sha256"] for package in locked.values() for name, of in package["files"].items()}

    found = {
        str(path.relative_to(folder)): sha256(path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file() and path.name != LOCK
    }

    assert found == wanted


@pytest.mark.parametrize("folder", [PAGE, TESTS], ids=["page", "tests"])
def test_a_vendored_file_differs_from_the_published_one_only_in_the_names_of_imports(folder: Path) -> None:
    locked = json.loads((folder / LOCK).read_text())
    wanted = {name: of["published"] for package in locked.values() for name, of in package["files"].items()}

    assert {name: sha256(as_published((folder / name).read_bytes())) for name in wanted} == wanted


def test_the_lock_has_the_versions_that_would_be_taken_each_with_its_license() -> None:
    for package in PACKAGES:
        entry = json.loads((package.into / LOCK).read_text())[package.name]
        assert entry["version"] == package.version
        assert f"{package.folder}/LICENSE" in entry["files"]
