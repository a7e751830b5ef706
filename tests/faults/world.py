"""Runs a script: the API server, hosts, kubelets, agents and owners in one deterministic loop, judged as it runs."""

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from random import Random
from typing import Any, NoReturn

import structlog

from app.model.seam import RawObject, Resource
from app.service import Components
from app.simulation import manifests
from app.simulation.agents import Agents
from app.simulation.cluster import Ref
from app.simulation.devices import SimulatedDevices
from app.web.admission import AnswersAdmission
from tests.faults.api import ApiServer
from tests.faults.generate import generate
from tests.faults.jobs import Owners
from tests.faults.judge import Judge, Violation
from tests.faults.machines import Down, Kubelets, LoopClock
from tests.faults.processes import Process, WorldLoop
from tests.faults.replicas import Host, Shared
from tests.faults.script import Operation, Script
from tests.faults.trouble import Troubles

EPOCH_S = 1_700_000_000.0
JOBS_TAKE_S = (0.001, 0.05)
MOST_ROUNDS_AT_ONCE = 20_000
RECOUNT_EVERY_ROUNDS = 100
LASTING = {
    "lag",
    "refuse",
    "outage",
    "slow",
    "unknown",
    "lose",
    "repeat",
    "call_slow",
    "call_lost",
    "answer_lost",
    "slow_plan",
    "reborn",
}
"""Faults that are in force for a while; all others happen at once."""
AFRESH_S = 40.0
"""How long a new Leeboard is watched in a quiet cluster."""
GONE_AFTER_S = 20.0
"""When the pods of a node that is gone are deleted (the pod garbage collector)."""


@dataclass(slots=True)
class Outcome:
    """What a run has shown."""

    seed: int
    violations: list[Violation]
    digest: str
    virtual_s: float
    writes: int
    rounds: int
    faults: dict[str, int]
    counts: dict[str, int] = field(default_factory=dict)


class World:
    """One run. `run` may be called once."""

    def __init__(self, script: Script, *, log: list[str] | None = None) -> None:
        """`log` gets a line for every write."""
        self.log = log
        self.script = script
        self._chance = Random(script.seed)
        self.loop = WorldLoop(self._job_takes_s)  # type: ignore[abstract] # the rest is I/O, which nobody calls
        self.api = ApiServer(now=self._wall)
        self.troubles = Troubles()
        self.clock = LoopClock(self._wall)
        self.devices = SimulatedDevices(self.api)
        self.down = Down()
        self.owners = Owners(self.api, self._admission, has_admission=script.has_admission)
        self.judge = Judge(self)
        shared = Shared(
            api=self.api,
            loop=self.loop,
            troubles=self.troubles,
            observer=self.judge,
            chance=self._chance,
            clock=self.clock,
            settings=dict(script.settings),
            has_lease=script.replicas > 1,
            has_admission=script.has_admission,
        )
        self._offsets = [0.0] * script.replicas
        self._drifts = [0.0] * script.replicas
        self.hosts = [Host(f"host-{index}", shared, self._wall_of(index)) for index in range(script.replicas)]
        self._actors: dict[str, tuple[Process, asyncio.Task[None]]] = {}
        self._past: list[object] = []
        self.is_quiet = False
        self.rounds = 0
        self.disturbed_at = 0.0
        """The last time at which a fault began or was in force."""
        self.digest = blake2b(digest_size=12)
        self.writes = 0

    # Time -----------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self.loop.time()

    def _wall(self) -> float:
        return EPOCH_S + self.loop.time()

    def _wall_of(self, index: int) -> Any:
        return lambda: self._wall() + self._offsets[index] + self._drifts[index] * self.loop.time()

    def _job_takes_s(self) -> float:
        slow = self.troubles.take("slow_plan", self.now)
        return self._chance.uniform(*JOBS_TAKE_S) + (slow.args["by_s"] if slow else 0.0)

    # Running --------------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Run the whole script, or up to the first violation."""
        with _errors_noted(self.judge):
            try:
                self._run()
            finally:
                self._close()
        faults = dict(self.troubles.counts)
        return Outcome(
            self.script.seed,
            self.judge.violations,
            self.digest.hexdigest(),
            self.now,
            self.writes,
            self.rounds,
            faults,
            dict(self.judge.counts),
        )

    def _run(self) -> None:
        for name in manifests.PRIORITIES:
            self.api.create(Resource.PRIORITY_CLASSES, manifests.priority_class(name))
        with self.loop.entered(0.0):
            for one in self.script.operations:
                self.loop.call_at(one.at, self._do, one)
            self.loop.call_at(self.script.quiet_at, self._be_quiet)
            self.loop.call_at(0.0, self._start)
        self._rounds(self.script.end_at)
        if not self.judge.violations:
            self.judge.recount()
            self.judge.check_end()
        if not self.judge.violations and self.script.settings.get("ageing_s") is None:
            self._start_afresh()

    def _rounds(self, until: float) -> None:
        """Run until a time, or up to the first violation."""
        at_once, recounted = 0, 0
        while self.now < until and not self.judge.violations:
            now = self.now if self.loop.is_ready else min(self.loop.due_at(), until)
            at_once = at_once + 1 if now <= self.now else 0
            if at_once > MOST_ROUNDS_AT_ONCE:
                self.judge.say("livelock", f"{at_once} rounds without any time between them")
            self.loop.run_round(now)
            self.rounds += 1
            if self.rounds - recounted >= RECOUNT_EVERY_ROUNDS:
                recounted = self.rounds
                self.judge.recount()
            self.judge.check_errors(self.loop.errors)

    def _start_afresh(self) -> None:
        """Start Leeboard again in the quiet cluster. What starts then, should have started before.

        What a process remembers of nodes that it has kept is lost, so this holds only where no nodes are kept.
        """
        self.judge.note_fresh_start()
        with self.loop.entered(self.now):
            for host in self.hosts:
                host.kill_leeboard()
                host.start_leeboard()
        self._rounds(self.script.end_at + AFRESH_S)
        if not self.judge.violations:
            self.judge.check_fresh_start()

    def _start(self) -> None:
        self._start_actor("owners")
        self._start_actor("kubelets")
        self._start_actor("agents")
        for host in self.hosts:
            host.start_leeboard()
            host.start_scheduler()

    def _start_actor(self, name: str) -> None:
        if name in self._actors:
            return
        process = Process(name, "world")
        actors: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "owners": self.owners.run,
            "kubelets": lambda: Kubelets(self.api, self.devices, self.clock, self.down, self.owners.finished).run(),
            "agents": lambda: Agents(self.api, self.devices, self.clock).run(),
        }
        self._actors[name] = (process, self.loop.spawn(process, actors[name](), name))

    def _kill_actor(self, name: str) -> None:
        process, task = self._actors.pop(name)
        process.kill()
        self._past.append(task)

    def _close(self) -> None:
        """Cancel everything, so that nothing of this world is left to the garbage collector."""
        for host in self.hosts:
            host.kill_leeboard()
            host.kill_scheduler()
        for name in list(self._actors):
            self._kill_actor(name)
        self.loop.cancel_all()

    def actors_failed(self) -> list[str]:
        """Return how the actors of the world have ended, which none may."""
        tasks = [task for _, task in self._actors.values()]
        tasks += [host.scheduler_task for host in self.hosts if host.scheduler_task is not None]
        return [repr(task.exception()) for task in tasks if task.done() and not task.cancelled()]

    def note_write(self, process: Process | None, verb: str, target: str, outcome: str) -> None:
        """Count a write to the digest of the run: two runs of one script must write the same in the same order."""
        self.writes += 1
        line = f"{self.now:.6f} {process!r} {verb} {target} {outcome}"
        self.digest.update(line.encode())
        if self.log is not None:
            self.log.append(line)

    def active(self) -> Components | None:
        """Return the components that decide now."""
        alive = [host.leeboard.components for host in self.hosts if host.leeboard is not None]
        return next((one for one in alive if not one.readiness.failure()), None)

    def _admission(self) -> AnswersAdmission | None:
        """Return the webhook of a replica that answers; None when the call fails."""
        alive = [host.leeboard for host in self.hosts if host.leeboard is not None]
        if not alive or self.troubles.take("call_lost", self.now, verb="mutate"):
            return None
        return alive[self._chance.randrange(len(alive))]

    def _be_quiet(self) -> None:
        self.is_quiet = self.down.is_quiet = True
        self.disturbed_at = self.now
        self.troubles.end_all()
        for host in self.hosts:
            host.cannot_renew_until = 0.0
            host.start_leeboard()
            host.start_scheduler()
        for name in ("kubelets", "agents"):
            self._start_actor(name)
        for name in [node["metadata"]["name"] for node in self.api.objects(Resource.NODES)]:
            self._node_up(name)
        self.down.end_all()

    # Operations -----------------------------------------------------------------------------------------------------

    def _do(self, one: Operation) -> None:
        args = dict(one.args)
        self.judge.note_fault(one)
        if one.do in LASTING:
            self.troubles.begin(one)
            self.disturb(args.get("for_s", 0.0))
        else:
            getattr(self, f"_do_{one.do}")(**args)

    def disturb(self, for_s: float = 0.0) -> None:
        """Note that what happens now may be explained by a fault."""
        self.disturbed_at = max(self.disturbed_at, self.now + for_s)

    def _host(self, name: str) -> Host | None:
        return next((host for host in self.hosts if host.name == name), None)

    def _do_node(self, name: str, gpus: int, cpu: int, labels: dict[str, str]) -> None:
        if self.api.one(Resource.NODES, name) is None:
            self.api.create(Resource.NODES, manifests.node(name, gpus=gpus, cpu=cpu, labels=labels))

    def _do_queue(self, name: str, parent: str | None, gpus: int, limit: int, weight: int) -> None:
        quota = manifests.Quota(gpus=gpus, limit=limit, weight=weight)
        self.api.create(Resource.QUEUES, manifests.queue(name, parent, quota))

    def _do_topology(self, name: str, levels: list[str]) -> None:
        self.api.create(Resource.TOPOLOGIES, manifests.topology(name, *levels))

    def _do_submit(self, **args: Any) -> None:
        self.owners.submit(args)

    def _do_delete(self, job: str) -> None:
        self.owners.delete(job)

    def _do_delete_pod(self, job: str, member: int, for_good: bool) -> None:  # noqa: FBT001 # JSON
        if for_good:
            self.owners.give_up(job, member)
        self.owners.delete_pod(job, member)

    def _do_quota(self, queue: str, change: dict[str, Any]) -> None:
        self.judge.note_queue_change()
        self.api.alter(Resource.QUEUES, queue, {"spec": {"resources": {"gpu": change}}})

    def _do_cut(self, host: str, kind: str, for_s: float, relists: bool) -> None:  # noqa: FBT001 # JSON
        self.disturb(for_s)
        found = self._host(host)
        if found is not None and found.leeboard is not None:
            self.troubles.counts["cut"] += 1
            for stream in found.leeboard.port.streams:
                if kind in {"*", repr(stream.resource)}:
                    stream.cut(for_s, relists=relists)

    def _do_crash(self, what: str, for_s: float, host: str = "") -> None:
        self.disturb(for_s + 5)
        self.troubles.counts[f"crash of {what}"] += 1
        found = self._host(host)
        if what == "leeboard" and found is not None:
            found.kill_leeboard()
            self.loop.call_later(for_s, found.start_leeboard)
        elif what == "kube-scheduler" and found is not None:
            found.kill_scheduler()
            self.loop.call_later(for_s, found.start_scheduler)
        elif what in self._actors:
            self._kill_actor(what)
            self.loop.call_later(for_s, self._start_actor, what)

    def _do_release_lease(self, host: str, for_s: float) -> None:
        self.disturb(for_s + 20)
        found = self._host(host)
        if found is not None:
            self.troubles.counts["lease released"] += 1
            found.release_lease()
            self.loop.call_later(for_s, found.start_scheduler)

    def _do_no_renewal(self, host: str, for_s: float) -> None:
        self.disturb(for_s + 20)
        found = self._host(host)
        if found is not None:
            self.troubles.counts["lease not renewed"] += 1
            found.cannot_renew_until = self.now + for_s

    def _do_clock(self, host: str, jump_s: float = 0.0, drift: float = 0.0) -> None:
        self.disturb(60)
        for index, one in enumerate(self.hosts):
            if one.name == host:
                self.troubles.counts["clock"] += 1
                self._offsets[index] += jump_s
                self._drifts[index] = drift

    def _do_node_gone(self, name: str, for_s: float) -> None:
        node = self.api.one(Resource.NODES, name)
        if node is None:
            return
        self.disturb(for_s + 10)
        self.troubles.counts["node gone"] += 1
        self.judge.note_node_change(name)
        self.down.begin(name)
        self.api.delete(Ref(resource=Resource.NODES, name=name))
        self.loop.call_later(GONE_AFTER_S, self._collect, name, node["metadata"]["uid"])
        bare = {"name": name, "labels": node["metadata"]["labels"]}
        self.loop.call_later(for_s, self._node_back, node | {"metadata": bare})

    def _collect(self, name: str, uid: str) -> None:
        """Delete the pods of a node that is gone, as the pod garbage collector does."""
        node = self.api.one(Resource.NODES, name)
        if node is None or node["metadata"]["uid"] != uid:
            for pod in self.api.objects(Resource.PODS):
                if pod["spec"].get("nodeName") == name:
                    self.api.delete(Ref.of(Resource.PODS, pod))
                    self.devices.release(pod)

    def _node_back(self, node: RawObject) -> None:
        name = node["metadata"]["name"]
        if self.api.one(Resource.NODES, name) is None:
            self.api.create(Resource.NODES, node)
            self.judge.note_node_change(name)
        self.down.end(name)

    def _do_node_down(self, name: str, for_s: float) -> None:
        self.disturb(for_s + 10)
        self.troubles.counts["node not ready"] += 1
        self.down.begin(name)
        conditions = [{"type": "Ready", "status": "Unknown"}]
        taints = [{"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}]
        self.judge.note_node_change(name)
        self.api.alter(Resource.NODES, name, {"spec": {"taints": taints}, "status": {"conditions": conditions}})
        self.loop.call_later(for_s, self._node_up, name)

    def _node_up(self, name: str) -> None:
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        self.judge.note_node_change(name)
        self.api.alter(Resource.NODES, name, {"spec": {"taints": None}, "status": ready})
        self.down.end(name)

    def _do_cordon(self, name: str, for_s: float) -> None:
        self.troubles.counts["node cordoned"] += 1
        self.disturb(10)
        self.judge.note_node_change(name)
        self.api.alter(Resource.NODES, name, {"spec": {"unschedulable": True}})
        self.loop.call_later(for_s, self.api.alter, Resource.NODES, name, {"spec": {"unschedulable": None}})

    def _do_gpu_broken(self, name: str, index: int, for_s: float, shrinks: bool) -> None:  # noqa: FBT001 # JSON
        machine = next((one for one in self.devices.machines() if one.name == name), None)
        if machine is None or index >= len(machine.uuids):
            return
        self.troubles.counts["GPU unhealthy"] += 1
        self.disturb(30)
        self.judge.note_node_change(name)
        machine.broken.add(machine.uuids[index])
        self.devices.note_changed(name)
        if shrinks:
            self._offer(name, len(machine.uuids) - len(machine.broken))
        self.loop.call_later(for_s, self._gpu_mended, name, machine.uuids[index])

    def _gpu_mended(self, name: str, uuid: str) -> None:
        machine = next((one for one in self.devices.machines() if one.name == name), None)
        if machine is not None:
            machine.broken.discard(uuid)
            self.devices.note_changed(name)
            self._offer(name, len(machine.uuids) - len(machine.broken))

    def _offer(self, name: str, gpus: int) -> None:
        self.judge.note_node_change(name)
        self.api.alter(Resource.NODES, name, {"status": {"allocatable": {"nvidia.com/gpu": str(gpus)}}})

    def _do_hostile(self, name: str, queue: str, annotations: dict[str, Any], spec: dict[str, Any]) -> None:
        """Create a pod that nobody can read as it is meant."""
        self.troubles.counts["hostile object"] += 1
        pod = manifests.pod(manifests.Job(name=name, queue=queue, gpus=0, cpu=0, runtime_s=60))
        metadata = pod["metadata"] | {"annotations": annotations}
        self.api.create(Resource.PODS, pod | {"metadata": metadata, "spec": pod["spec"] | spec})


@contextmanager
def _errors_noted(judge: Judge) -> Iterator[None]:
    """Take each error that Leeboard logs for a violation, and drop all other lines."""

    def note(_logger: Any, method: str, event: MutableMapping[str, Any]) -> NoReturn:
        judge.logged(method, event)
        raise structlog.DropEvent

    before = structlog.get_config()
    wrapper = structlog.make_filtering_bound_logger(logging.ERROR)
    structlog.configure(processors=[note], wrapper_class=wrapper, cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**before)


def run(script: Script) -> Outcome:
    """Run a script."""
    return World(script).run()


def run_seed(seed: int) -> Outcome:
    """Run the world of a seed. Workers find this by name, and nothing of the module that was started."""
    gc.set_threshold(50_000, 20, 20)
    return World(generate(seed)).run()
