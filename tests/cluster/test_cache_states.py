"""The cache, whatever happens in whatever order: its sums and groups are those of adding everything up anew."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.cluster.cache import ClusterCache
from app.cluster.charges import Charge
from app.cluster.groups import Members, Terms, form, terms
from app.cluster.reservations import State
from app.model.names import GroupKey, NodeName, PodUid, QueueName
from app.model.node import Node
from app.model.pod import Pod
from app.model.podgroup import GroupSpec, PodGroup
from app.model.priority import PriorityClass
from app.model.queue import Queue
from app.model.reason import Reason, Refusal
from app.model.resources import AXES, NOTHING, Resources
from app.model.snapshot import Snapshot, Usage
from tests import given

ASIDE = Refusal(reason=Reason.BACKING_OFF, sentence="It backs off.")
TTL = 3

node_names = st.sampled_from([NodeName("n1"), NodeName("n2")])
queue_names = st.sampled_from([QueueName("q"), QueueName("r")])
gangs = st.sampled_from([GroupKey("default", "g"), GroupKey("default", "h")])
classes = st.sampled_from(["", "gold"])
members = st.fixed_dictionaries(
    {
        "queue": queue_names,
        "priority_class": classes,
        "gated": st.sampled_from([False, False, True]),
        "explicit_preemptible": st.sampled_from([None, None, False]),
    }
)
strangers = st.fixed_dictionaries(
    {"managed": st.sampled_from([False]), "queue": st.just("") | queue_names, "node": node_names}
)
changes: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries({"queue": queue_names}),
    st.fixed_dictionaries({"group": gangs, "names_group": st.sampled_from([True])}),
    st.fixed_dictionaries({"gated": st.booleans()}),
    st.fixed_dictionaries({"priority_class": classes}),
    st.fixed_dictionaries({"nominated": st.none() | node_names}),
    st.fixed_dictionaries({"refused_by_scheduler": st.booleans()}),
    st.just({"deleting": True}),
)


def some(choose: Callable[["Anything"], Iterable[Any]]) -> st.SearchStrategy[Any]:
    """Draw one of what the machine has; the rule's precondition says that there is any."""
    return st.runner().flatmap(lambda machine: st.sampled_from(list(choose(machine))))


class Anything(RuleBasedStateMachine):
    """What a cluster may do, beside a model that remembers only facts and derives the rest when it is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = ClusterCache()
        self.now = 0
        self.nodes: dict[NodeName, Node] = {}
        self.queues: dict[QueueName, Queue] = {}
        self.specs: dict[GroupKey, GroupSpec] = {}
        self.values: dict[str, int] = {}
        # In the order in which they came to their groups.
        self.pods: dict[PodUid, Pod] = {}
        self.held: dict[PodUid, tuple[NodeName, State, int]] = {}
        self.stuck: set[PodUid] = set()
        self.succeeded: dict[GroupKey, set[PodUid]] = {}
        self.aside: dict[GroupKey, Refusal] = {}
        self.refused: dict[PodUid, frozenset[NodeName]] = {}
        self.settled: dict[GroupKey, PodGroup] = {}
        self.frozen: list[tuple[Snapshot, tuple[Any, ...]]] = []
        self.unseen = 0
        self.before = (self.room(), self.picture(), 0, 0)

    # Objects come and go --------------------------------------------------------------------------------------------

    @rule(name=node_names, gpus=st.integers(0, 4), ready=st.sampled_from([True, True, False]))
    def node_comes(self, name: NodeName, gpus: int, ready: bool) -> None:  # noqa: FBT001 # drawn by name
        self.nodes[name] = given.node(name, gpus=gpus, ready=ready)
        self.cache.apply_node(self.nodes[name])

    @rule(name=node_names)
    def node_goes(self, name: NodeName) -> None:
        if self.nodes.pop(name, None):
            for uid in self.promised(name):
                del self.held[uid]
        self.cache.delete_node(name)

    @rule(name=queue_names, parent=st.none() | queue_names, deserved=st.integers(0, 3), limit=st.integers(0, 3))
    def queue_comes(self, name: QueueName, parent: QueueName | None, deserved: int, limit: int) -> None:
        self.queues[name] = given.queue(name, parent, deserved=deserved, limit=limit)
        self.cache.apply_queue(self.queues[name])

    @rule(name=queue_names)
    def queue_goes(self, name: QueueName) -> None:
        self.queues.pop(name, None)
        self.cache.delete_queue(name)

    @rule(
        spec=st.builds(
            GroupSpec,
            key=gangs,
            min_member=st.integers(1, 3),
            queue=st.none() | queue_names,
            priority_class=classes,
            preemptible=st.none() | st.booleans(),
        )
    )
    def group_comes(self, spec: GroupSpec) -> None:
        self.specs[spec.key] = spec
        self.cache.apply_group(spec)

    @rule(key=gangs)
    def group_goes(self, key: GroupKey) -> None:
        self.specs.pop(key, None)
        self.cache.delete_group(key)

    @rule(
        one=st.builds(
            PriorityClass,
            name=st.sampled_from(["gold", "train"]),
            value=st.sampled_from([7, 100]),
            problem=st.sampled_from(["", "", "it cannot be read"]),
        )
    )
    def class_comes(self, one: PriorityClass) -> None:
        self.values = {name: value for name, value in self.values.items() if name != one.name}
        self.values |= {} if one.problem else {one.name: one.value}
        self.cache.apply_class(one)

    @rule(name=st.sampled_from(["gold", "train"]))
    def class_goes(self, name: str) -> None:
        self.values.pop(name, None)
        self.cache.delete_class(name)

    # Pods live ------------------------------------------------------------------------------------------------------

    @rule(
        name=st.sampled_from("abcdef"),
        gpus=st.integers(0, 2),
        gang=st.sampled_from(["", "g", "h"]),
        more=members | strangers,
    )
    def pod_comes(self, name: str, gpus: int, gang: str, more: dict[str, Any]) -> None:
        if PodUid(f"uid-{name}") not in self.pods:
            self.show(given.pod(name, gpus=gpus, gang=gang, **more))

    @precondition(lambda self: self.pods)
    @rule(pod=some(lambda self: self.pods.values()), change=changes)
    def pod_changes(self, pod: Pod, change: dict[str, Any]) -> None:
        self.show(replace(pod, **change))

    @precondition(lambda self: any(self.unbound()))
    @rule(pod=some(lambda self: self.unbound()), node=node_names)
    def pod_is_bound_by_others(self, pod: Pod, node: NodeName) -> None:
        self.show(replace(pod, node=node))

    @precondition(lambda self: self.pods)
    @rule(pod=some(lambda self: self.pods.values()), well=st.booleans())
    def pod_ends(self, pod: Pod, well: bool) -> None:  # noqa: FBT001 # drawn by name
        for known in (self.pods, self.held, self.refused):
            known.pop(pod.uid, None)
        self.stuck.discard(pod.uid)
        self.cache.delete_pod(pod.uid)
        if well:
            if pod.group in self.specs:
                self.succeeded.setdefault(pod.group, set()).add(pod.uid)
            self.cache.count_success(pod.group, pod.uid)

    def show(self, pod: Pod) -> None:
        before, (node, state, _) = self.pods.get(pod.uid), self.held.get(pod.uid, (None, None, 0))
        moved = before is not None and before.group != pod.group
        refused = (
            before is not None
            and pod.refused_by_scheduler
            and state is State.PROMISED
            and not moved
            and (not before.refused_by_scheduler or (before.nominated == node and pod.nominated is None))
        )
        if pod.node or (state is State.PROMISED and (moved or refused or pod.deleting)):
            self.held.pop(pod.uid, None)
        if moved:
            del self.pods[pod.uid]
            self.stuck.discard(pod.uid)
        if refused and pod.managed:
            self.stuck.add(pod.uid)
        self.pods[pod.uid] = pod
        self.cache.apply_pod(pod)

    # What we promise ------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.nodes and any(self.promisable()))
    @rule(pod=some(lambda self: self.promisable()), node=some(lambda self: self.nodes))
    def promise(self, pod: Pod, node: NodeName) -> None:
        self.held.pop(pod.uid, None)
        self.held[pod.uid] = (node, State.PROMISED, self.now + TTL)
        self.cache.promise(pod.uid, node, expires_at=self.now + TTL)

    @precondition(lambda self: any(self.promised()))
    @rule(uid=some(lambda self: self.promised()))
    def asked(self, uid: PodUid) -> None:
        node, state, _ = self.held.pop(uid)
        self.held[uid] = (node, state, self.now + TTL)
        self.cache.reservations.extend(uid, self.now + TTL)

    @precondition(lambda self: any(self.promised()))
    @rule(uid=some(lambda self: self.promised()))
    def binding(self, uid: PodUid) -> None:
        node, _, until = self.held[uid]
        self.held[uid] = (node, State.BINDING, until)
        self.cache.reservations.binding(uid)

    @precondition(lambda self: self.held)
    @rule(uid=some(lambda self: self.held), bound=st.booleans())
    def binding_ends(self, uid: PodUid, bound: bool) -> None:  # noqa: FBT001 # drawn by name
        if bound:
            self.show(replace(self.pods[uid], node=self.held[uid][0]))
        else:
            del self.held[uid]
            self.cache.drop_promise(uid)

    @rule()
    def time_passes(self) -> None:
        self.now += 1
        over = [uid for uid in self.promised() if self.held[uid][2] <= self.now]
        assert [held.pod for held in self.cache.reservations.expired(self.now)] == over
        for uid in over:
            del self.held[uid]
            self.cache.drop_promise(uid)

    # What is learnt and decided -------------------------------------------------------------------------------------

    @precondition(lambda self: self.pods)
    @rule(pod=some(lambda self: self.pods.values()), nodes=st.frozensets(node_names))
    def offered(self, pod: Pod, nodes: frozenset[NodeName]) -> None:
        self.stuck.discard(pod.uid)
        self.refused.pop(pod.uid, None)
        self.refused |= {pod.uid: nodes} if nodes else {}
        self.cache.accept(pod.uid)
        self.cache.refuse_only(pod.uid, nodes)

    @precondition(lambda self: any(self.keys()))
    @rule(key=some(lambda self: self.keys()))
    def set_aside(self, key: GroupKey) -> None:
        self.aside[key] = ASIDE
        self.cache.set_aside(key, ASIDE)

    @precondition(lambda self: self.aside)
    @rule(key=some(lambda self: self.aside))
    def readmit(self, key: GroupKey) -> None:
        del self.aside[key]
        self.refused = {uid: nodes for uid, nodes in self.refused.items() if self.pods[uid] not in self.members(key)}
        self.cache.readmit(key)

    @rule()
    def begin_plan(self) -> None:
        snapshot = self.cache.snapshot()
        self.frozen = [*self.frozen[-2:], (snapshot, contents(snapshot))]

    @precondition(lambda self: self.frozen)
    @rule()
    def end_plan(self) -> None:
        snapshot, _ = self.frozen[-1]
        self.settled |= snapshot.groups
        self.cache.considered(snapshot.groups, snapshot.version)

    @rule(changes=st.integers(1, 4))
    def look_away(self, changes: int) -> None:
        self.unseen = changes

    # What is true at every moment -----------------------------------------------------------------------------------

    @invariant()
    def emptied_groups_are_forgotten(self) -> None:
        keys = set(self.keys())
        self.aside = {key: refusal for key, refusal in self.aside.items() if key in keys}
        self.succeeded = {key: uids for key, uids in self.succeeded.items() if key in keys | self.specs.keys()}

    @invariant()
    def changes_are_seen_as_such(self) -> None:
        room, picture, version, relief = self.before
        self.before = (self.room(), self.picture(), self.cache.version, self.cache.relief)
        grew = any(amount > room.get(key, -1 << 62) for key, amount in self.before[0].items())
        assert not grew or self.cache.relief > relief
        assert self.before[1] == picture or self.cache.version > version

    @invariant()
    def the_cache_shows_the_model(self) -> None:
        self.unseen -= 1
        if self.unseen >= 0:
            return
        seen, (free, usage, groups, refused) = self.cache.snapshot(), self.picture()
        assert {
            node.name: Resources.of(column) for node, column in zip(seen.nodes.nodes, seen.free.T, strict=True)
        } == free
        assert (seen.usage, seen.groups, seen.refused) == (usage, groups, refused)
        assert seen.total == self.total()
        assert {held.pod: (held.node, held.state) for held in self.cache.reservations} == {
            uid: held[:2] for uid, held in self.held.items()
        }
        assert all(self.settled.get(key) == group or key in self.cache.unsettled for key, group in groups.items())
        assert all(contents(snapshot) == before for snapshot, before in self.frozen)

    # The model, derived anew ----------------------------------------------------------------------------------------

    def unbound(self) -> Iterator[Pod]:
        return (pod for pod in self.pods.values() if pod.node is None)

    def promisable(self) -> Iterator[Pod]:
        held = {uid for uid, (_, state, _) in self.held.items() if state is State.BINDING}
        return (pod for pod in self.unbound() if not pod.deleting and pod.uid not in held)

    def promised(self, on: NodeName | None = None) -> list[PodUid]:
        return [uid for uid, (node, state, _) in self.held.items() if state is State.PROMISED and on in (None, node)]

    def keys(self) -> Iterable[GroupKey]:
        return dict.fromkeys(pod.group for pod in self.pods.values() if pod.managed)

    def members(self, key: GroupKey) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.managed and pod.group == key]

    def terms(self, key: GroupKey) -> Terms:
        return terms(self.specs.get(key), self.members(key)[0], self.values)

    def place(self, pod: Pod) -> NodeName | None:
        return pod.node or (self.held[pod.uid][0] if pod.uid in self.held else None)

    def charges(self) -> list[Charge]:
        ours = [(pod, self.terms(pod.group)) for pod in self.pods.values() if pod.managed]
        theirs = [pod for pod in self.pods.values() if not pod.managed]
        return [
            *(Charge(pod.request, self.place(pod), on.queue, on.preemptible) for pod, on in ours),
            *(Charge(pod.request, pod.node, pod.queue or None) for pod in theirs),
        ]

    def usage(self) -> Mapping[QueueName, Usage]:
        found: dict[QueueName, Usage] = {}
        for charge in self.charges():
            if charge.queue:
                held = charge.request if charge.node else NOTHING
                before = found.get(charge.queue, Usage())
                found[charge.queue] = Usage(
                    allocated=before.allocated + held,
                    allocated_non_preemptible=before.allocated_non_preemptible
                    + (NOTHING if charge.preemptible else held),
                    requested=before.requested + charge.request,
                )
        return found

    def free(self) -> Mapping[NodeName, Resources]:
        return {
            name: node.allocatable - total(one for one in self.charges() if one.node == name)
            for name, node in self.nodes.items()
        }

    def total(self) -> Resources:
        ready = {name for name, node in self.nodes.items() if node.ready}
        outside = total(one for one in self.charges() if one.queue is None and one.node in ready)
        return sum((self.nodes[name].allocatable for name in ready), NOTHING) - outside

    def groups(self) -> Mapping[GroupKey, PodGroup]:
        formed = {key: self.group(key) for key in self.keys()}
        return {key: group for key, group in formed.items() if group and (group.pending or group.refusal)}

    def group(self, key: GroupKey) -> PodGroup | None:
        pods = self.members(key)
        held = frozenset(pod.uid for pod in pods if self.place(pod))
        found = Members(pods=pods, held=held, stuck=self.stuck, succeeded=len(self.succeeded.get(key, ())))
        return form(key, self.specs.get(key), found, self.terms(key), self.aside.get(key)) if found.waits() else None

    def picture(self) -> tuple[Any, ...]:
        return self.free(), self.usage(), self.groups(), dict(self.refused)

    def room(self) -> dict[tuple[str, str], int]:
        """Return how much could still be started where, as far as nodes and queues decide it."""
        usage, found = self.usage(), dict[tuple[str, str], int]()
        for node, free in self.free().items():
            found |= {
                (axis, node): left for axis, left in zip(AXES, free.amounts, strict=True) if self.nodes[node].ready
            }
        for name, queue in self.queues.items():
            mine = usage.get(name, Usage())
            found["limit", name] = queue.gpu_milli.limit - mine.allocated.gpu_milli
            found["quota", name] = queue.gpu_milli.deserved - mine.allocated_non_preemptible.gpu_milli
        return found


def total(charges: Iterable[Charge]) -> Resources:
    return sum((one.request for one in charges), NOTHING)


def contents(snapshot: Snapshot) -> tuple[Any, ...]:
    return (
        *(snapshot.version, snapshot.total, snapshot.free.tolist(), snapshot.nodes.allocatable.tolist()),
        *(snapshot.nodes.nodes, dict(snapshot.nodes.index), dict(snapshot.queues), dict(snapshot.usage)),
        *(dict(snapshot.groups), dict(snapshot.refused)),
    )


TestAnything = Anything.TestCase
TestAnything.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
