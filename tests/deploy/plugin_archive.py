"""`make plugin`: the kubectl plugin with an interpreter, as an archive, and krew's manifest with its checksum.

It runs in an environment of its own, which has PyInstaller and none of the libraries of the service.
"""

import hashlib
import platform
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import yaml

from app.cli import NAMED_OTHERWISE, OF_THE_SERVICE, PLUGIN, SUMMARIES

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "deploy" / "krew" / "leeboard.yaml"
BUILD = ROOT / "build"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
START = "from app.cli import run\nrun()\n"


def built(folder: Path) -> Path:
    """Build the program of this platform and pack it; return the archive."""
    (folder / "start.py").write_text(START)
    names = [NAMED_OTHERWISE.get(name, name) for name in SUMMARIES if name not in OF_THE_SERVICE]
    # They are imported by name only, so PyInstaller does not find them.
    modules = [f"--hidden-import=app.cli.{name}" for name in names]
    where = [f"--distpath={folder / 'dist'}", f"--workpath={folder / 'work'}", f"--specpath={folder}"]
    # A folder starts twice as fast as a single file, which unpacks itself each time.
    options = ["--noconfirm", "--log-level=WARN", "--onedir", "--contents-directory=lib", "--copy-metadata=leeboard"]
    command = [sys.executable, "-m", "PyInstaller", f"--name={PLUGIN}", *options, *where, *modules]
    subprocess.run([*command, str(folder / "start.py")], check=True)
    archive = folder / archive_name(
        platform.system().lower(), ARCHITECTURES.get(platform.machine(), platform.machine())
    )
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(folder / "dist" / PLUGIN, arcname=PLUGIN)
        packed.add(ROOT / "LICENSE", arcname="LICENSE")
    return archive


def archive_name(system: str, architecture: str) -> str:
    """Return the name of the archive of a platform, in the words of krew."""
    return f"{PLUGIN}-{system}-{architecture}.tar.gz"


def completed(manifest: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the manifest for those platforms whose archives are in the folder, with their checksums."""
    platforms = []
    for each in manifest["spec"]["platforms"]:
        labels = each["selector"]["matchLabels"]
        archive = folder / archive_name(labels["os"], labels["arch"])
        if archive.exists():
            platforms.append(each | {"sha256": hashlib.sha256(archive.read_bytes()).hexdigest()})
    return manifest | {"spec": manifest["spec"] | {"platforms": platforms}}


def main() -> None:
    """Build the archive and the manifest."""
    BUILD.mkdir(exist_ok=True)
    archive = built(BUILD)
    written = BUILD / "krew" / "leeboard.yaml"
    written.parent.mkdir(exist_ok=True)
    written.write_text(yaml.safe_dump(completed(yaml.safe_load(SOURCE.read_text()), BUILD), sort_keys=False))
    print(archive.relative_to(ROOT), written.relative_to(ROOT), sep="\n")


if __name__ == "__main__":
    main()
