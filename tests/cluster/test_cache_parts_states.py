"""The cache with GPU shares: after any events in any order its state follows from the facts, not from their order.

Two twins: one adds up the facts in plain loops, the other is a new cache that gets the facts in one order.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.cluster.ledger.charge import Hold
from app.cluster.ledger.reservations import ReservationState
from app.cluster.state.cache import ClusterCache
from app.cluster.state.fitted import fitted
from app.model.device import Device, DeviceUuid, GpuNode, Health, Holder
from app.model.names import NodeName, PodUid
from app.model.node import Node
from app.model.pod import Pod, Sharing
from app.model.snapshot import PART, Snapshot, parts_of
from tests import given
from tests.cluster.sharing_given import reservation

TTL = 10.0
UUIDS = ("u1", "u2", "u3")

node_names = st.sampled_from([NodeName("n1"), NodeName("n2")])
names = st.sampled_from([("g",), ("g",), ("h",), ("g", "h")])
nodes = st.builds(
    given.node,
    node_names,
    gpus=st.integers(0, 4),
    device_memory_mib=st.sampled_from([0, 1000, 3000]),
    ready=st.sampled_from([True, True, False]),
)
sharings = st.sampled_from(
    [
        Sharing(portion_ppm=500_000),
        Sharing(portion_ppm=300_000, overhead_mib=10),
        Sharing(memory_mib=700),
        Sharing(memory_mib=5000),
    ]
)
sharers = st.builds(given.pod, st.sampled_from("abcd"), gpus=st.just(0), sharing=sharings)
wholes = st.builds(given.pod, st.sampled_from("xy"), gpus=st.integers(1, 2))
health = st.sampled_from([Health.HEALTHY, Health.HEALTHY, Health.HEALTHY, Health.UNHEALTHY])


def some(choose: Callable[["Parts"], Iterable[Any]]) -> st.SearchStrategy[Any]:
    """Draw one of the existing objects; the precondition of the rule says that there is one."""
    return st.runner().flatmap(lambda machine: st.sampled_from(list(choose(machine))))


class Parts(RuleBasedStateMachine):
    """The facts alone, as every source has reported them last."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = ClusterCache(overuse_tolerance_mib=50)
        self.now = 0.0
        self.nodes: dict[NodeName, Node] = {}
        self.pods: dict[PodUid, Pod] = {}
        self.held: dict[PodUid, tuple[NodeName, tuple[str, ...], ReservationState]] = {}
        self.reservations: dict[PodUid, Pod] = {}
        self.reports: dict[NodeName, tuple[GpuNode, float]] = {}
        self.silent: set[NodeName] = set()
        self.sizes: dict[NodeName, GpuNode] = {}
        """The last report of each agent that could be trusted."""
        self.closed: set[tuple[NodeName, str]] = set()
        self.before: tuple[Any, ...] = ()

    @initialize(node=nodes, pods=st.tuples(sharers, sharers))
    def start(self, node: Node, pods: Iterable[Pod]) -> None:
        self.node_comes(node)
        for pod in pods:
            self.pod_comes(pod)

    # What the watches show

    @rule(node=nodes)
    def node_comes(self, node: Node) -> None:
        if not node.ready and self.nodes.get(node.name) != node:
            self.held = {uid: held for uid, held in self.held.items() if held[0] != node.name}
        self.nodes[node.name] = node
        self.cache.apply_node(node)

    @precondition(lambda self: self.nodes)
    @rule(name=some(lambda self: self.nodes))
    def node_goes(self, name: NodeName) -> None:
        del self.nodes[name]
        self.held = {uid: held for uid, held in self.held.items() if held[0] != name}
        self.cache.delete_node(name)

    @rule(pod=sharers | wholes)
    def pod_comes(self, pod: Pod) -> None:
        if pod.uid not in self.pods:
            self.show(pod)

    @precondition(lambda self: self.unbound())
    @rule(uid=some(lambda self: self.unbound()), node=node_names, of=names, uuids=st.permutations(UUIDS))
    def pod_is_bound(self, uid: PodUid, node: NodeName, of: tuple[str, ...], uuids: list[str]) -> None:
        """Bind it to its reserved node, or to any node by another scheduler, with devices or without."""
        held = self.held.pop(uid, None)
        at, devices = held[:2] if held else (node, of)
        if self.pods[uid].sharing is None:
            devices = ()
        told = tuple(uuids[: len(devices)])
        self.show(replace(self.pods[uid], node=at, devices=devices, device_uuids=told))

    @precondition(lambda self: self.pods)
    @rule(uid=some(lambda self: self.pods))
    def pod_leaves(self, uid: PodUid) -> None:
        self.held.pop(uid, None)
        self.show(replace(self.pods[uid], deleting=True))

    @precondition(lambda self: self.pods)
    @rule(uid=some(lambda self: self.pods))
    def pod_is_gone(self, uid: PodUid) -> None:
        del self.pods[uid]
        self.held.pop(uid, None)
        self.cache.delete_pod(uid)

    @rule(node=node_names, name=st.sampled_from("gh"), number=st.integers(0, 1), deleting=st.booleans())
    def reservation_comes(self, node: NodeName, name: str, number: int, *, deleting: bool) -> None:
        pod = replace(reservation(f"r-{node}-{name}-{number}", name, deleting=deleting), node=node)
        self.reservations[pod.uid] = pod
        self.cache.apply_pod(pod)

    @precondition(lambda self: self.reservations)
    @rule(uid=some(lambda self: self.reservations))
    def reservation_goes(self, uid: PodUid) -> None:
        del self.reservations[uid]
        self.cache.delete_pod(uid)

    def show(self, pod: Pod) -> None:
        self.pods[pod.uid] = pod
        self.cache.apply_pod(pod)

    # Reports of the agents

    @rule(
        name=node_names,
        owners=st.lists(st.integers(0, 5), min_size=3, max_size=3),
        state=health,
        used_mib=st.sampled_from([None, 0, 400, 900]),
        how=st.sampled_from(["", "", "", "kubelet", "driver"]),
    )
    def agent_reports(self, name: NodeName, owners: list[int], state: Health, used_mib: int | None, how: str) -> None:
        mine = [pod for pod in self.reservations.values() if pod.node == name]
        devices = []
        for uuid, owner in zip(UUIDS, owners, strict=True):
            holders = [Holder(pod.namespace, pod.name, pod.uid) for pod in mine[owner : owner + 1]]
            devices.append(
                Device(
                    uuid=DeviceUuid(uuid),
                    memory_mib=2000,
                    used_mib=used_mib,
                    health=state if uuid == "u1" else Health.HEALTHY,
                    holders=tuple(holders),
                )
            )
        told = GpuNode(
            name=name, devices=tuple(devices), kubelet_answers=how != "kubelet", message=how if how == "driver" else ""
        )
        self.reports[name] = told, self.now
        self.silent.discard(name)
        self.sizes |= {} if told.message else {name: told}
        self.cache.apply_gpu_node(told, heard_at=self.now)

    @precondition(lambda self: self.reports)
    @rule(name=some(lambda self: self.reports))
    def agent_is_gone(self, name: NodeName) -> None:
        del self.reports[name]
        self.sizes.pop(name, None)
        self.silent.discard(name)
        self.cache.delete_gpu_node(name)

    @rule()
    def time_passes(self) -> None:
        self.now += TTL + 1
        self.silent |= {name for name, (_, at) in self.reports.items() if at < self.now - TTL}
        self.cache.gpu_books.age(self.now - TTL)

    # Our reservations

    @precondition(lambda self: self.nodes and self.promisable())
    @rule(uid=some(lambda self: self.promisable()), node=some(lambda self: self.nodes), of=names, now=st.booleans())
    def promise(self, uid: PodUid, node: NodeName, of: tuple[str, ...], *, now: bool) -> None:
        devices = of if self.pods[uid].sharing else ()
        self.held[uid] = node, devices, ReservationState.PROMISED if now else ReservationState.AWAITING
        (self.cache.promises.make if now else self.cache.promises.await_release)(uid, node, devices, expires_at=1e9)

    @precondition(lambda self: self.held)
    @rule(uid=some(lambda self: self.held), well=st.booleans())
    def promise_ends(self, uid: PodUid, *, well: bool) -> None:
        node, devices, state = self.held.pop(uid)
        if well and state is ReservationState.AWAITING:
            self.held[uid] = node, devices, ReservationState.PROMISED
            self.cache.promises.fulfil(uid)
        else:
            self.cache.promises.drop(uid)

    @rule(node=node_names, name=st.sampled_from("gh"))
    def reservation_is_being_removed_or_not(self, node: NodeName, name: str) -> None:
        self.closed ^= {(node, name)}
        (self.cache.gpu_books.close if (node, name) in self.closed else self.cache.gpu_books.reopen)(node, name)

    # Invariants

    @invariant()
    def every_gpu_is_charged_once(self) -> None:
        seen = self.cache.snapshot()
        for node in self.nodes.values():
            here = self.cache.gpus.on(node.name)
            column = seen.nodes.index[node.name]
            mine = [pod for pod in self.pods.values() if self.place(pod) == node.name]
            whole = sum((fitted(pod, node) if pod.node else pod).request.gpu_milli for pod in mine)
            charged = 1000 * (len(self.names_on(node.name)) + here.blocked)
            assert seen.free[2, column] == node.allocatable.gpu_milli - whole - charged

    @invariant()
    def parts_add_up(self) -> None:
        for name in self.nodes:
            size = self.cache.gpus.size(name)[0]
            for gpu in self.cache.gpus.shared(name):
                mine = [pod for pod in self.pods.values() if (name, gpu.name) in self.parts_of(pod)]
                parts = {pod.uid: parts_of(pod.sharing or Sharing(), size) for pod in mine}
                leaving = sum(parts[pod.uid] for pod in mine if pod.deleting)
                assert (gpu.free, gpu.releasing) == (size * PART - sum(parts.values()), leaving)
                assert set(gpu.holders) == parts.keys()
                assert gpu.hold is self.hold(name, gpu.name, mine)

    @invariant()
    def it_shows_what_a_cache_shows_that_learns_the_facts_now(self) -> None:
        assert picture(self.cache.snapshot()) == picture(self.anew().snapshot())

    @invariant()
    def changes_and_relief_are_noted(self) -> None:
        seen = self.cache.snapshot()
        now, room = picture(seen), self.room(seen)
        before, self.before = self.before, (now, room, self.cache.changes.version, self.cache.changes.relief)
        if before:
            assert before[0] == now or self.cache.changes.version > before[2]
            grew = any(amount > before[1].get(key, 0) for key, amount in room.items())
            assert not grew or self.cache.changes.relief > before[3]

    # The sums of the facts

    def unbound(self) -> list[PodUid]:
        return [uid for uid, pod in self.pods.items() if pod.node is None and not pod.deleting]

    def promisable(self) -> list[PodUid]:
        return self.unbound()

    def place(self, pod: Pod) -> NodeName | None:
        return pod.node or (self.held[pod.uid][0] if pod.uid in self.held else None)

    def parts_of(self, pod: Pod) -> set[tuple[NodeName | None, str]]:
        devices = pod.devices if pod.node else self.held[pod.uid][1] if pod.uid in self.held else ()
        return {(self.place(pod), name) for name in devices}

    def names_on(self, node: NodeName) -> set[str]:
        of_pods = {name for pod in self.pods.values() for at, name in self.parts_of(pod) if at == node}
        return of_pods | {pod.reserves for pod in self.reservations.values() if pod.node == node}

    def hold(self, node: NodeName, name: str, pods: list[Pod]) -> Hold:
        """Return how a whole GPU is held."""
        states = [self.held[pod.uid][2] for pod in pods if pod.uid in self.held]
        if ReservationState.PROMISED in states or any(pod.node and not pod.deleting for pod in pods):
            return Hold.KEPT
        if ReservationState.AWAITING in states:
            is_reserved = any((pod.node, pod.reserves) == (node, name) for pod in self.reservations.values())
            return Hold.KEPT if is_reserved else Hold.AWAITED
        return Hold.LEAVING

    def room(self, seen: Snapshot) -> dict[tuple[str, str], int]:
        """Return how many whole GPUs and parts are free, now and later, on nodes that take pods."""
        found: dict[tuple[str, str], int] = {}
        for column, node in enumerate(seen.nodes.nodes):
            free = int(seen.free[2, column])
            future = free + (int(seen.releasing[2, column]) if seen.releasing is not None else 0)
            if node.ready:
                found |= {("free", node.name): max(free, 0), ("future", node.name): max(future, 0)}
                for each in seen.shared.get(node.name, ()) if free >= 0 else ():
                    found["part", f"{node.name}/{each.name}"] = max(each.free, 0)
                    found["part later", f"{node.name}/{each.name}"] = max(each.free + each.releasing, 0)
        return found

    def anew(self) -> ClusterCache:
        """Give all facts to another cache."""
        cache = ClusterCache(overuse_tolerance_mib=50)
        for node, name in self.closed:
            cache.gpu_books.close(node, name)
        for pod in (*self.reservations.values(), *self.pods.values()):
            cache.apply_pod(pod)
        for told in self.sizes.values():
            cache.apply_gpu_node(told, heard_at=self.now)
        for name, (told, _) in self.reports.items():
            cache.apply_gpu_node(told, heard_at=-1.0 if name in self.silent else self.now)
        cache.gpu_books.age(self.now)
        for node_now in self.nodes.values():
            cache.apply_node(node_now)
        for uid, (node, devices, state) in self.held.items():
            hold = cache.promises.make if state is ReservationState.PROMISED else cache.promises.await_release
            hold(uid, node, devices, expires_at=1e9)
        return cache


def picture(seen: Snapshot) -> tuple[Any, ...]:
    """Return what the planner sees of GPUs."""
    nodes = seen.nodes
    idle = [0] * len(nodes.nodes) if seen.idle_devices is None else seen.idle_devices.tolist()
    sizes = (nodes.device_memory_mib.tolist(), nodes.shares_devices.tolist(), nodes.smallest_device_mib)
    releasing = None if seen.releasing is None or not seen.releasing.any() else seen.releasing.tolist()
    shared = {name: devices for name, devices in seen.shared.items() if name in nodes.index}
    return seen.free.tolist(), releasing, shared, dict(seen.usage), idle, sizes, seen.total


TestParts = Parts.TestCase
TestParts.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
