"""Kills Leeboard twenty times while two gangs alternate."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from random import Random

from tests.system.api import DEFAULT_PODS, Api, pod
from tests.system.bed import Bed
from tests.system.kills.ground import (
    QUEUE,
    SEED,
    SETTLED_WITHIN_S,
    Service,
    add_nodes,
    bound,
    create_gang,
    delete_gang,
    is_gone,
    pass_time,
    report,
    settle,
)
from tests.system.observer import Observer, Rules, Sight, breaches

KILLS = 20
RIVALS = {"red": 50, "blue": 50}
SINGLES = 8
"""At most this many single pods at once: of 60 GPUs there is always room for one gang, and never for two."""


class Phase(Enum):
    """The state at a kill; the first one that is true."""

    STARTING = "Leeboard was not ready yet"
    BINDING = "a gang was bound in part, and growing"
    ENDING = "a gang was bound in part, and being deleted"
    WHOLE = "one gang was whole"
    DECIDING = "nothing was bound: gangs were planned, promised or stood at the barrier"


class Trigger(Enum):
    """The event before a kill."""

    FIRST_BIND = "the first bind of a gang"
    LAST_KILL = "the kill before"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When to kill, decided before anything runs."""

    after: Trigger
    delay_s: float


def moments(chance: Random) -> list[Moment]:
    """Draw the moments of the kills: three of five follow a gang's first bind within 0.3 s, most within 0.1 s."""
    at_bind = [Moment(after=Trigger.FIRST_BIND, delay_s=0.3 * chance.random() ** 2) for _ in range(KILLS * 3 // 5)]
    at_any_time = [Moment(after=Trigger.LAST_KILL, delay_s=chance.uniform(0, 8)) for _ in range(KILLS - len(at_bind))]
    drawn = at_bind + at_any_time
    chance.shuffle(drawn)
    return drawn


def phase_now(service: Service, observer: Observer) -> Phase:
    """Return the state at this moment, for a kill."""
    ready, pods, history = service.is_ready(), observer.present(), observer.history()
    if not ready:
        return Phase.STARTING
    numbers = {name: bound(pods, name) for name in RIVALS}
    for name, number in numbers.items():
        if 0 < number < RIVALS[name]:
            return Phase.ENDING if _shrinks(history, name) else Phase.BINDING
    return Phase.WHOLE if any(numbers.values()) else Phase.DECIDING


def _shrinks(history: Sequence[Sight], name: str) -> bool:
    """Whether the last change of a gang was the deletion of a bound member."""
    return next(one.gone for one in reversed(history) if one.gang == name and one.node)


class Traffic:
    """Gangs and single pods that are deleted and created again until it ends."""

    def __init__(self, api: Api, observer: Observer, seed: int) -> None:
        self._api = api
        self._observer = observer
        self._seed = seed
        self._ending = threading.Event()
        self.handovers = 0
        """How often a completely running gang was deleted and created again. Written by `_take_turns`."""

    @contextmanager
    def running(self) -> Iterator["Traffic"]:
        """Run in two threads; their errors are raised at the end."""
        with ThreadPoolExecutor(2) as pool:
            parts: list[Future[None]] = [pool.submit(self._take_turns), pool.submit(self._come_and_go)]
            try:
                yield self
            finally:
                self._ending.set()
                # A test that waits in vain for ended traffic should show both errors.
                for part in parts:
                    part.result()

    def _take_turns(self) -> None:
        chance = Random(f"{self._seed} gangs")
        while not self._ending.wait(chance.uniform(0, 2)):
            name = self._observer.wait_for(whole_gang, within_s=60, what="one of the rivals runs whole")
            delete_gang(self._api, name, RIVALS[name], grace_s=chance.choice((0.0, chance.uniform(0, 1))))
            self._observer.wait_for(partial(is_gone, name=name), within_s=30, what=f"{name} is gone")
            create_gang(self._api, name, RIVALS[name])
            self.handovers += 1

    def _come_and_go(self) -> None:
        chance = Random(f"{self._seed} singles")
        there: set[str] = set()
        while not self._ending.wait(chance.uniform(0.02, 0.2)):
            name = f"single-{chance.randrange(SINGLES)}"
            if name in there:
                self._api.delete_now(f"{DEFAULT_PODS}/{name}")
            else:
                self._api.create(pod(name, queue=QUEUE))
            there ^= {name}


def whole_gang(pods: Sequence[Sight]) -> str:
    """Return the rival that runs completely, empty when none does."""
    return next((name for name, size in RIVALS.items() if bound(pods, name) == size), "")


def wait_for_moment(moment: Moment, observer: Observer) -> None:
    """Return when it is time to kill."""
    if moment.after is Trigger.FIRST_BIND:
        resting = [name for name in RIVALS if not bound(observer.present(), name)]
        observer.wait_for(
            lambda pods: any(bound(pods, name) for name in resting), within_s=60, what=f"one of {resting} is bound"
        )
    pass_time(moment.delay_s)


def test_rival_gangs_survive_20_kills_of_leeboard(own_bed: Bed, api: Api, service: Service) -> None:
    print(f"seed {SEED}; LEEBOARD_KILLS_SEED=... for another")
    rules = Rules(gpus=add_nodes(api, 10, gpus=6), min_members=RIVALS)
    met: Counter[Phase] = Counter()
    kills_s: list[float] = []

    with Observer(own_bed) as observer:
        for name, size in RIVALS.items():
            create_gang(api, name, size)
        with Traffic(api, observer, SEED).running() as traffic:
            for moment in moments(Random(SEED)):
                wait_for_moment(moment, observer)
                met[phase_now(service, observer)] += 1
                kills_s.append(time.monotonic())
                own_bed.kill("leeboard")
                service.start_leeboard()

        settle(observer, rules)
        one_runs_whole_then_the_other(api, observer)
        settle(observer, rules)
        found = {phase.value: met[phase] for phase in Phase} | {"handovers": traffic.handovers}
        report(observer, rules, found, kills_s)

    assert breaches(observer.history(), rules, until_s=time.monotonic()) == []
    # Otherwise the kills have proven nothing.
    assert met[Phase.BINDING] >= 3
    assert traffic.handovers >= 5


def one_runs_whole_then_the_other(api: Api, observer: Observer) -> None:
    numbers = {name: bound(observer.present(), name) for name in RIVALS}
    assert sorted(numbers.values()) == [0, 50]
    winner, loser = sorted(RIVALS, key=lambda name: -numbers[name])
    delete_gang(api, winner, RIVALS[winner])
    observer.wait_for(
        lambda pods: bound(pods, loser) == RIVALS[loser], within_s=SETTLED_WITHIN_S, what=f"{loser} runs whole"
    )
