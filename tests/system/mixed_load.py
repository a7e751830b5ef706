"""Creates and deletes random pods of every kind, and compares the books of Leeboard with the API server at rests."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from random import Random

import httpx

from tests.system.allocations import GPU_MILLI, Allocations, overcommitted
from tests.system.api import DEFAULT_PODS, QUEUES, Object, collection_of, pod
from tests.system.arrivals import NON_PREEMPTIBLE, Arrival, arrival
from tests.system.bed import HOST
from tests.system.features import HAS_MUTATING_POLICIES
from tests.system.forms import DEFAULT_QUEUE
from tests.system.shares import is_over, is_reservation, node_of
from tests.system.sharing import SharingCluster
from tests.system.waiting import eventually, slowness

ALIVE = 30
"""At most so many arrivals are there at once: slightly more than have room."""

PARENT = "default-parent-queue"
"""The queue above the default queue; what is below it counts for it."""

SETTLED_WITHIN_S = 60.0
"""Not a promise of Leeboard, but the time that a busy machine may need."""


class Books:
    """What Leeboard says about the cluster, and how that differs from the objects of the API server."""

    def __init__(self, cluster: SharingCluster, *, plugins: Mapping[str, int], claimed: Mapping[str, int]) -> None:
        """`plugins` and `claimed` are the GPUs of nodes with a device plugin, and of nodes for claims."""
        self._cluster = cluster
        self._plugins = plugins
        self._claimed = claimed

    def differences(self) -> list[str]:
        """Return a sentence for each difference; while the cluster changes, none can be told from a delay."""
        before = Allocations.read(self._cluster.api)
        found = [*self._of_queues(before), *self._of_gpus(before), *self._of_nodes(before)]
        found += overcommitted(before.allocated())
        if Allocations.read(self._cluster.api).version != before.version:
            return ["the cluster changes"]
        return found

    def _of_queues(self, there: Allocations) -> Iterator[str]:
        firm = [one for one in there.bound if one["spec"].get("priorityClassName") == NON_PREEMPTIBLE]
        paid, paid_firm = there.by_queue(), there.by_queue(firm)
        for each in (paid, paid_firm):
            each[PARENT] = each[DEFAULT_QUEUE]
        stored = {one["metadata"]["name"]: one.get("status", {}) for one in self._cluster.api.items(QUEUES)}
        for one in self._answer("queues"):
            name = one["name"]
            said = (one["allocated"]["gpuMilli"], one["allocatedNonPreemptible"]["gpuMilli"])
            if said != (paid[name], paid_firm[name]):
                yield f"queue {name}: Leeboard says {said}, pods and claims {paid[name], paid_firm[name]}"
            written = _milli(stored[name].get("allocated", {}).get("nvidia.com/gpu", "0"))
            if written != paid[name]:
                yield f"queue {name}: its status says {written}, pods and claims {paid[name]}"

    def _of_gpus(self, there: Allocations) -> Iterator[str]:
        nodes = {one["name"]: one for one in self._answer("gpus")}
        for name in self._plugins:
            devices = nodes.get(name, {}).get("devices", [])
            said = {
                one["uuid"]: {each["name"]: each["portionPpm"] for shared in one["shared"] for each in shared["pods"]}
                for one in devices
                if any(shared["pods"] for shared in one["shared"])
            }
            if said != there.sharers(name):
                yield f"node {name}: Leeboard says {said} have parts of GPUs, pods say {there.sharers(name)}"
            whole = sum(len(one["pods"]) for one in devices)
            held = sum(
                len(self._cluster.plugins.held_by(one))
                for one in there.bound
                if node_of(one) == name and not is_reservation(one)
            )
            if whole != held:
                yield f"node {name}: Leeboard says that {whole} GPUs are held as a whole, its kubelet {held}"

    def _of_nodes(self, there: Allocations) -> Iterator[str]:
        for name, number in self._plugins.items():
            yield from self._of_node(name, number - there.by_plugin(name))
        for name, number in self._claimed.items():
            yield from self._of_node(name, number - there.whole_in_use(name))

    def _of_node(self, name: str, free: int) -> Iterator[str]:
        """Compare what is free; room that is kept for others is not offered, so the least is judged at the end only."""
        if self.has_room(name, free + 1):
            yield f"node {name}: Leeboard would place a pod with {free + 1} GPUs there, and {free} are free"

    def has_room(self, node: str, gpus: int) -> bool:
        """Return whether Leeboard would place a pod with so many whole GPUs on a node now; nothing is reserved."""
        asked = {"Pod": pod("question", gpus=gpus, queue=DEFAULT_QUEUE), "NodeNames": [node], "Nodes": None}
        port = self._cluster.running.ports["webhook"]
        answer = httpx.post(f"http://{HOST}:{port}/filter", json=asked, timeout=5.0).json()
        assert not answer.get("Error"), answer
        return bool(answer["NodeNames"])

    def _answer(self, what: str) -> list[Object]:
        running = self._cluster.running
        answer = httpx.get(f"{running.operations}/api/v1/{what}", headers=running.bed.reading(), timeout=5.0)
        items: list[Object] = answer.raise_for_status().json()["items"]
        return items


class MixedLoad:
    """Creates and deletes arrivals by a seed, and knows which of them are there."""

    def __init__(self, cluster: SharingCluster, books: Books, queues: Sequence[str], chance: Random) -> None:
        self._cluster = cluster
        self._books = books
        self._queues = queues
        self._chance = chance
        self._there: list[Arrival] = []
        self.came = Counter[str]()
        self.crashes = 0
        self.rests_s: list[float] = []

    @property
    def number(self) -> int:
        """Return how many have come."""
        return self.came.total()

    def run(self, for_s: float) -> None:
        """Create and delete for this time."""
        ends = time.monotonic() + for_s
        while time.monotonic() < ends:
            self._make_room()
            self._come(arrival(self.number, self._queues, self._chance))
            # Rates need time; no condition is waited for.
            threading.Event().wait(self._chance.uniform(0, 0.3))

    def _come(self, one: Arrival) -> None:
        self.came[one.kind] += 1
        self._there.append(one)
        first, last = (one.others, one.pods) if self._chance.random() < 0.8 else (one.pods, one.others)
        for item in (*first, *last):
            self._cluster.api.create(item)

    def _make_room(self) -> None:
        """Delete some at random, on average as many as have come."""
        if len(self._there) < ALIVE and (not self._there or self._chance.random() < 0.7):
            return
        for one in self._chance.sample(self._there, min(len(self._there), self._chance.randint(1, 3))):
            self._leave(one)

    def _leave(self, one: Arrival) -> None:
        self._there.remove(one)
        pods, others = list(one.pods), list(one.others)
        # A claim that is deleted before its pods stays until they are gone.
        for item in (*pods, *others) if self._chance.random() < 0.7 else (*others, *pods):
            self._cluster.api.delete_now(f"{collection_of(item)}/{item['metadata']['name']}")

    def crash(self) -> None:
        """End Leeboard like a crash, and start it again while pods come."""
        self.crashes += 1
        self._cluster.kill_leeboard()
        self._cluster.start_leeboard()
        if not HAS_MUTATING_POLICIES:
            # While the webhook is away, the API server refuses managed pods.
            self._cluster.running.wait_until_ready()

    def rest(self) -> None:
        """Change nothing until the books equal what the API server shows; fail when they never do."""
        began = time.monotonic()
        try:
            eventually(
                self._books.differences,
                until=lambda found: not found,
                within_s=SETTLED_WITHIN_S,
                what="the books equal the objects of the API server",
            )
        except AssertionError as differs:
            differs.add_note(f"wait: {self._whys(self._waiting())}")
            raise
        self.rests_s.append(time.monotonic() - began)

    def drain(self) -> None:
        """Delete what runs until everything that waits has run; fail when something waits although there is room."""
        last = time.monotonic()
        while waiting := self._waiting():
            running = [one for one in self._there if not waiting.keys() & set(one.names)]
            for one in running:
                self._leave(one)
            if running:
                last = time.monotonic()
            assert time.monotonic() - last < SETTLED_WITHIN_S * slowness(), f"wait in vain: {self._whys(waiting)}"
            threading.Event().wait(0.2)
        for one in [*self._there]:
            self._leave(one)

    def _waiting(self) -> dict[str, Object]:
        pods = self._cluster.api.items(DEFAULT_PODS)
        return {one["metadata"]["name"]: one for one in pods if not is_over(one) and not _runs(one)}

    def _whys(self, names: Mapping[str, Object]) -> list[str]:
        return [_state(one, self._cluster.running.why(name)) for name, one in names.items()]

    def failed(self) -> list[str]:
        """Return the pods that a kubelet has refused."""
        found = [one for one in self._cluster.api.items(DEFAULT_PODS) if one["status"]["phase"] == "Failed"]
        return [one["metadata"]["name"] for one in found]


def _runs(one: Object) -> bool:
    return bool(one["status"].get("phase") == "Running")


def _milli(amount: str) -> int:
    return int(amount[:-1]) if amount.endswith("m") else int(amount) * GPU_MILLI


def _state(one: Object, why: Object) -> str:
    gates = [each["name"] for each in one["spec"].get("schedulingGates", [])]
    nominated = one["status"].get("nominatedNodeName")
    conditions = [each.get("message") for each in one["status"].get("conditions", []) if each["status"] == "False"]
    return f"{one['metadata']['name']}: {gates=} {nominated=} {conditions=} {why.get('reason')}: {why.get('sentence')}"
