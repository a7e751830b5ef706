"""The devices of one simulated node and their holders: the state of its kubelet, and the report of its agent."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple
from uuid import NAMESPACE_DNS, uuid5

from app.agent.report import summary_of
from app.model.device import Health
from tests.system.api import Object
from tests.system.machines import COUNT_LABEL, GPU, H100, MACHINES, MEMORY_LABEL, PRODUCT_LABEL, Machine


class Holder(NamedTuple):
    """A pod that has a device."""

    namespace: str
    name: str
    uid: str

    @classmethod
    def of(cls, pod: Object) -> "Holder":
        """Return a pod as a holder."""
        return cls(*(pod["metadata"][part] for part in ("namespace", "name", "uid")))


@dataclass(slots=True, eq=False)
class Slot:
    """One device of a node; written by the kubelet and by the faults of a test, under the lock of `DevicePlugins`."""

    uuid: str
    holder: Holder | None = None
    lost: bool = False
    unhealthy_reason: str = ""
    foreign_mib: int = 0
    used: Mapping[Holder, int] = field(default_factory=dict)
    """Memory used by the processes of pods."""

    @property
    def is_offered(self) -> bool:
        """Whether the device plugin lists it as healthy."""
        return not self.lost and not self.unhealthy_reason

    def change(self, **fields: object) -> None:
        """Set fields by their names."""
        for name, value in fields.items():
            setattr(self, name, value)


class Kubelet:
    """The state of one node; nothing here calls the API server."""

    def __init__(self, name: str, machine: Machine, memory_mib: int, number: int) -> None:
        self.name = name
        self._machine = machine
        self._memory_mib = memory_mib
        self._plugin_runs = True
        self._unreadable = ""
        self._boots = self._series = 0
        # A change of phase returns as an event later: the kubelet does not judge a pod twice.
        self._judged: set[str] = set()
        self.slots = [Slot(self._uuid(index)) for index in range(number)]

    @classmethod
    def of(cls, node: Object) -> "Kubelet":
        """Read the kind of machine of a node from the labels that feature discovery writes."""
        labels = node["metadata"].get("labels", {})
        machine = MACHINES.get(labels.get(PRODUCT_LABEL, ""), H100)
        number = labels.get(COUNT_LABEL) or node["status"].get("capacity", {}).get(GPU, 0)
        return cls(node["metadata"]["name"], machine, int(labels.get(MEMORY_LABEL, machine.memory_mib)), int(number))

    # -- the device plugin

    @property
    def free(self) -> list[Slot]:
        """Return the devices that a pod could get now."""
        return [slot for slot in self.slots if slot.is_offered and slot.holder is None] if self._plugin_runs else []

    @property
    def allocatable(self) -> int:
        """Return how many devices the node offers, held or not."""
        return sum(slot.is_offered for slot in self.slots) if self._plugin_runs else 0

    def sees_first(self, pod: Object) -> bool:
        """Return whether the kubelet has not judged the pod before, and note that it has now."""
        uid = pod["metadata"]["uid"]
        if uid in self._judged or pod["status"].get("phase") != "Pending":
            return False
        self._judged.add(uid)
        return True

    def give(self, pod: Object, number: int, chance: Random | None) -> bool:
        """Give devices to a pod, the first that are free or any; return whether there were enough."""
        free = self.free
        if len(free) < number:
            return False
        for slot in chance.sample(free, number) if chance else free[:number]:
            slot.holder = Holder.of(pod)
        return True

    def take_back(self, uid: str) -> bool:
        """Take back the devices of a pod; return whether it had any."""
        held = [slot for slot in self.slots if slot.holder and slot.holder.uid == uid]
        for slot in held:
            slot.holder = None
        return bool(held)

    def held_by(self, uid: str) -> tuple[str, ...]:
        """Return the devices of a pod."""
        return tuple(slot.uuid for slot in self.slots if slot.holder and slot.holder.uid == uid)

    def stop_plugin(self) -> None:
        """Stop the plugin; pods with devices keep them."""
        self._plugin_runs = False

    def start_plugin(self) -> None:
        """Start it again."""
        self._plugin_runs = True

    def start_anew(self, *, other_uuids: bool) -> None:
        """Forget all holders, like a node after a restart, and start the plugin."""
        self._boots += 1
        self._series += other_uuids
        self.slots = [Slot(self._uuid(index)) for index in range(len(self.slots))]
        self._plugin_runs = True

    def _uuid(self, index: int) -> str:
        return f"GPU-{uuid5(NAMESPACE_DNS, f'{self.name}/{self._series}/{index}')}"

    # -- the agent

    def hide_devices(self, message: str) -> None:
        """Make all devices unreadable for the agent."""
        self._unreadable = message

    def show_devices(self) -> None:
        """Make them readable again."""
        self._unreadable = ""

    def status(self, now: str) -> Object:
        """Return what the agent reports."""
        devices = [] if self._unreadable else list(self._devices())
        return {
            "message": self._unreadable,
            "observedAt": now,
            "agentVersion": "simulated",
            "driverVersion": "570.124.06",
            "bootId": str(uuid5(NAMESPACE_DNS, f"{self.name}/boot/{self._boots}")),
            "kubelet": {"answers": True},
            "failures": [],
            "summary": summary_of((Health(one["health"]) for one in devices), (one["product"] for one in devices))
            or None,
            "devices": devices,
        }

    def _devices(self) -> Iterator[Object]:
        present = [slot for slot in self.slots if not slot.lost]
        uuids = [slot.uuid for slot in present]
        for index, slot in enumerate(present):
            yield {
                "uuid": slot.uuid,
                "index": index,
                "minor": index,
                "product": self._machine.product,
                "pciBusId": f"0000:{index + 16:02X}:00.0",
                "numaNode": index // 4,
                "memoryMiB": {"total": self._memory_mib, "used": self._used_mib(slot), "foreign": slot.foreign_mib},
                "health": "Unhealthy" if slot.unhealthy_reason else "Healthy",
                "healthReason": slot.unhealthy_reason,
                "links": self._machine.links(uuids, index),
                "pods": list(self._pods(slot)),
            }

    def _used_mib(self, slot: Slot) -> int:
        return slot.foreign_mib + sum(slot.used.values())

    def _pods(self, slot: Slot) -> Iterator[Object]:
        for holder in {*slot.used, *([slot.holder] if slot.holder else [])}:
            named = {"namespace": holder.namespace, "name": holder.name, "uid": holder.uid}
            yield named | ({"memoryMiB": slot.used[holder]} if holder in slot.used else {})


def running(pod: Object, now: str) -> Object:
    """Return the status of a pod whose containers have been started."""
    conditions = ("Initialized", "Ready", "ContainersReady")
    return {
        "phase": "Running",
        "podIP": "10.0.0.2",
        "hostIP": "10.0.0.1",
        "startTime": now,
        "conditions": [
            *(one for one in pod["status"].get("conditions", ()) if one["type"] not in conditions),
            *({"type": kind, "status": "True", "lastTransitionTime": now} for kind in conditions),
        ],
        "containerStatuses": [
            {
                "name": each["name"],
                "image": each["image"],
                "imageID": "",
                "ready": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": now}},
            }
            for each in pod["spec"]["containers"]
        ],
    }
