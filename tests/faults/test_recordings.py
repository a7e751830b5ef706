"""The lives of Leeboard in a world are recorded, and a replay of each does the same."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest
import structlog

from app.service import Components
from tests.faults.generate import generate
from tests.faults.owned_shell import Said
from tests.faults.recordings import recorded_in, replayed
from tests.faults.script import Script
from tests.faults.world import Outcome, World

pytestmark = pytest.mark.slow

SEEDS = (4, 7, 10, 22)
"""Together they have reclaim, gangs, shared GPUs, restarts, refused and unknown writes, and changes of the lease."""

LASTS_S = 200.0
READS_EVERY_S = 3.0


@dataclass(frozen=True, slots=True)
class Ran:
    outcome: Outcome
    said: Said


def ran(world: World) -> Ran:
    said = world.hosts[0].shared.said
    return Ran(world.run(), said)


def shortened(seed: int) -> Script:
    script = generate(seed)
    busy_s = min(script.quiet_at, LASTS_S)
    operations = tuple(one for one in script.operations if one.at < busy_s)
    return replace(script, operations=operations, quiet_at=busy_s, end_at=busy_s + 40.0)


class Read(World):
    """A world in which people look at Leeboard at random moments."""

    def _start(self) -> None:
        super()._start()
        chance = Random("reads")
        for _ in range(int(self.script.end_at / READS_EVERY_S)):
            self.loop.call_at(chance.uniform(1.0, self.script.end_at), self._look, chance)

    def _look(self, chance: Random) -> None:
        for host in self.hosts:
            if host.leeboard is not None:
                host.leeboard.read(lambda components: looked(components, chance))
                host.leeboard.checks()


def looked(components: Components, chance: Random) -> None:
    """Ask for what people can see of one pod, and of the whole."""
    inspect, pods = components.inspect, list(components.cache.pods.all())
    for pod in chance.sample(pods, min(2, len(pods))):
        inspect.explain(pod.namespace, pod.name)
        inspect.pod(pod.namespace, pod.name)
    match chance.randrange(4):
        case 0:
            inspect.queue_stands()()
            inspect.queues()()
        case 1:
            list(inspect.waiting())
            inspect.promises()
        case 2:
            for node in inspect.gpu_nodes():
                inspect.gpu_node(node)
            list(inspect.shared_gpus())
        case _:
            inspect.gpu_health()
            list(inspect.checks())


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Leave out what a replay logs."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_replay_of_every_life_does_the_same(seed: int, tmp_path: Path) -> None:
    world = ran(World(recorded_in(tmp_path, shortened(seed))))
    replays = list(replayed(tmp_path))

    assert [one for replay in replays for one in replay.differences] == []
    assert sum(one.commands for one in replays) == world.said.commands
    assert sum(one.answers for one in replays) == world.said.answers


@pytest.mark.parametrize("seed", [4, 22])
def test_a_replay_under_another_hash_seed_does_the_same(seed: int, tmp_path: Path) -> None:
    World(recorded_in(tmp_path, shortened(seed))).run()
    command = [sys.executable, "-m", "tests.faults.recordings", str(tmp_path)]
    told = subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": "7"}, capture_output=True, check=False)

    assert told.returncode == 0, told.stdout
    assert told.stdout.count(b"Commands") > 1


def test_a_recording_changes_nothing(tmp_path: Path) -> None:
    script = shortened(8)

    assert ran(World(recorded_in(tmp_path, script))).said.digest == ran(World(script)).said.digest


@pytest.mark.parametrize("seed", [10, 22])
def test_one_who_reads_changes_nothing(seed: int, tmp_path: Path) -> None:
    script = shortened(seed)
    read, alone = ran(Read(recorded_in(tmp_path, script))), ran(World(script))

    assert read.said.digest == alone.said.digest
    assert [one for replay in replayed(tmp_path) for one in replay.differences] == []


def test_the_seeds_have_what_a_recording_must_bear() -> None:
    scripts = [shortened(seed) for seed in SEEDS]
    done = {one.do for script in scripts for one in script.operations}
    jobs = [one.args for script in scripts for one in script.operations if one.do == "submit"]

    assert {"crash", "refuse", "unknown"} <= done
    assert done & {"release_lease", "no_renewal"}
    assert any("part" in job for job in jobs)
    assert any(job.get("min", 1) > 1 for job in jobs)
