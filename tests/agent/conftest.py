"""The fake driver, compiled once per run, and machines for it."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pynvml
import pytest

from app.agent.driver import Driver
from tests.agent.kubelet import FakeKubelet, listening
from tests.agent.machines import FakeMachine, compiled

Furnish = Callable[[str], FakeMachine]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the current driver."""
    return compiled(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="session")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile a driver without later functions."""
    return compiled(tmp_path_factory.mktemp("old-driver"), "-DOLD_DRIVER")


@pytest.fixture
def furnish(tmp_path: Path) -> Furnish:
    """Return a builder of a machine by its name in `machines.json`."""
    return lambda name: FakeMachine(tmp_path / "machine", name)


@pytest.fixture
def loaded(library: Path, furnish: Furnish, monkeypatch: pytest.MonkeyPatch) -> Iterator[Furnish]:
    """Return the same, for the driver of this process: pynvml finds a loaded library by its name."""
    ctypes.CDLL(str(library))
    monkeypatch.setattr(pynvml, "nvmlLib", None)

    def make(name: str) -> FakeMachine:
        machine = furnish(name)
        monkeypatch.setenv("FAKE_NVML", str(machine.path))
        return machine

    yield make
    with pytest.raises(pynvml.NVMLError_Uninitialized):  # every user of the driver has closed it
        pynvml.nvmlDeviceGetCount()


@pytest.fixture
def driver(loaded: Furnish) -> Iterator[Driver]:  # noqa: ARG001 - closed before the library is looked at
    """Open the driver of this process."""
    with closing(Driver(ignored_xids=frozenset())) as driver:
        yield driver


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    """Return where the kubelet listens."""
    return tmp_path / "kubelet.sock"


@pytest.fixture
def kubelet(socket: Path) -> Iterator[FakeKubelet]:
    """Run a kubelet."""
    kubelet = FakeKubelet()
    with listening(kubelet, socket):
        yield kubelet
