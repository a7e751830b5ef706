"""Reads the node: the driver, the processes on its devices, and the kubelet. All calls block."""

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from app.agent import cgroups
from app.agent.driver import Driver
from app.agent.events import Flag
from app.agent.podresources import PodResources
from app.agent.readings import KubeletReading, MachineReading, Owners
from app.agent.report import Sight
from app.agent.settings import AgentSettings


@dataclass(frozen=True, slots=True)
class DeviceSource:
    """The devices, and the pods of the processes on them."""

    machine: MachineReading
    owners: Owners


class Lookout:
    """The readings of this node. `devices` and `close` belong to one thread, `kubelet` to any other."""

    def __init__(self, settings: AgentSettings, *, reported: Flag | None = None) -> None:
        """Without `reported`, which each event of the driver sets, events are not awaited."""
        self._driver = Driver(ignored_xids=settings.ignored_xids, reported=reported)
        self._pod_resources = PodResources(Path(settings.pod_resources_socket))
        self._proc_root = Path(settings.proc_root)
        self._agent_version = version("leeboard")
        self._boot_id = _boot_id(self._proc_root)

    def devices(self) -> DeviceSource:
        """Read the driver."""
        machine = self._driver.read()
        pids = {process.pid for device in machine.devices for process in device.processes or ()}
        return DeviceSource(machine, cgroups.owners(pids, self._proc_root))

    def kubelet(self) -> KubeletReading:
        """Read the kubelet."""
        return self._pod_resources.read()

    def sight(self, devices: DeviceSource, kubelet: KubeletReading) -> Sight:
        """Combine the readings."""
        return Sight(
            machine=devices.machine,
            kubelet=kubelet,
            owners=devices.owners,
            agent_version=self._agent_version,
            boot_id=self._boot_id,
        )

    def close(self) -> None:
        """Release the driver and close the connection to the kubelet."""
        self._driver.close()
        self._pod_resources.close()


def _boot_id(proc_root: Path) -> str:
    try:
        return (proc_root / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
    except OSError:
        return ""
