"""Kills every program in the midst of its work, and judges by what an observer of its own has seen meanwhile."""

import os
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

import httpx
import pytest
import yaml

from tests.system.api import DEFAULT_PODS, NODES, Api, gang, gpu_node, pod, pod_group
from tests.system.bed import HOST, STAGES, ApiServerOptions, Audit, Bed, free_ports
from tests.system.cluster import documents, install, start_leeboard, start_own_scheduler
from tests.system.conftest import sweep
from tests.system.observer import Observer, Rules, Sight, breaches, lost, partial_stretches
from tests.system.waiting import eventually

DEFAULT_GROUPS = "/apis/scheduling.run.ai/v2alpha2/namespaces/default/podgroups"
QUEUE = "default-queue"
SEED = int(os.environ.get("LEEBOARD_KILLS_SEED", "20"))
"""The moments of the kills and what comes and goes follow from it; what meets what is up to the machine."""

KILLS = 20
RIVALS = {"red": 50, "blue": 50}
SINGLES = 8
"""At most so many pods alone at once: with 60 GPUs there is always room for one gang, and never for two."""

SETTLED_WITHIN_S = 20.0
"""Twice what we promise after the last fault (I3), since the machine may be shared."""

SCHEDULER_BACK_WITHIN_S = 120.0
"""kube-scheduler's own watches pause for up to 30 s after an outage (client-go), and twice as long by chance."""

_node_numbers = count()


class Service:
    """Leeboard and its kube-scheduler on ports that stay the same, so that either can be killed and come again."""

    def __init__(self, bed: Bed) -> None:
        self._bed = bed
        self._webhooks, self._operations = free_ports(2)
        self.start_leeboard()
        self.start_scheduler()

    @property
    def webhooks(self) -> str:
        """Return the address of the extender's verbs."""
        return f"http://{HOST}:{self._webhooks}"

    @property
    def operations(self) -> str:
        """Return the address of health and the read API."""
        return f"http://{HOST}:{self._operations}"

    def start_leeboard(self) -> None:
        """Start Leeboard, at once after a kill."""
        start_leeboard(self._bed, webhook_port=str(self._webhooks), operations_port=str(self._operations))

    def start_scheduler(self) -> None:
        """Start the kube-scheduler as shipped."""
        start_own_scheduler(self._bed, self.webhooks)

    def start(self, name: str) -> None:
        """Start a program again that was killed."""
        again = {
            "leeboard": self.start_leeboard,
            "own-scheduler": self.start_scheduler,
            "kube-apiserver": self._bed._start_apiserver,
        }
        again[name]()

    def is_ready(self) -> bool:
        """Whether Leeboard says that it answers from a whole and fresh picture."""
        try:
            return httpx.get(f"{self.operations}/readyz", timeout=2.0).is_success
        except httpx.TransportError:
            return False

    def state_of(self, name: str) -> tuple[str, str]:
        """Return the uid that Leeboard knows under this name and where it stands; empty when there is none."""
        answer = httpx.get(f"{self.operations}/api/v1/pods/default/{name}", headers=self._bed.reading(), timeout=5.0)
        return ("", "") if answer.is_error else (answer.json()["uid"], answer.json()["state"])

    def wait_until_ready(self, *, within_s: float) -> None:
        """Wait until Leeboard is ready; fail at once when its process has ended."""

        def ready() -> bool:
            self._bed.child("leeboard").check_alive()
            return self.is_ready()

        eventually(ready, within_s=within_s, what="Leeboard is ready")


@pytest.fixture(scope="module")
def own_bed(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Bed]:
    """A control plane of our own, since its programs are killed; every deletion is the tests' own."""
    folder, failed_before = tmp_path_factory.mktemp("killed"), request.session.testsfailed
    # Nodes are free of taints at once: what removes them, the controller manager, comes back late after each kill.
    options = ApiServerOptions(audit=Audit.WRITES, disabled_admission=("TaintNodesByCondition",))
    with Bed(folder, options=options) as bed:
        bed.start_control_plane()
        bed.start_controller_manager()
        bed.start_kwok(_stages_without_deletion(folder / "stages.yaml"))
        yield bed
        if request.session.testsfailed > failed_before:
            kept = shutil.copytree(folder, folder.with_name("killed-logs"), ignore=lambda *_: ["etcd", "certs"])
            print(f"logs: {kept}", file=sys.stderr)


def _stages_without_deletion(path: Path) -> Path:
    """Write kwok's stages without the one that ends deleted pods.

    kwok deletes by name, without a uid: it would take the namesakes with it that our gangs come back as.
    """
    stages = [one for one in documents(STAGES) if one["metadata"]["name"] != "pod-delete"]
    path.write_text(yaml.safe_dump_all(stages))
    return path


@pytest.fixture
def api(own_bed: Bed) -> Iterator[Api]:
    with own_bed.api() as api:
        install(api)
        yield api
        sweep(api)


@pytest.fixture
def service(own_bed: Bed, api: Api) -> Iterator[Service]:
    assert api.items(NODES) == []
    service = Service(own_bed)
    service.wait_until_ready(within_s=30)
    yield service
    own_bed.stop("own-scheduler")
    own_bed.stop("leeboard")


def add_nodes(api: Api, number: int, *, gpus: int) -> dict[str, int]:
    """Create nodes under names that no other test uses; return their GPUs."""
    nodes = [gpu_node(f"k{next(_node_numbers):03}", gpus=gpus) for _ in range(number)]
    api.create_all(nodes)
    return {node["metadata"]["name"]: gpus for node in nodes}


def bound(pods: Iterable[Sight], of: str) -> int:
    """Count the pods of a gang that it can count on."""
    return sum(one.counts for one in pods if one.gang == of)


def pass_time(seconds: float) -> None:
    """Let time go by: the moment of a fault is what is tested, nothing is waited for."""
    threading.Event().wait(seconds)


def create_gang(api: Api, name: str, size: int) -> None:
    api.create_all(gang(name, size=size, queue=QUEUE))


def delete_gang(api: Api, name: str, size: int, *, grace_s: float = 0.0) -> None:
    """Delete a gang's pods and its PodGroup in any order; bound pods keep their GPUs for the time of grace."""
    paths = [f"{DEFAULT_GROUPS}/{name}", *(f"{DEFAULT_PODS}/{name}-{index}" for index in range(size))]
    with ThreadPoolExecutor(8) as pool:
        if grace_s:
            list(pool.map(api.delete, paths))
            pass_time(grace_s)
        list(pool.map(api.delete_now, paths))


# -- 20 kills of Leeboard, while two gangs take turns


class Phase(Enum):
    """What a kill has met; the first that is true."""

    STARTING = "Leeboard was not ready yet"
    BINDING = "a gang was bound in part, and growing"
    ENDING = "a gang was bound in part, and being deleted"
    WHOLE = "one gang was whole"
    DECIDING = "nothing was bound: gangs were planned, promised or stood at the barrier"


class Trigger(Enum):
    """What a kill follows."""

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
    """Tell what a kill at this moment meets."""
    ready, pods, history = service.is_ready(), observer.present(), observer.history()
    if not ready:
        return Phase.STARTING
    numbers = {name: bound(pods, name) for name in RIVALS}
    for name, number in numbers.items():
        if 0 < number < RIVALS[name]:
            return Phase.ENDING if _shrinks(history, name) else Phase.BINDING
    return Phase.WHOLE if any(numbers.values()) else Phase.DECIDING


def _shrinks(history: Sequence[Sight], name: str) -> bool:
    """Whether a gang's last change was the departure of a bound member."""
    return next(one.gone for one in reversed(history) if one.gang == name and one.node)


class Traffic:
    """Gangs that are deleted and come again, and pods alone that come and go, until it ends."""

    def __init__(self, api: Api, observer: Observer, seed: int) -> None:
        self._api = api
        self._observer = observer
        self._seed = seed
        self._ending = threading.Event()
        self.handovers = 0
        """How often a gang that ran whole was deleted and created anew. Written by `_take_turns`."""

    @contextmanager
    def running(self) -> Iterator["Traffic"]:
        """Run in two threads; what went wrong in them is raised at the end."""
        with ThreadPoolExecutor(2) as pool:
            parts: list[Future[None]] = [pool.submit(self._take_turns), pool.submit(self._come_and_go)]
            try:
                yield self
            finally:
                self._ending.set()
                # A test that waits in vain for traffic that has ended should show both.
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
    """Return the rival that runs whole, empty when none does."""
    return next((name for name, size in RIVALS.items() if bound(pods, name) == size), "")


def is_gone(pods: Sequence[Sight], name: str) -> bool:
    return not any(one.gang == name for one in pods)


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
    # Without these the kills have proven nothing.
    assert met[Phase.BINDING] >= 3
    assert traffic.handovers >= 5


def settle(observer: Observer, rules: Rules, *, within_s: float = SETTLED_WITHIN_S) -> None:
    """Wait until no pod is lost."""
    eventually(
        lambda: lost(observer.history(), rules),
        until=lambda found: not found,
        within_s=within_s,
        what="every pod runs, or waits for a cause that it is told",
        every_s=0.2,
    )


def one_runs_whole_then_the_other(api: Api, observer: Observer) -> None:
    numbers = {name: bound(observer.present(), name) for name in RIVALS}
    assert sorted(numbers.values()) == [0, 50]
    winner, loser = sorted(RIVALS, key=lambda name: -numbers[name])
    delete_gang(api, winner, RIVALS[winner])
    observer.wait_for(
        lambda pods: bound(pods, loser) == RIVALS[loser], within_s=SETTLED_WITHIN_S, what=f"{loser} runs whole"
    )


def report(observer: Observer, rules: Rules, found: Mapping[str, int], kills_s: Sequence[float] = ()) -> None:
    """Print what a person wants to know of a run."""
    for what, number in found.items():
        print(f"  {what}: {number}")
    print(f"  sights {len(observer.history())}, gaps {observer.gaps}; the longest times in part:")
    stretches = partial_stretches(observer.history(), rules.min_members, until_s=time.monotonic())
    for one in sorted(stretches, key=lambda stretch: -stretch.lasted_s)[:3]:
        meanwhile = [f"{at_s - one.since_s:.1f}" for at_s in kills_s if one.since_s <= at_s <= one.until_s]
        print(f"    {one.gang} {one.lasted_s:.2f} s; kills after {', '.join(meanwhile) or 'none'}")


# -- the other programs


def test_gang_starts_whole_although_kube_scheduler_is_killed_meanwhile(
    own_bed: Bed, api: Api, service: Service
) -> None:
    chance = Random(SEED)
    rules = Rules(gpus=add_nodes(api, 10, gpus=6), min_members={"crew": 50})
    took_s: list[float] = []

    with Observer(own_bed) as observer:
        for delay_s in (0.0, *sorted(chance.uniform(0, 0.2) for _ in range(5))):
            create_gang(api, "crew", 50)
            pass_time(delay_s)
            numbers = bound(observer.present(), "crew")
            own_bed.kill("own-scheduler")
            killed_s = time.monotonic()
            service.start_scheduler()
            observer.wait_for(crew_is_whole, within_s=SETTLED_WITHIN_S, what="the gang runs whole")
            took_s.append(round(time.monotonic() - killed_s, 1))
            print(f"  killed {delay_s:.2f} s after creation with {numbers} bound; whole after {took_s[-1]} s")
            delete_gang(api, "crew", 50)
            observer.wait_for(lambda pods: is_gone(pods, "crew"), within_s=30, what="the gang is gone")
        report(observer, rules, {})

    assert breaches(observer.history(), rules, until_s=time.monotonic()) == []


def test_gang_starts_whole_although_kube_scheduler_is_killed_at_its_first_bind(
    own_bed: Bed, api: Api, service: Service
) -> None:
    rules = Rules(gpus=add_nodes(api, 10, gpus=6), min_members={"crew": 50})

    with Observer(own_bed) as observer:
        create_gang(api, "crew", 50)
        observer.wait_for(partial(bound, of="crew"), within_s=30, what="the first member is bound")
        own_bed.kill("own-scheduler")
        service.start_scheduler()
        observer.wait_for(crew_is_whole, within_s=SETTLED_WITHIN_S, what="the gang runs whole")
        settle(observer, rules)

    assert breaches(observer.history(), rules, until_s=time.monotonic()) == []


# -- namesakes


class Pause(Enum):
    """When kube-scheduler, stopped while a pod is promised, goes on."""

    BEFORE_DELETION = "before the promised pod is deleted"
    BEFORE_CREATION = "between deletion and creation"
    AFTER_CREATION = "after its namesake is created"


def test_pod_recreated_under_its_name_while_promised_runs_and_keeps_no_promise(
    own_bed: Bed, api: Api, service: Service
) -> None:
    chance = Random(SEED)
    rules = Rules(gpus=add_nodes(api, 1, gpus=4))
    taken: Counter[str] = Counter()

    with Observer(own_bed) as observer:
        for _ in range(30):
            goes_on = chance.choice(list(Pause))
            recreate_while_promised(api, own_bed, service, goes_on)
            uid = api.get(f"{DEFAULT_PODS}/twin")["metadata"]["uid"]
            observer.wait_for(partial(runs, uid=uid), within_s=15, what=f"twin runs ({goes_on.value})")
            taken[goes_on.value] += 1
            api.delete_now(f"{DEFAULT_PODS}/twin")
        # Had a promise been left behind, its GPU would be missing now.
        api.create_all(pod(f"last-{index}", queue=QUEUE) for index in range(4))
        api.wait_for_phase("Running", *(f"last-{index}" for index in range(4)), within_s=15)
        settle(observer, rules)

    print(dict(taken))
    assert breaches(observer.history(), rules, until_s=time.monotonic()) == []


def recreate_while_promised(api: Api, bed: Bed, service: Service, goes_on: Pause) -> None:
    """Create a pod, stop kube-scheduler before it can ask for it, and replace the pod once it is promised."""
    scheduler = bed.child("own-scheduler").process
    scheduler.send_signal(signal.SIGSTOP)
    eventually(lambda: stands_still(scheduler.pid), within_s=5, what="kube-scheduler stands still", every_s=0.001)
    api.create(pod("twin", queue=QUEUE))
    eventually(lambda: service.state_of("twin")[1] == "Promised", within_s=10, what="the pod is promised", every_s=0.01)
    for step in Pause:
        if goes_on is step:
            scheduler.send_signal(signal.SIGCONT)
        if step is Pause.BEFORE_DELETION:
            api.delete_now(f"{DEFAULT_PODS}/twin")
        if step is Pause.BEFORE_CREATION:
            api.create(pod("twin", queue=QUEUE))


def stands_still(pid: int) -> bool:
    """Whether every thread of a stopped process has come to a stop, which takes a moment on a busy machine."""
    states = [task.read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


def runs(pods: Sequence[Sight], uid: str) -> bool:
    return any(one.uid == uid and one.phase == "Running" for one in pods)


# -- a gang that is bound in part, while others wait for the same GPUs

OTHERS = 40
ROUNDS = 3


def wait_for_gpus(api: Api) -> None:
    """Create a gang of 50 and 40 pods alone, for which there is no node yet; the gang goes before them."""
    group, *members = gang("crew", size=50, queue=QUEUE)
    group["spec"]["priorityClassName"] = "build-preemptible"
    api.create_all([group, *members])
    api.create_all(pod(f"other-{index}", queue=QUEUE) for index in range(OTHERS))


def go_away(api: Api, observer: Observer) -> None:
    """Delete what `wait_for_gpus` has made."""
    delete_gang(api, "crew", 50)
    for index in range(OTHERS):
        api.delete_now(f"{DEFAULT_PODS}/other-{index}")
    observer.wait_for(lambda pods: not pods, within_s=30, what="all pods are gone")


def test_gang_that_a_crash_left_half_bound_is_completed_before_others_start(
    own_bed: Bed, api: Api, service: Service
) -> None:
    (node,) = gpus = add_nodes(api, 1, gpus=60)
    rules = Rules(gpus=gpus, min_members={"crew": 50})
    # As after a month's work: what Leeboard lists when it starts is not all there at one moment.
    api.create_all(pod_group(f"old-{index}", min_member=2, queue=QUEUE) for index in range(600))

    with Observer(own_bed) as observer:
        for _ in range(ROUNDS):
            own_bed.kill("leeboard")
            wait_for_gpus(api)
            for index in range(20):
                bind(api, f"crew-{index}", node)
            service.start_leeboard()
            observer.wait_for(crew_is_whole, within_s=30, what="the gang runs whole")
            settle(observer, rules)
            go_away(api, observer)
        report(observer, rules, {})

    assert breaches(observer.history(), rules, until_s=time.monotonic()) == []


def bind(api: Api, name: str, node: str) -> None:
    """Bind a pod, as a Leeboard did that is no more."""
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    api.call("POST", f"{DEFAULT_PODS}/{name}/binding", body=binding)


@pytest.mark.parametrize("victim", ["leeboard", "own-scheduler", "kube-apiserver"])
def test_half_bound_gang_is_completed_before_others_start(
    own_bed: Bed, api: Api, service: Service, victim: str
) -> None:
    chance = Random(SEED)
    rules = Rules(gpus={}, min_members={"crew": 50})
    within_s = SCHEDULER_BACK_WITHIN_S if victim == "kube-apiserver" else SETTLED_WITHIN_S
    in_part = 0

    with Observer(own_bed) as observer:
        for _ in range(ROUNDS):
            wait_for_gpus(api)
            observer.wait_for(all_are_told, within_s=within_s, what="all are told why they wait")
            # One node, so that all GPUs are there at one moment.
            node = add_nodes(api, 1, gpus=60)
            rules = replace(rules, gpus={**rules.gpus, **node})
            observer.wait_for(partial(bound, of="crew"), within_s=within_s, what="the first member is bound")
            pass_time(chance.uniform(0, 0.05))
            own_bed.kill(victim)
            in_part += bound(observer.present(), "crew") < 50
            service.start(victim)
            observer.wait_for(crew_is_whole, within_s=within_s, what="the gang runs whole")
            settle(observer, replace(rules, gpus=node), within_s=within_s)
            go_away(api, observer)
            api.empty(NODES)
        report(observer, rules, {"rounds with the gang bound in part": in_part})

    assert breaches(observer.history(), rules, until_s=time.monotonic()) == []


def all_are_told(pods: Sequence[Sight]) -> bool:
    return len(pods) == 50 + OTHERS and all(one.cause for one in pods)


def crew_is_whole(pods: Sequence[Sight]) -> bool:
    return bound(pods, "crew") == 50


# -- the API server


@pytest.mark.parametrize("away_s", [0.0, 8.0])
def test_leeboard_recovers_from_the_api_servers_death_without_a_restart(
    own_bed: Bed, api: Api, service: Service, away_s: float
) -> None:
    # Without an API server nobody can bind or release anything.
    longest_s = 30.0 + away_s
    gpus = add_nodes(api, 10, gpus=6)
    rules = Rules(gpus=gpus, min_members={"crew": 50, "band": 5}, longest_partial_s=longest_s)
    leeboard = own_bed.child("leeboard")

    with Observer(own_bed) as observer:
        create_gang(api, "crew", 50)
        observer.wait_for(partial(bound, of="crew"), within_s=30, what="the first member is bound")
        own_bed.kill("kube-apiserver")
        assert_answers_that_it_cannot_know(service)
        pass_time(away_s)
        service.start("kube-apiserver")
        back_s = time.monotonic()
        service.wait_until_ready(within_s=SETTLED_WITHIN_S)
        print(f"  ready {time.monotonic() - back_s:.1f} s after the API server")
        observer.wait_for(crew_is_whole, within_s=SCHEDULER_BACK_WITHIN_S, what="the gang runs whole")
        print(f"  whole {time.monotonic() - back_s:.1f} s after the API server")
        create_gang(api, "band", 5)
        observer.wait_for(
            lambda pods: bound(pods, "band") == 5, within_s=SCHEDULER_BACK_WITHIN_S, what="a new gang runs"
        )
        settle(observer, rules, within_s=SCHEDULER_BACK_WITHIN_S)
        report(observer, rules, {})

    leeboard.check_alive()
    assert own_bed.child("leeboard") is leeboard
    assert breaches(observer.history(), rules, until_s=time.monotonic()) == []


def assert_answers_that_it_cannot_know(service: Service) -> None:
    """See that Leeboard, without an API server, refuses to answer instead of refusing the pod (F1, I11)."""
    eventually(lambda: not service.is_ready(), within_s=10, what="Leeboard is no longer ready")
    question = {"Pod": pod("asked", queue=QUEUE), "NodeNames": ["k000"]}
    answer = httpx.post(f"{service.webhooks}/filter", json=question).json()
    assert answer["Error"]
    assert not answer.get("FailedAndUnresolvableNodes")
