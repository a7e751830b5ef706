"""The kept digests: a file with a line for each scenario."""

import json
from collections.abc import Mapping
from pathlib import Path

from tests.oracle.running import Heard

KEPT = Path(__file__).parent / "kept.json"


def kept() -> dict[str, Heard]:
    """Return what is kept of each scenario."""
    return {name: Heard(*one) for name, one in json.loads(KEPT.read_text()).items()} if KEPT.exists() else {}


def keep(found: Mapping[str, Heard]) -> None:
    """Write the file again."""
    lines = [f"{json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found)]
    KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n")
