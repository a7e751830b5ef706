"""Machines for the fake driver: the contents of `machines.json` and `topologies.json`, as lines for the C side."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from app.cli import main

HERE = Path(__file__).parent
MACHINES: Mapping[str, Any] = json.loads((HERE / "machines.json").read_text())
TOPOLOGIES: Mapping[str, Any] = json.loads((HERE / "topologies.json").read_text())["topologies"]
LIBRARY = "libnvidia-ml.so.1"

LEVELS = {"PSB": 0, "PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}
MIB = 1 << 20
NO_PERMISSION, GPU_IS_LOST, UNKNOWN = 4, 15, 999
XID, RECOVERY_ACTION = 8, 0x8000
EVENTS = XID | RECOVERY_ACTION | 3
READ, NVLINK = 0, 2


def compiled(folder: Path, *flags: str) -> Path:
    """Compile the fake driver into a folder of its own; a machine without a C compiler fails the test."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.fail("The agent is tested with a driver library of our own: install a C compiler (cc).", pytrace=False)
    folder.mkdir(parents=True, exist_ok=True)
    strict = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}"]
    made = subprocess.run(
        [compiler, *strict, *flags, "-o", folder / LIBRARY, HERE / "fake_nvml.c"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    return folder / LIBRARY


class FakeMachine:
    """A machine as the fake driver sees it; the driver answers changes at once."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        described = MACHINES[name]
        self.topology = TOPOLOGIES.get(described.get("topology", ""), {})
        self.devices = len(self.topology["nvlinks"]) if self.topology else described["devices"]
        # The current lines of the file; changed only by the methods below, which write it.
        self._lines = dict(_lines(described, self.topology, self.devices))
        self._events = 0
        self._write()

    def uuid(self, index: int) -> str:
        """Return a device's UUID, which follows from its place on the bus."""
        return _uuid(index)

    def sets(self, index: int, **values: object) -> None:
        """Change fields of a device; a dot in a name is written as two underscores."""
        self.tells({f"device.{index}.{name.replace('__', '.')}": str(value) for name, value in values.items()})

    def tells(self, lines: Mapping[str, str]) -> None:
        """Change any lines."""
        self._lines |= lines
        self._write()

    def forgets(self, *keys: str) -> None:
        """Remove lines: their values are then not supported."""
        for key in keys:
            self._lines.pop(key)
        self._write()

    def fails(self, call: str, error: int, index: int | None = None) -> None:
        """Let a call fail, for one device or for all."""
        self.tells({f"fail.{call}" if index is None else f"fail.{call}.{index}": str(error)})

    def happens(self, index: int, kind: int, number: int = 0) -> None:
        """Report an event of a device; -1: the driver does not name the device."""
        self.tells({f"event.{self._events}": f"{index} {kind} {number}"})
        self._events += 1

    def unloads_driver(self) -> None:
        """Unload the driver."""
        self.tells({"gone": "1"})

    def loads_driver(self) -> None:
        """Load it again."""
        self.forgets("gone")

    def hangs(self) -> None:
        """Block every call until `answers`."""
        self.tells({"hang": "1"})

    def answers(self) -> None:
        """Answer all blocked calls."""
        self.forgets("hang")

    def _write(self) -> None:
        # As a whole: the driver may be reading.
        fresh = self.path.with_suffix(".new")
        fresh.write_text("".join(f"{key} {value}\n" for key, value in self._lines.items()))
        fresh.replace(self.path)


def _lines(described: Mapping[str, Any], topology: Mapping[str, Any], devices: int) -> Iterator[tuple[str, str]]:
    yield "driver", described["driver"]
    yield "count", str(devices)
    for index in range(devices):
        memory = {"memory.total": described["memory_mib"] * MIB, "memory.used": 10 * MIB, "memory.reserved": 512 * MIB}
        plain = {"uuid": _uuid(index), "name": described["product"], "pci": _pci(index), "minor": index}
        rest = {"events": EVENTS, "compute": "-", "graphics": "-", "mps": "-"}
        for key, value in (plain | memory | rest | described["has"]).items():
            yield f"device.{index}.{key}", str(value)
        if "numa" in topology:
            yield f"device.{index}.nearest", str(topology["numa"][index])
    if topology:
        yield from _connections(topology, devices)


def _connections(topology: Mapping[str, Any], devices: int) -> Iterator[tuple[str, str]]:
    nvlinks, levels = topology["nvlinks"], topology["pcie_level"]
    for index in range(devices):
        ends = _far_ends(nvlinks[index], behind_switch="nvswitch" in topology)
        if ends:
            yield f"device.{index}.links", str(len(ends))
        for number, (pci, kind) in enumerate(ends):
            yield f"device.{index}.link.{number}.pci", pci
            yield f"device.{index}.link.{number}.type", str(kind)
    for one, other in permutations(range(devices), 2):
        linked, level = nvlinks[one][other] > 0, levels[one][other]
        yield f"pair.{one}.{other}.ancestor", str(LEVELS[level])
        yield f"pair.{one}.{other}.p2p.{NVLINK}", "0" if linked else "5"
        yield f"pair.{one}.{other}.p2p.{READ}", "0" if linked or level != "SYS" else "1"


def _far_ends(row: Sequence[int], *, behind_switch: bool) -> list[tuple[str, int]]:
    if behind_switch:
        return [(_pci(0xA0 + number % 6), 2) for number in range(max(row))]
    return [(_pci(other), 0) for other, count in enumerate(row) for _ in range(count)]


def _pci(index: int) -> str:
    return f"00000000:{index + 7:02X}:00.0"


def _uuid(index: int) -> str:
    return f"GPU-{index:08x}-1234-5678-9abc-{0xABC0 + index:012x}"


def leeboard_agent(library: Path | None, machine: FakeMachine | None, *arguments: str, **env: str) -> Sequence[str]:
    """Run `leeboard agent` in a process that finds the driver as any program does; return its output."""
    ended = subprocess.run(
        [sys.executable, "-m", "app", "agent", *arguments],
        env=environment(library, machine, **env),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()


def environment(library: Path | None, machine: FakeMachine | None, **env: str) -> dict[str, str]:
    """Return the environment of such a process."""
    found = {"LD_LIBRARY_PATH": str(library.parent)} if library else {}
    named = {"FAKE_NVML": str(machine.path)} if machine else {}
    socket = {"LEEBOARD_AGENT_POD_RESOURCES_SOCKET": "/nonexistent/kubelet.sock"}
    return (
        {"PATH": os.environ["PATH"], "NODE_NAME": "node-1", "PYTHONPATH": str(HERE.parents[1]), **socket}
        | found
        | named
        | env
    )


def printed(machine: FakeMachine, library: Path | None = None, **env: str) -> dict[str, Any]:
    """Return the GpuNode that `leeboard agent --once -o json` prints: in this process, or in one with that library."""
    as_json = ("--once", "-o", "json")
    if library is not None:
        text = "\n".join(leeboard_agent(library, machine, *as_json))
    else:
        result = CliRunner(env=environment(None, machine, **env)).invoke(main, ["agent", *as_json])
        assert (result.exit_code, result.stderr) == (0, "")
        text = result.stdout
    shown: dict[str, Any] = json.loads(text)
    return shown
