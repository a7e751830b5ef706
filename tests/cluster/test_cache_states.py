"""The cache after any events in any order: its sums and groups equal those computed from scratch."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.cluster.groups.groups import Members, Place, form
from app.cluster.groups.terms import GroupTerms, terms
from app.cluster.ledger.charge import Charge
from app.cluster.ledger.reservations import ReservationState
from app.cluster.queues.tree import judged
from app.cluster.state.cache import ClusterCache
from app.cluster.state.fitted import fitted
from app.model.names import GroupKey, NodeName, PodUid, QueueName
from app.model.node import Node
from app.model.pod import Pod, SchedulerMessage
from app.model.podgroup import GroupSpec, PodGroup
from app.model.priority import PriorityClass
from app.model.queue import Queue
from app.model.reason import Reason, Refusal
from app.model.resources import AXES, NOTHING, Resources
from app.model.snapshot import Snapshot, Usage
from app.model.topology import Topology
from tests import given

ASIDE = Refusal(reason=Reason.BACKING_OFF, sentence="It backs off.")
TTL = 3

node_names = st.sampled_from([NodeName("n1"), NodeName("n2")])
queue_names = st.sampled_from([QueueName("q"), QueueName("r")])
gangs = st.sampled_from([GroupKey("default", "g"), GroupKey("default", "h")])
classes = st.sampled_from([(), ("gold",)])
nodes = st.builds(given.node, node_names, gpus=st.integers(0, 4), ready=st.sampled_from([True, True, False]))
queues = st.builds(
    given.queue, queue_names, st.none() | queue_names, deserved=st.integers(0, 3), limit=st.integers(0, 3)
)
specs = st.builds(
    GroupSpec,
    key=gangs,
    min_member=st.integers(1, 3),
    queue=st.none() | queue_names,
    priority_classes=classes,
    preemptible=st.none() | st.booleans(),
)
priority_classes = st.builds(
    PriorityClass,
    name=st.sampled_from(["gold", "gold", "train"]),
    value=st.sampled_from([7, 100]),
    problem=st.sampled_from(["", "", "unreadable"]),
)
firmness = st.sampled_from([None, None, False])
members = st.builds(
    given.pod,
    st.sampled_from("abcdef"),
    gpus=st.integers(0, 2),
    gang=st.sampled_from(["", "g", "g", "h"]),
    queue=queue_names,
    priority_classes=classes,
    explicit_preemptible=firmness,
)
strangers = st.builds(
    given.pod,
    st.sampled_from("xy"),
    queue=st.just("") | queue_names,
    managed=st.sampled_from([False]),
    node=st.none() | node_names,
)
changes: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries({"queue": queue_names}),
    st.fixed_dictionaries({"group": gangs, "names_group": st.sampled_from([True])}),
    st.fixed_dictionaries({"gated": st.booleans()}),
    st.fixed_dictionaries({"held": st.booleans()}),
    st.fixed_dictionaries({"priority_classes": classes}),
    st.fixed_dictionaries({"nominated": st.none() | node_names}),
    st.fixed_dictionaries({"said": st.builds(SchedulerMessage, by_scheduler=st.booleans(), by_us=st.booleans())}),
    st.fixed_dictionaries({"said": st.builds(SchedulerMessage, by_scheduler=st.booleans(), by_us=st.booleans())}),
    st.fixed_dictionaries({"deleting": st.sampled_from([True])}),
    st.fixed_dictionaries({"node": node_names, "started_preemptible": st.booleans()}),
    st.fixed_dictionaries({"node": node_names, "bound_queue": queue_names, "started_firm": st.booleans()}),
    st.fixed_dictionaries({"bound_queue": queue_names | st.just("")}),
)


def some(choose: Callable[["Anything"], Iterable[Any]]) -> st.SearchStrategy[Any]:
    """Draw one of the existing objects; the precondition of the rule says that there is one."""
    return st.runner().flatmap(lambda machine: st.sampled_from(list(choose(machine))))


class Anything(RuleBasedStateMachine):
    """All events of a cluster, beside a model that stores only facts and adds them up at each read."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = ClusterCache()
        self.touched: dict[GroupKey, None] = {}
        self.cache.groups.touched.tell(self.touched)
        self.now = 0
        self.nodes: dict[NodeName, Node] = {}
        self.queues: dict[QueueName, Queue] = {}
        self.specs: dict[GroupKey, GroupSpec] = {}
        self.values: dict[str, int] = {}
        # In the order in which they joined their groups.
        self.pods: dict[PodUid, Pod] = {}
        # In the order of expiry.
        self.held: dict[PodUid, tuple[NodeName, ReservationState, int]] = {}
        self.stuck: set[PodUid] = set()
        self.succeeded: dict[GroupKey, set[PodUid]] = {}
        self.aside: dict[GroupKey, Refusal] = {}
        self.refused: dict[PodUid, frozenset[NodeName]] = {}
        self.settled: dict[GroupKey, PodGroup] = {}
        self.frozen: list[tuple[Snapshot, tuple[Any, ...]]] = []
        self.unseen = 0
        self.before = (self.room(), self.picture(), self.standings(), 0, 0)

    # What the watches show ------------------------------------------------------------------------------------------

    @initialize(shown=st.tuples(nodes, nodes, queues, specs, members, members, members))
    def start(self, shown: Iterable[Node | Queue | GroupSpec | Pod]) -> None:
        for one in shown:
            self.show(one)

    @rule(one=nodes | queues | specs | priority_classes)
    def object_comes(self, one: Node | Queue | GroupSpec | PriorityClass) -> None:
        self.show(one)

    @rule(one=nodes | queues | specs | priority_classes)
    def object_goes(self, one: Node | Queue | GroupSpec | PriorityClass) -> None:
        on = self.all_terms()
        match one:
            case Node():
                for uid in self.promised(one.name) if self.nodes.pop(one.name, None) else []:
                    del self.held[uid]
                self.cache.delete_node(one.name)
            case Queue():
                for uid in self.promised() if self.queues.pop(one.name, None) else []:
                    if self.held[uid][1] is not ReservationState.ANSWERED and not self.takes_pods(self.pods[uid]):
                        del self.held[uid]
                self.cache.delete_queue(one.name)
            case GroupSpec():
                for uid in self.promised() if self.specs.pop(one.key, None) else []:
                    if self.pods[uid].group == one.key:
                        del self.held[uid]
                self.cache.delete_group(one.key)
            case PriorityClass():
                self.values.pop(one.name, None)
                self.cache.delete_class(one.name)
        self.take_back(on)

    @rule(pod=members | strangers)
    def pod_comes(self, pod: Pod) -> None:
        if pod.uid not in self.pods:
            self.show(pod)

    @precondition(lambda self: self.pods)
    @rule(pod=some(lambda self: self.pods.values()), change=changes)
    def pod_changes(self, pod: Pod, change: dict[str, Any]) -> None:
        self.show(replace(pod, **(change if pod.node is None else change | {"node": pod.node})))

    @precondition(lambda self: self.pods)
    @rule(pod=some(lambda self: self.pods.values()), well=st.booleans())
    def pod_ends(self, pod: Pod, *, well: bool) -> None:
        on = self.all_terms()
        for known in (self.pods, self.held, self.refused):
            known.pop(pod.uid, None)
        self.stuck.discard(pod.uid)
        self.cache.delete_pod(pod.uid)
        if well:
            if pod.group in self.specs:
                self.succeeded.setdefault(pod.group, set()).add(pod.uid)
            self.cache.groups.progress.count_success(pod.group, pod.uid)
        self.take_back(on)

    def show(self, one: Node | Queue | GroupSpec | PriorityClass | Pod) -> None:
        on = self.all_terms()
        match one:
            case Node():
                if not one.ready and self.nodes.get(one.name) != one:
                    self.held = {uid: held for uid, held in self.held.items() if uid not in self.promised(one.name)}
                self.nodes[one.name] = one
                self.cache.apply_node(one)
            case Queue():
                self.queues[one.name] = one
                self.cache.apply_queue(one)
            case GroupSpec():
                self.specs[one.key] = one
                self.cache.apply_group(one)
            case PriorityClass():
                self.values |= {} if one.problem else {one.name: one.value}
                self.cache.apply_class(one)
            case Pod():
                before = self.pods.get(one.uid)
                stays = before is not None and one.node is not None and one.managed and self.is_preemptible(before)
                if before is not None and self.stays_in_queue(before, one):
                    one = replace(one, queue=before.queue)
                shown, one = one, self.as_bound(before, one) if before is not None else one
                self.learn(one, before or one)
                self.pods[one.uid] = replace(one, started_preemptible=True) if stays else one
                self.cache.apply_pod(replace(shown, started_preemptible=True) if stays else shown)
        self.take_back(on)

    def stays_in_queue(self, before: Pod, pod: Pod) -> bool:
        """Whether a pod has its node, and nothing on it records the queue with which it was bound."""
        is_answered = pod.uid in self.held and self.held[pod.uid][1] is ReservationState.ANSWERED
        has_started = pod.node is not None or is_answered
        return before.managed and pod.managed and has_started and not before.bound_queue

    def as_bound(self, before: Pod, pod: Pod) -> Pod:
        """Return a pod with the fields that nothing changes after its binding."""
        if not before.bound_queue:
            return pod
        if before.node is None:
            return replace(pod, bound_queue=before.bound_queue)
        fixed = ("bound_queue", "started_firm", "group", "names_group", "subgroup")
        return replace(pod, **{name: getattr(before, name) for name in fixed})

    def is_preemptible(self, pod: Pod) -> bool:
        """Whether it is preemptible, or was when it was bound."""
        return pod.started_preemptible if pod.node else pod.managed and self.terms(pod.group).preemptible

    def take_back(self, before: Mapping[GroupKey, GroupTerms]) -> None:
        for uid in self.promised():
            key = self.pods[uid].group
            now = self.terms(key)
            if before[key].queue != now.queue or (before[key].preemptible and not now.preemptible):
                del self.held[uid]

    def learn(self, pod: Pod, before: Pod) -> None:
        node, state, _ = self.held.get(pod.uid, (None, None, 0))
        moved, promised = before.group != pod.group, state is ReservationState.PROMISED
        cleared = before.nominated == node and pod.nominated is None
        revocable = state not in (None, ReservationState.BINDING)
        refused = promised and not moved and pod.said.by_scheduler and (cleared or not before.said.by_scheduler)
        if refused:
            self.stuck.add(pod.uid)
        if moved:
            del self.pods[pod.uid]
            self.stuck.discard(pod.uid)
        if pod.node or (revocable and (moved or refused or pod.deleting)):
            self.held.pop(pod.uid, None)

    # Our reservations -----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.nodes and any(self.promisable()))
    @rule(pod=some(lambda self: self.promisable()), node=some(lambda self: self.nodes), now=st.booleans())
    def promise(self, pod: Pod, node: NodeName, *, now: bool) -> None:
        self.held.pop(pod.uid, None)
        self.held[pod.uid] = (node, ReservationState.PROMISED if now else ReservationState.AWAITING, self.now + TTL)
        (self.cache.promises.make if now else self.cache.promises.await_release)(
            pod.uid, node, expires_at=self.now + TTL
        )

    @precondition(lambda self: self.promised())
    @rule(uid=some(lambda self: self.promised()), well=st.booleans())
    def kube_scheduler_asks(self, uid: PodUid, *, well: bool) -> None:
        node, state, until = self.held.pop(uid)
        if state is ReservationState.AWAITING:
            self.held[uid] = (node, ReservationState.PROMISED, until)
            self.cache.promises.fulfil(uid)
        elif well:
            self.held[uid] = (node, ReservationState.BINDING, until)
            self.cache.reservations.binding(uid)
        else:
            self.held[uid] = (node, state, self.now + TTL)
            self.cache.reservations.extend(uid, self.now + TTL)

    @precondition(lambda self: self.held)
    @rule(uid=some(lambda self: self.held), well=st.booleans())
    def binding_ends(self, uid: PodUid, *, well: bool) -> None:
        if well:
            self.show(replace(self.pods[uid], node=self.held[uid][0]))
        else:
            self.drop(uid)

    @rule()
    def time_passes(self) -> None:
        self.now += 1
        over = [uid for uid in self.promised() if self.held[uid][2] <= self.now]
        assert [held.pod for held in self.cache.reservations.expired(self.now)] == over
        for uid in over:
            self.drop(uid)

    def drop(self, uid: PodUid) -> None:
        del self.held[uid]
        self.cache.promises.drop(uid)

    @rule(level=st.sampled_from(["zone", "rack"]))
    def topology_is_stated(self, level: str) -> None:
        self.cache.topologies.apply(Topology(name="t", levels=(level,)))

    # Findings and decisions -----------------------------------------------------------------------------------------

    @precondition(lambda self: self.pods)
    @rule(pod=some(lambda self: self.pods.values()), refused=st.frozensets(node_names))
    def nodes_are_offered(self, pod: Pod, refused: frozenset[NodeName]) -> None:
        self.stuck.discard(pod.uid)
        self.refused.pop(pod.uid, None)
        self.refused |= {pod.uid: refused} if refused else {}
        self.cache.findings.accept(pod.uid)
        self.cache.findings.refuse_only(pod.uid, refused)

    @precondition(lambda self: self.keys())
    @rule(key=some(lambda self: self.keys()))
    def group_backs_off_or_no_longer(self, key: GroupKey) -> None:
        if key not in self.aside:
            self.aside[key] = ASIDE
            self.cache.groups.set_aside(key, ASIDE)
        else:
            del self.aside[key]
            for pod in self.members(key):
                self.refused.pop(pod.uid, None)
            self.cache.findings.readmit(key)

    @rule()
    def plan_begins(self) -> None:
        snapshot = self.cache.snapshot()
        self.frozen = [*self.frozen[-2:], (snapshot, contents(snapshot))]

    @precondition(lambda self: self.frozen)
    @rule()
    def plan_ends(self) -> None:
        snapshot, _ = self.frozen[-1]
        self.settled |= snapshot.groups
        self.cache.groups.unsettled.considered(snapshot.groups, snapshot.version)

    @rule(changes=st.integers(1, 4))
    def nobody_looks(self, changes: int) -> None:
        self.unseen = changes

    # Invariants -----------------------------------------------------------------------------------------------------

    @invariant()
    def emptied_groups_are_forgotten(self) -> None:
        keys = set(self.keys())
        self.aside = {key: refusal for key, refusal in self.aside.items() if key in keys}
        self.succeeded = {key: uids for key, uids in self.succeeded.items() if key in keys | self.specs.keys()}

    @invariant()
    def changes_are_noted(self) -> None:
        room, picture, standing, version, relief = self.before
        self.before = (
            self.room(),
            self.picture(),
            self.standings(),
            self.cache.changes.version,
            self.cache.changes.relief,
        )
        now = self.before[2]
        grew = any(amount > room.get(key, -1 << 62) for key, amount in self.before[0].items())
        assert not grew or self.cache.changes.relief > relief
        assert self.before[1] == picture or self.cache.changes.version > version
        assert {key for key in standing | now if standing.get(key) != now.get(key)} <= self.touched.keys()
        self.touched.clear()

    @invariant()
    def the_cache_shows_what_the_model_adds_up(self) -> None:
        self.unseen -= 1
        if self.unseen >= 0:
            return
        seen, groups, held = self.cache.snapshot(), self.groups(), self.cache.reservations
        free = {node.name: Resources.of(column) for node, column in zip(seen.nodes.nodes, seen.free.T, strict=True)}
        assert (free, seen.usage, seen.groups, seen.refused) == self.picture()
        assert (seen.running, releasing(seen)) == (self.running(), self.releasing())
        assert (seen.total, seen.queues) == (self.total(), judged(self.queues.values()))
        assert {one.pod: (one.node, one.state) for one in held} == {uid: one[:2] for uid, one in self.held.items()}
        assert all(
            self.settled.get(key) == group or key in self.cache.groups.unsettled for key, group in groups.items()
        )
        assert all(contents(snapshot) == before for snapshot, before in self.frozen)
        for one in held:
            self.places_are_those_of_the_whole_snapshot(self.pods[one.pod], one.node)

    def places_are_those_of_the_whole_snapshot(self, pod: Pod, node: NodeName) -> None:
        whole, alone = self.cache.snapshot().without([(pod, node)]), self.cache.snapshots.places_without(pod, node)
        shared = attrgetter("nodes", "topologies", "refused", "shared", "blocked_devices")
        assert (shared(alone), alone.free.tolist()) == (shared(whole), whole.free.tolist())

    # The model, computed from scratch -------------------------------------------------------------------------------

    def promisable(self) -> Iterator[Pod]:
        binding = self.held.keys() - self.promised()
        return (
            pod for pod in self.pods.values() if pod.managed and not (pod.node or pod.deleting or pod.uid in binding)
        )

    def promised(self, on: NodeName | None = None) -> list[PodUid]:
        return [
            uid
            for uid, (node, state, _) in self.held.items()
            if state is not ReservationState.BINDING and on in (None, node)
        ]

    def keys(self) -> Iterable[GroupKey]:
        return dict.fromkeys(pod.group for pod in self.pods.values() if pod.managed)

    def members(self, key: GroupKey) -> list[Pod]:
        return [pod for pod in self.counted() if pod.managed and pod.group == key]

    def counted(self) -> list[Pod]:
        """Return the pods as they count: one with a node and no recorded queue holds at most what exists."""
        nodes = (
            (pod, None if pod.bound_queue or not pod.node else self.nodes.get(pod.node)) for pod in self.pods.values()
        )
        return [pod if node is None else fitted(pod, node) for pod, node in nodes]

    def terms(self, key: GroupKey) -> GroupTerms:
        pods = self.members(key)
        on = terms(self.specs.get(key), pods[0], self.values)
        on = on._replace(preemptible=on.preemptible or any(pod.started_preemptible for pod in pods))
        noted = Counter(pod.bound_queue for pod in pods if pod.bound_queue and (pod.node or not pod.names_group))
        if not noted:
            return on
        stated = self.specs[key].queue if key in self.specs else None
        takes_pods = stated in self.queues and not judged(self.queues.values())[stated].problem
        bound = min(noted, key=lambda name: (-noted[name], name))
        return on._replace(queue=stated if stated and takes_pods else bound)

    def takes_pods(self, pod: Pod) -> bool:
        queue = judged(self.queues.values()).get(self.terms(pod.group).queue)
        return self.is_unpaid(pod) or (queue is not None and not queue.problem)

    def all_terms(self) -> Mapping[GroupKey, GroupTerms]:
        return {key: self.terms(key) for key in self.keys()}

    def place(self, pod: Pod) -> NodeName | None:
        return pod.node or (self.held[pod.uid][0] if pod.uid in self.held else None)

    def charges(self) -> Iterator[Charge]:
        for pod in self.counted():
            is_idle = self.place(pod) is None and (pod.gated or pod.deleting or pod.problem)
            if pod.managed and not is_idle:
                on = self.terms(pod.group)
                preemptible = on.preemptible and not pod.started_firm
                yield Charge(pod.request, self.place(pod), None if self.is_unpaid(pod) else on.queue, preemptible)
            elif pod.node and not pod.managed:
                is_paid = pod.queue in self.queues and not self.is_unpaid(pod)
                yield Charge(pod.request, pod.node, pod.queue if is_paid else None)

    def is_unpaid(self, pod: Pod) -> bool:
        """Whether a pod is terminating on a node on which no component can end it."""
        place = self.place(pod)
        return pod.deleting and place is not None and not (place in self.nodes and self.nodes[place].ready)

    def usage(self) -> Mapping[QueueName, Usage]:
        charges = list(self.charges())
        found: dict[QueueName, Usage] = {}
        for queue in {one.queue for one in charges if one.queue}:
            mine = [one for one in charges if one.queue == queue]
            held = [one for one in mine if one.node]
            firm = total(one for one in held if not one.preemptible)
            found[queue] = Usage(allocated=total(held), allocated_non_preemptible=firm, requested=total(mine))
        return found

    def free(self) -> Mapping[NodeName, Resources]:
        charges = list(self.charges())
        return {
            name: node.allocatable - total(one for one in charges if one.node == name)
            for name, node in self.nodes.items()
        }

    def total(self) -> Resources:
        ready = [node for node in self.nodes.values() if node.ready]
        return sum((self.divided(node) for node in ready), NOTHING)

    def divided(self, node: Node) -> Resources:
        outside = total(one for one in self.charges() if one.queue is None and one.node == node.name)
        return Resources.of(max(0, amount) for amount in (node.allocatable - outside).amounts)

    def releasing(self) -> Mapping[NodeName, Resources]:
        leaving = [pod for pod in self.counted() if pod.deleting and self.place(pod) and (pod.managed or pod.node)]
        held = {name: sum((pod.request for pod in leaving if self.place(pod) == name), NOTHING) for name in self.nodes}
        return {name: amount for name, amount in held.items() if amount != NOTHING}

    def groups(self) -> Mapping[GroupKey, PodGroup]:
        formed = {key: self.group(key) for key in self.keys()}
        return {key: group for key, group in formed.items() if group.pending or group.refusal}

    def running(self) -> Mapping[GroupKey, PodGroup]:
        formed = {key: self.group(key) for key in self.keys()}
        return {key: group for key, group in formed.items() if group.placed}

    def group(self, key: GroupKey) -> PodGroup:
        pods = self.members(key)
        places = {pod.uid: Place(place) for pod in pods if (place := self.place(pod))}
        done = len(self.succeeded.get(key, ()))
        found = Members(pods=pods, places=places, stuck=self.stuck, succeeded={"": done} if done else {})
        return form(key, self.specs.get(key), found, self.terms(key), self.aside.get(key))

    def standings(self) -> dict[GroupKey, Any]:
        """Return everything from which the status of a group is made."""
        groups, keys = self.groups(), {*self.keys(), *self.specs}
        places = {key: [(pod, self.place(pod)) for pod in self.members(key)] for key in keys}
        return {key: (self.specs.get(key), groups.get(key), places[key]) for key in keys}

    def picture(self) -> tuple[Any, ...]:
        return self.free(), self.usage(), self.groups(), dict(self.refused)

    def room(self) -> dict[tuple[str, str], int]:
        """Return how much could still be started where, as far as nodes and queues decide it."""
        usage, found = self.usage(), dict[tuple[str, str], int]()
        for node, free in self.free().items():
            left = zip(AXES, free.amounts, strict=True)
            found |= {(axis, node): amount for axis, amount in left if self.nodes[node].ready}
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
        *(dict(snapshot.queues), dict(snapshot.usage), dict(snapshot.groups), dict(snapshot.refused)),
        *(dict(snapshot.running), releasing(snapshot)),
    )


def releasing(snapshot: Snapshot) -> Mapping[NodeName, Resources]:
    amounts = snapshot.free * 0 if snapshot.releasing is None else snapshot.releasing
    held = {node.name: Resources.of(column) for node, column in zip(snapshot.nodes.nodes, amounts.T, strict=True)}
    return {name: amount for name, amount in held.items() if amount != NOTHING}


TestAnything = Anything.TestCase
TestAnything.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
