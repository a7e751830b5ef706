"""Runs a scenario, and tells its Commands and answers as a digest and two counts."""

import asyncio
import gc
from collections.abc import Iterable, Iterator
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import structlog

from app.model.seam import Resource
from app.recording import reader
from app.simulation.cluster import Ref
from tests.control.virtual import VirtualTimeLoop
from tests.faults.judge import Judge
from tests.faults.owned_shell import Said
from tests.faults.processes import Process
from tests.faults.recordings import recorded_in
from tests.faults.script import Script
from tests.faults.world import World
from tests.oracle.scenarios import scripts
from tests.service.recorded import demo

DEMO_MINUTES = 5.0
PROVISIONING = ("autoscaling.x-k8s.io/v1", "ProvisioningRequest", "apis/autoscaling.x-k8s.io/v1/provisioningrequests")
TEMPLATES = ("v1", "PodTemplate", "api/v1/podtemplates")
ANSWERS_EVERY_S = 7.0
FAILURES = {"error in the loop", "error logged", "livelock"}


class Heard(NamedTuple):
    """What a scenario has said. JSON keeps it as a list."""

    digest: str
    commands: int
    answers: int


class Bystander(Judge):
    """Judges nothing, so that a new rule changes no scenario. Only what must never happen ends the run."""

    def say(self, rule: str, what: str) -> None:
        if rule in FAILURES:
            super().say(rule, what)

    def _ignore(self, *_: Any, **__: Any) -> None:
        pass

    asked_to_bind = bind_ended = answered = ordered = sent = before_bind = done = recount = check_end = _ignore


class Observed(World):
    """A world that nobody judges, with a cluster autoscaler."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.shared = self.hosts[0].shared
        self.judge = self.shared.observer = Bystander(self)

    def _start(self) -> None:
        if self.script.settings.get("autoscaling") == "provisioning-request":
            self.api.serve(*PROVISIONING)
            self.api.serve(*TEMPLATES)
            self.loop.spawn(Process("cluster-autoscaler", "world"), self._answer_requests())
        super()._start()

    async def _answer_requests(self) -> None:
        """Provision every other request."""
        path, seen = PROVISIONING[2], set[str]()
        while True:
            await asyncio.sleep(ANSWERS_EVERY_S)
            for one in self.api.objects(path):
                if one["metadata"]["uid"] not in seen:
                    seen.add(one["metadata"]["uid"])
                    kind = "Provisioned" if len(seen) % 2 else "Failed"
                    condition = {"type": kind, "status": "True", "reason": kind, "message": "as always"}
                    self.api.patch(Ref.of(path, one), {"status": {"conditions": [condition]}})
                    if kind == "Provisioned":
                        self._add_node(f"scaled-{len(seen)}")

    def _add_node(self, name: str) -> None:
        model = next(node for node in self.api.objects(Resource.NODES) if node["metadata"]["labels"])
        labels = {**model["metadata"]["labels"], "kubernetes.io/hostname": name}
        self.api.create(Resource.NODES, {**model, "metadata": {"name": name, "labels": labels}})


def heard(name: str, record_dir: Path | None = None) -> Heard:
    """Run a scenario, and keep recordings of it if a folder is named."""
    gc.set_threshold(50_000, 20, 20)
    structlog.configure(processors=[_drop])
    try:
        if name.startswith("demo-"):
            return _heard_demo(int(name.removeprefix("demo-")), record_dir)
        script = scripts()[name]
        world = Observed(recorded_in(record_dir, script) if record_dir else script)
        outcome = world.run()
        if outcome.violations:
            raise RuntimeError(f"{name}: {outcome.violations}")
        return _told(world.shared.said)
    finally:
        structlog.reset_defaults()


def _heard_demo(seed: int, record_dir: Path | None) -> Heard:
    with TemporaryDirectory() as temporary:
        folder = record_dir or Path(temporary)
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(demo(folder, seed=seed, minutes=DEMO_MINUTES, audit_interval_s=60.0))
        (recording,) = reader.recordings(folder)
        said = Said()
        for kind, *content in reader.lines(recording):
            if kind == "c":
                said.command("demo", *content)
            elif kind == "a":
                said.answer("demo", *content)
            elif kind == "Q":
                _, verb, _, answer = content
                said.answer("demo", verb, answer)
        return _told(said)


def _told(said: Said) -> Heard:
    return Heard(said.digest, said.commands, said.answers)


def all_heard(names: Iterable[str], workers: int, record_dir: Path | None = None) -> Iterator[tuple[str, Heard]]:
    """Run scenarios in several processes; yield each with its name, in their order."""
    asked = [(name, record_dir / name if record_dir else None) for name in names]
    if workers == 1:
        yield from map(_named, asked)
        return
    with get_context("spawn").Pool(workers) as pool:
        yield from pool.imap(_named, asked)


def _named(asked: tuple[str, Path | None]) -> tuple[str, Heard]:
    return asked[0], heard(*asked)


def _drop(*_: Any) -> Any:
    raise structlog.DropEvent
