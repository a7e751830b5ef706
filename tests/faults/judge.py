"""The invariants. Each write is judged when it is sent and when it is done; the books and the end are judged apart."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from app.control.writers.bind_outcomes import BOUND, NOT_KNOWN
from app.model.decision import Eviction
from app.model.marks import DEVICES_ANNOTATION, MEMORY_ANNOTATION
from app.model.names import GroupKey, NodeName, PodUid
from app.model.reason import Reason, Refusal
from app.model.seam import PodRef, RawObject, Resource
from app.simulation.kubelet import REFUSED
from app.simulation.stock import GPU, requests
from tests.faults import recount
from tests.faults.machines import healthy_gpus
from tests.faults.port import told
from tests.faults.processes import Process
from tests.faults.script import Operation
from tests.faults.servable import servable
from tests.faults.truth import Group, Truth, group_of, is_of_job, is_reservation, is_unreadable, leaves, shares

if TYPE_CHECKING:
    from tests.faults.world import World

SETTLED_S = 15.0
"""How long the picture of a part of the world may be old after a fault that blinds Leeboard."""
CHANGED_S = 60.0
"""How long what was decided before a change of a node or a queue may still arrive."""
PARTLY_BOUND_S = 240.0
"""How long a gang may be partly bound: its last binding may be unknown for a minute, then it is stale for a minute,
and its pods end after their grace period.
"""
BENEFITS_WITHIN_S = 150.0
RESERVED_S = 330.0
REST_S, STARTS_S = 60.0, 30.0
"""How long a quiet cluster has written nothing at the end, and how long a start explains writes: room that is kept for
a PodGroup that has waited for long is given away after a time, so even a quiet cluster may start a pod.
"""
MOST_ROUNDS = 4
"""How often victims may leave for one group before it starts."""
ROUND_S = 5.0
LEASE_OVERLAP_S = 2.0
DECIDING = {"bind", "evict", "delete_pod", "nominate", "release"}
STEADY = {"status of queues"}
"""What is written from time to time in a quiet cluster."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken invariant."""

    at: float
    rule: str
    what: str

    def __repr__(self) -> str:
        return f"{self.at:.3f} s: {self.rule}: {self.what}"


@dataclass(slots=True)
class Sacrifice:
    """An eviction that was carried out, and who it is for."""

    at: float
    victim: str
    node: str
    action: str
    beneficiary: Group | None
    alive: set[str]
    """The uids of the beneficiary's pods that waited at the time."""


class Judge:
    """Judges one world. It only reads."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.violations: list[Violation] = []
        self.counts: Counter[str] = Counter()
        self._asked: defaultdict[Process, dict[str, str]] = defaultdict(dict)
        """By process, the bind calls that it has not answered: uid and node."""
        self._bound_by: dict[str, tuple[Process | None, str]] = {}
        """Who has bound a pod, and to which node."""
        self._under_way: Counter[tuple[Process, str]] = Counter()
        """The bindings that a process has sent, and that the API server has neither carried out nor lost."""
        self._answered: dict[str, str] = {}
        self._orders: dict[str, Eviction] = {}
        self._sacrifices: list[Sacrifice] = []
        self._bound_at: dict[Group, float] = {}
        self._used_at: dict[str, float] = {}
        """When a pod was last bound to a node."""
        self._node_changed: dict[str, float] = {}
        self._unread_since: dict[str, float] = {}
        """When the first pod came to a node whose amounts cannot be read."""
        self._queues_changed = -1e9
        self._partly_since: dict[Group, float] = {}
        self._reserved_since: dict[tuple[Process, str], float] = {}
        self._differs_since: dict[tuple[Process, str], float] = {}
        """By process, the pods that its cache shows otherwise than they are stored."""
        self._last_write: tuple[float, str] = (0.0, "")
        self._blind_until = SETTLED_S
        self._lost_until = 0.0
        self._waited: dict[Group, Refusal | None] = {}
        self._counted: dict[Process, int] = {}
        """The version of each cache that was counted last."""

    @property
    def _truth(self) -> Truth:
        return Truth(self._world.api)

    # Excuses --------------------------------------------------------------------------------------------------------

    def note_fault(self, one: Operation) -> None:
        """Note what Leeboard cannot see, and for how long."""
        lasts_s = one.args.get("for_s", 0.0)
        if one.do in {"lag", "cut", "outage", "crash", "release_lease", "no_renewal", "slow"}:
            self._blind_until = max(self._blind_until, one.at + lasts_s + SETTLED_S)
        if one.do == "lose":
            audited_s = 2 * self._world.script.settings.get("audit_interval_s", 300.0)
            self._lost_until = max(self._lost_until, one.at + lasts_s + audited_s)

    def note_node_change(self, name: str) -> None:
        self._node_changed[name] = self._world.now

    def note_queue_change(self) -> None:
        self._queues_changed = self._world.now

    def _is_blind(self) -> bool:
        return self._world.now < max(self._blind_until, self._lost_until)

    def _has_changed(self, node: str) -> bool:
        return self._world.now < self._node_changed.get(node, -1e9) + CHANGED_S

    def say(self, rule: str, what: str) -> None:
        self.violations.append(Violation(self._world.now, rule, what))

    # Answers and orders ---------------------------------------------------------------------------------------------

    def asked_to_bind(self, process: Process, pod: PodRef, node: str) -> None:
        self._asked[process][pod.uid] = node

    def bind_ended(self, process: Process, pod: PodRef, error: str) -> None:
        """An error is no answer to a bind call whose write has bound the pod, or may still bind it."""
        node = self._asked[process].pop(pod.uid, None)
        if error in {BOUND, NOT_KNOWN}:
            return
        current = self._world.api.pod(pod.namespace, pod.name)
        if current is None or current["metadata"]["uid"] != pod.uid or leaves(current):
            return
        if self._under_way[process, f"{told(pod)} to {node}"]:
            self.say("outcome", f"{pod.name} may still be bound to {node}, and the answer is: {error}")
        elif self._bound_by.get(pod.uid) == (process, node):
            self.say("outcome", f"{pod.name} is bound to {node}, and the answer is: {error}")

    def answered(self, process: Process, pod: RawObject, offered: Sequence[str], nodes: Sequence[str]) -> None:
        """An answer names only offered nodes; for a pod that Leeboard schedules, only its reserved node."""
        name = pod["metadata"]["name"]
        if not set(nodes) <= set(offered):
            self.say("answer", f"{name} was offered {offered} and gets {nodes}")
        if not is_of_job(pod):
            return
        uid = PodUid(pod["metadata"]["uid"])
        leeboard = next(host.leeboard for host in self._world.hosts if host.name == process.host)
        known = leeboard.components.cache.pods.get(uid) if leeboard else None
        held = leeboard.components.cache.reservations.get(uid) if leeboard else None
        place = known.node if known and known.node else held.node if held else None
        if known is not None and list(nodes) != [place]:
            self.say("answer", f"{name} has {place} reserved and gets {nodes}")
        self._answered[uid] = nodes[0]

    def ordered(self, process: Process, evictions: Sequence[Eviction]) -> None:
        del process
        self._orders |= {eviction.pod: eviction for eviction in evictions}

    # Writes ---------------------------------------------------------------------------------------------------------

    def sent(self, process: Process, verb: str, target: str) -> None:
        """A replica beside a kube-scheduler that does not lead writes nothing that decides."""
        self._under_way[process, target] += verb == "bind"
        lease = self._world.api.lease
        if verb in DECIDING and self._world.script.replicas > 1 and lease.holder and lease.host != process.host:
            held_s = self._world.now - lease.held_since
            if held_s > LEASE_OVERLAP_S:
                self.say("lease", f"{process!r} sends {verb} of {target}; {lease.host} has led for {held_s:.1f} s")

    def ended(self, process: Process, verb: str, target: str) -> None:
        """A write is not under way any more: it was carried out, refused or lost."""
        self._under_way[process, target] -= verb == "bind"

    def done(self, process: Process | None, verb: str, target: str, outcome: str) -> None:
        self._world.note_write(process, verb, target, outcome)
        self.counts[verb] += 1
        if process is not None:
            self.ended(process, verb, target)
        if process is not None and process.name == "leeboard" and verb not in STEADY:
            self._last_write = self._world.now, f"{verb} of {target}: {outcome}"
        if verb in {"evict", "delete_pod"} and outcome == "done":
            self._note_eviction(target)

    def _note_eviction(self, target: str) -> None:
        name, _, tail = target.partition(" ")
        namespace, _, name = name.partition("/")
        order = next((one for uid, one in self._orders.items() if uid.endswith(tail)), None)
        if order is None or order.beneficiary is None:
            return
        group = (order.beneficiary.namespace, order.beneficiary.name)
        waiting = {pod["metadata"]["uid"] for pod in self._truth.members(group) if not pod["spec"].get("nodeName")}
        one = Sacrifice(self._world.now, f"{namespace}/{name}", order.node, order.action.value, group, waiting)
        self._sacrifices.append(one)
        self._judge_rounds(one)

    def _judge_rounds(self, last: Sacrifice) -> None:
        """Victims do not leave again and again for a group that does not start."""
        since = max(self._bound_at.get(last.beneficiary or ("", ""), -1.0), self._world.disturbed_at)
        mine = [one for one in self._sacrifices if one.beneficiary == last.beneficiary and one.at > since]
        rounds = 1 + sum(after.at > before.at + ROUND_S for before, after in pairwise(mine))
        if rounds > MOST_ROUNDS and last.alive & mine[0].alive:
            victims = ", ".join(f"{one.victim} at {one.at:.0f} s" for one in mine)
            self.say(
                "in vain", f"{rounds} rounds of victims left for {last.beneficiary}, which did not start: {victims}"
            )

    def before_bind(self, process: Process | None, pod: PodRef, node: NodeName, marks: Mapping[str, str]) -> None:
        """Judge a binding that the API server is about to carry out."""
        current = self._world.api.pod(pod.namespace, pod.name)
        if current is None:
            return
        bound = current["spec"].get("nodeName")
        if current["metadata"]["uid"] == pod.uid and bound and bound != node:
            self.say("bound twice", f"{pod.name} runs on {bound} and is bound to {node}")
        if current["metadata"]["uid"] != pod.uid or bound or leaves(current):
            return  # The API server refuses it.
        self._judge_identity(process, pod, node, current)
        self._judge_node(current, node)
        self._judge_devices(current, node, marks)
        if is_unreadable(current) and node not in self._truth.unread_nodes():
            self._unread_since[node] = self._world.now
        if is_of_job(current):
            self._judge_queue(current, node)
            self._judge_gang(process, current)
            self._bound_at[group_of(current)] = self._world.now
        self._used_at[node] = self._world.now

    def after_bind(self, process: Process | None, pod: PodRef, node: NodeName) -> None:
        """A binding binds the pod that it was decided for, and no later pod of its name."""
        current = self._world.api.pod(pod.namespace, pod.name)
        if current is None or current["metadata"]["uid"] != pod.uid or current["spec"].get("nodeName") != node:
            self.say("identity", f"the binding of {pod.name} {pod.uid} to {node} has bound {current}")
        self._bound_by[pod.uid] = process, node

    def _judge_identity(self, process: Process | None, pod: PodRef, node: str, current: RawObject) -> None:
        if process is None or process.name != "leeboard":
            asked = self._answered.get(pod.uid) if is_of_job(current) else node
        else:
            asked = self._asked[process].get(pod.uid)
        if asked != node:
            self.say("identity", f"{pod.name} {pod.uid} is bound to {node}; asked and answered was {asked}")

    def _judge_node(self, pod: RawObject, name: str) -> None:
        node = self._world.api.one(Resource.NODES, name)
        if node is None:
            if not self._is_blind() and not self._has_changed(name):
                self.say("node", f"{pod['metadata']['name']} is bound to {name}, which does not exist")
            return
        closed_for_s = self._world.now - self._unread_since.get(name, self._world.now)
        if is_of_job(pod) and name in self._truth.unread_nodes() and closed_for_s > CHANGED_S and not self._is_blind():
            self.say("unread", f"{pod['metadata']['name']} is bound to {name}, where a pod's amounts cannot be read")
        used = self._truth.used()[name].copy()
        asked = requests(pod)
        used.update(asked)
        # A GPU that breaks while pods have it leaves its node overcommitted for pods with GPUs only.
        over = [resource for resource in self._truth.overcommitted(node, used) if asked[resource]]
        if over and not self._has_changed(name):
            self.say("capacity", f"{pod['metadata']['name']} takes {name} above its {over}")
        gpus, healthy = used[GPU] // 1000 - self._broken_in_use(name), healthy_gpus(self._world.api, name)
        if asked[GPU] and gpus > healthy and not (self._has_changed(name) or self._is_blind()):
            self.say(
                "unhealthy", f"{pod['metadata']['name']} makes {gpus} GPUs used of {healthy} healthy ones on {name}"
            )

    def _broken_in_use(self, name: str) -> int:
        """Return how many unhealthy GPUs of a node pods have had since they were healthy."""
        machine = next((one for one in self._world.devices.machines() if one.name == name), None)
        return len(machine.broken & machine.holders.keys()) if machine else 0

    def _judge_devices(self, pod: RawObject, node: str, marks: Mapping[str, str]) -> None:
        """The devices of a pod that shares GPUs are held by reservation pods on its node, and have room."""
        name = pod["metadata"]["name"]
        uuids = [uuid for uuid in marks.get(DEVICES_ANNOTATION, "").split(",") if uuid]
        if shares(pod) and is_of_job(pod) and not uuids:
            self.say("devices", f"{name} shares GPUs and is bound without any")
        machine = next((one for one in self._world.devices.machines() if one.name == node), None)
        parts = self._truth.parts()
        for uuid in uuids:
            mib = parts[uuid] + int(marks[MEMORY_ANNOTATION])
            holder = machine.holders.get(uuid) if machine else None
            if machine is not None and mib > machine.memory_mib:
                self.say("devices", f"{name} takes GPU {uuid} to {mib} of {machine.memory_mib} MiB")
            is_held = holder is not None and holder.namespace == "kai-resource-reservation"
            if not is_held and not self._is_blind() and not self._has_changed(node):
                self.say("devices", f"{name} gets a part of GPU {uuid} on {node}, which {holder} holds")

    def _judge_queue(self, pod: RawObject, node: str) -> None:
        over = self._truth.over(pod, node)
        if over and self._world.now > self._queues_changed + CHANGED_S and not self._is_blind():
            self.say("queue", f"{pod['metadata']['name']} is bound although {over}")

    def _judge_gang(self, process: Process | None, pod: RawObject) -> None:
        """The first binding of a gang is written when all members that it needs can be bound."""
        group = group_of(pod)
        members = self._truth.members(group)
        if process is None or process.name != "leeboard":
            if self._truth.min_member(group) > 1:
                self.say("gang", f"kube-scheduler binds {pod['metadata']['name']} of a gang by itself")
            return
        asked = self._asked[process]
        coming = sum(bool(one["spec"].get("nodeName")) or one["metadata"]["uid"] in asked for one in members)
        owned = self._world.owners.jobs.get(group[1])
        needed = self._truth.min_member(group) - (len(owned.succeeded) if owned else 0)
        if coming < needed and not self._is_blind() and not self._lost_member(group):
            self.say("gang", f"{pod['metadata']['name']} is bound with {coming} of {needed} members")

    def _lost_member(self, group: Group) -> bool:
        return self._world.now < self._world.owners.lost_at.get(group[1], -1e9) + SETTLED_S

    # From time to time ----------------------------------------------------------------------------------------------

    def logged(self, method: str, event: Mapping[str, Any]) -> None:
        """Leeboard logs an error only when something has failed that must not."""
        self.say("error logged", f"{method}: {dict(event)}")

    def check_errors(self, errors: list[str]) -> None:
        for error in errors:
            self.say("error in the loop", error)
        errors.clear()

    def recount(self) -> None:
        """Judge the books of every process, and the state of the store."""
        for host in self._world.hosts:
            if host.leeboard is not None:
                for failure in host.leeboard.failed():
                    self.say("component ended", failure)
                self._judge_books(host.leeboard.process, host.leeboard.components.cache)
                self._judge_view(host.leeboard.process, host.leeboard.components.cache)
        for failure in self._world.actors_failed():
            self.say("actor ended", failure)
        self._judge_store()
        self._judge_sacrifices()

    def _judge_books(self, process: Process, cache: Any) -> None:
        if self._counted.get(process) != cache.changes.version:
            self._counted[process] = cache.changes.version
            for found in recount.differences(cache):
                self.say("books", f"{process!r}: {found}")
        for node, found in recount.overbooked(cache):
            if not (self._has_changed(node) or self._is_blind()):
                self.say("overbooked", f"{process!r}: {found}")
        now, before = self._world.now, self._reserved_since
        held = {(process, one.pod) for one in cache.reservations}
        mine = {key: before.get(key, now) for key in held}
        self._reserved_since = {key: at for key, at in before.items() if key[0] is not process} | mine

    def _judge_view(self, process: Process, cache: Any) -> None:
        """The cache shows what is stored, unless a fault blinds it."""
        now, before = self._world.now, self._differs_since
        differing = {} if self._is_blind() else self._differing(cache)
        mine = {(process, uid): before.get((process, uid), now) for uid in differing}
        self._differs_since = {key: at for key, at in before.items() if key[0] is not process} | mine
        stale = {uid: differing[uid] for (_, uid), at in mine.items() if now - at > SETTLED_S}
        if stale:
            self.say("view", f"{process!r}: stored and shown differ: {stale}")

    def _differing(self, cache: Any) -> dict[str, tuple[str | None, str | None]]:
        """Return where a pod is stored and where it is shown, for each pod with which these differ."""
        stored = {pod["metadata"]["uid"]: pod["spec"].get("nodeName", "") for pod in self._truth.pods()}
        shown = {pod.uid: pod.node or "" for pod in cache.pods.all()}
        differ = (uid for uid in stored | shown if stored.get(uid) != shown.get(uid))
        return {uid: (stored.get(uid), shown.get(uid)) for uid in differ}

    def _judge_store(self) -> None:
        now, truth = self._world.now, self._truth
        for pod in self._world.api.objects(Resource.PODS):
            if pod["status"].get("reason") == REFUSED:
                self._judge_refused(pod)
        partly: dict[Group, float] = {}
        groups: defaultdict[Group, list[RawObject]] = defaultdict(list)
        for pod in truth.pods():
            if is_of_job(pod):
                groups[group_of(pod)].append(pod)
        for group, pods in groups.items():
            owned = self._world.owners.jobs.get(group[1])
            needed = truth.min_member(group) - (len(owned.succeeded) if owned else 0)
            bound = sum(bool(pod["spec"].get("nodeName")) and not leaves(pod) for pod in pods)
            if 0 < bound < needed:
                partly[group] = self._partly_since.get(group, now)
                if now - max(partly[group], self._world.disturbed_at) > PARTLY_BOUND_S:
                    since = now - partly[group]
                    self.say("partly bound", f"{group} has {bound} of {needed} members bound for {since:.0f} s")
        self._partly_since = partly

    def _judge_refused(self, pod: RawObject) -> None:
        node = pod["spec"].get("nodeName", "")
        if not (self._has_changed(node) or self._is_blind()):
            self.say("kubelet refused", f"{pod['metadata']['name']} on {node}: {pod['status'].get('message')}")

    def _judge_sacrifices(self) -> None:
        """Whoever was evicted for a group has left room for a start."""
        left: list[Sacrifice] = []
        for one in self._sacrifices:
            if self._world.now < one.at + BENEFITS_WITHIN_S:
                left.append(one)
            elif not self._has_benefited(one) and self._world.disturbed_at < one.at - SETTLED_S:
                self.say(
                    "in vain", f"{one.victim} left {one.node} at {one.at:.1f} s ({one.action}) for {one.beneficiary}"
                )
        self._sacrifices = left

    def _has_benefited(self, one: Sacrifice) -> bool:
        group = one.beneficiary
        if group is None or self._bound_at.get(group, -1.0) >= one.at or self._used_at.get(one.node, -1.0) >= one.at:
            return True
        # Its owner may have deleted it, or it was replaced.
        now = {pod["metadata"]["uid"] for pod in self._truth.members(group) if not pod["spec"].get("nodeName")}
        return not one.alive <= now or not one.alive

    # At the end -----------------------------------------------------------------------------------------------------

    def check_end(self) -> None:
        """Judge the quiet end: it is at rest, every pod has a place or a true reason, and nothing is left behind."""
        last_at, last = self._last_write
        started_at = max(self._used_at.values(), default=-1e9)
        if last_at > self._world.script.end_at - REST_S and started_at < last_at - STARTS_S:
            self.say("no rest", f"the last write was at {last_at:.1f} s: {last}")
        active = self._world.active()
        if active is None:
            self.say("nobody active", "no replica is active at the end")
            return
        differing = self._differing(active.cache)
        if differing:
            self.say("view", f"stored and shown differ at the end: {differing}")
        self._judge_left_behind(active)
        self._judge_waiting(active)

    def note_fresh_start(self) -> None:
        """Remember why each pod waits."""
        active = self._world.active()
        refusals = active.planning.refusals if active else {}
        stalled = active.planning.attempts.stalled() if active else {}
        groups = {group_of(pod) for pod in self._truth.pending()}
        found = {group: refusals.get(GroupKey(*group)) or stalled.get(GroupKey(*group)) for group in groups}
        self._waited = {group: refusal for group, refusal in found.items() if not is_backing_off(refusal)}

    def check_fresh_start(self) -> None:
        """Judge a Leeboard that has just started in a quiet cluster: it starts nothing that waited."""
        for group, refusal in sorted(self._waited.items()):
            if self._bound_at.get(group, -1.0) > self._world.script.end_at:
                self.say("stuck", f"{group} starts when Leeboard is started again; before, it waited: {refusal}")

    def _judge_left_behind(self, components: Any) -> None:
        for (process, uid), since in self._reserved_since.items():
            if self._world.now - since > RESERVED_S and components.cache.reservations.get(PodUid(uid)) is not None:
                held = components.cache.reservations.get(PodUid(uid))
                self.say("reservation left", f"{process!r} has {held} since {since:.0f} s")
        parts = self._truth.parts()
        for pod in self._truth.bound():
            uuid = pod["metadata"].get("annotations", {}).get("run.ai/reserve_for_gpu_index", "")
            if is_reservation(pod) and not leaves(pod) and not parts.get(uuid) and not self._truth.pending():
                self.say("GPU left", f"{pod['metadata']['name']} holds {uuid or 'a GPU'} for nobody")

    def _judge_waiting(self, components: Any) -> None:
        refusals = components.planning.refusals
        waiting: defaultdict[Group, list[RawObject]] = defaultdict(list)
        for pod in self._truth.pending():
            waiting[group_of(pod)].append(pod)
        for group, pods in waiting.items():
            refusal = refusals.get(GroupKey(*group)) or components.planning.attempts.stalled().get(GroupKey(*group))
            name = pods[0]["metadata"]["name"]
            if refusal is None or refusal.reason is Reason.DECIDING:
                self.say("lost", f"{name} of {group} waits at the end without a reason ({refusal})")
            elif servable(self._world.api, self._truth, group, pods, waiting):
                self.say("not served", f"{name} of {group} could start, and waits: {refusal}")


def is_backing_off(refusal: Refusal | None) -> bool:
    return refusal is not None and refusal.reason is Reason.BACKING_OFF
