"""`make vendor`: takes the page's libraries from the npm registry, and writes down what was taken.

    python -m tests.page.vendoring            take the versions below, write the files and the lock files

A browser cannot resolve a bare name such as "preact" without an import map. An inline import map is an inline script,
which the page's Content-Security-Policy forbids. So bare names are replaced by relative ones, and nothing else is
changed. The lock keeps both hashes, and a test undoes the replacement and compares with what was published.
"""

import hashlib
import io
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "app" / "web" / "static" / "vendor"
TESTS = ROOT / "tests" / "page" / "vendor"
LOCK = "vendor.lock"

BARE_NAMES = {
    "preact": "../preact/preact.mjs",
    "preact/hooks": "../preact/hooks.mjs",
    "@preact/signals-core": "../signals-core/signals-core.mjs",
}
"""What replaces a bare name in `from"..."`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package, and which of its files are kept under which name."""

    name: str
    version: str
    folder: str
    files: Mapping[str, str]
    into: Path = field(default=PAGE)

    @property
    def kept(self) -> dict[str, Path]:
        """Each file as the package has it, and where it lies here."""
        named = {**self.files, "LICENSE": "LICENSE"}
        return {theirs: self.into / self.folder / ours for theirs, ours in named.items()}


PACKAGES = (
    Package(
        name="preact",
        version="11.2.0",
        folder="preact",
        files={"dist/preact.mjs": "preact.mjs", "hooks/dist/hooks.mjs": "hooks.mjs"},
    ),
    Package(name="htm", version="3.1.1", folder="htm", files={"dist/htm.mjs": "htm.mjs"}),
    Package(
        name="@preact/signals-core",
        version="1.14.5",
        folder="signals-core",
        files={"dist/signals-core.mjs": "signals-core.mjs"},
    ),
    Package(name="@preact/signals", version="2.11.4", folder="signals", files={"dist/signals.mjs": "signals.mjs"}),
    Package(
        name="uplot",
        version="1.6.32",
        folder="uplot",
        files={"dist/uPlot.iife.min.js": "uPlot.iife.min.js", "dist/uPlot.min.css": "uPlot.min.css"},
    ),
    Package(name="axe-core", version="4.14.1", folder="axe-core", files={"axe.min.js": "axe.min.js"}, into=TESTS),
)


def with_relative_names(text: bytes) -> bytes:
    """Replace each bare name of an import by the file's relative name."""
    for bare, relative in BARE_NAMES.items():
        text = text.replace(f'from"{bare}"'.encode(), f'from"{relative}"'.encode())
    return text


def as_published(text: bytes) -> bytes:
    """Undo `with_relative_names`."""
    for bare, relative in BARE_NAMES.items():
        text = text.replace(f'from"{relative}"'.encode(), f'from"{bare}"'.encode())
    return text


def sha256(content: bytes) -> str:
    """Return the hash as it stands in a lock."""
    return hashlib.sha256(content).hexdigest()


def packed(package: Package) -> bytes:
    """Fetch the package's archive by `npm pack`, which checks it against the registry's hash."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = f"{package.name}@{package.version}"
        command = ["npm", "pack", wanted, "--ignore-scripts", "--pack-destination", folder]
        subprocess.run(command, check=True, capture_output=True)
        (archive,) = Path(folder).iterdir()
        return archive.read_bytes()


def take(package: Package) -> dict[str, object]:
    """Write the package's files; return its entry for the lock."""
    archive = packed(package)
    files = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        for theirs, ours in package.kept.items():
            member = opened.extractfile(f"package/{theirs}")
            if member is None:
                raise FileNotFoundError(f"{package.name} has no {theirs}")
            published = member.read()
            kept = with_relative_names(published)
            ours.parent.mkdir(parents=True, exist_ok=True)
            ours.write_bytes(kept)
            name = str(ours.relative_to(package.into))
            files[name] = {"from": theirs, "sha256": sha256(kept), "published": sha256(published)}
    return {"version": package.version, "archive": sha256(archive), "files": files}


def main() -> None:
    """Take every package and write both lock files."""
    for into in (PAGE, TESTS):
        locked = {each.name: take(each) for each in PACKAGES if each.into == into}
        (into / LOCK).write_text(json.dumps(locked, indent=1) + "\n")
        print(f"{into.relative_to(ROOT)}: {', '.join(locked)}")


if __name__ == "__main__":
    main()
