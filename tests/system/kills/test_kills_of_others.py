"""Kills kube-scheduler and the API server, and replaces pods with a reservation."""

import signal
import time
from collections import Counter
from collections.abc import Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from random import Random

import httpx
import pytest

from tests.system.api import DEFAULT_PODS, Api, pod
from tests.system.bed import Bed
from tests.system.kills.ground import (
    QUEUE,
    SCHEDULER_BACK_WITHIN_S,
    SEED,
    SETTLED_WITHIN_S,
    Service,
    add_nodes,
    bound,
    create_gang,
    crew_is_whole,
    delete_gang,
    is_gone,
    pass_time,
    report,
    settle,
)
from tests.system.observer import Observer, Rules, Sight, breaches
from tests.system.waiting import eventually


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


class Pause(Enum):
    """When kube-scheduler, stopped while a pod has a reservation, continues."""

    BEFORE_DELETION = "before the promised pod is deleted"
    BEFORE_CREATION = "between deletion and creation"
    AFTER_CREATION = "after its namesake is created"


def test_pod_recreated_under_its_name_while_reserved_runs_and_keeps_no_reservation(
    own_bed: Bed, api: Api, service: Service
) -> None:
    chance = Random(SEED)
    rules = Rules(gpus=add_nodes(api, 1, gpus=4))
    taken: Counter[str] = Counter()

    with Observer(own_bed) as observer:
        for _ in range(30):
            goes_on = chance.choice(list(Pause))
            recreate_while_reserved(api, own_bed, service, goes_on)
            uid = api.get(f"{DEFAULT_PODS}/twin")["metadata"]["uid"]
            observer.wait_for(partial(runs, uid=uid), within_s=15, what=f"twin runs ({goes_on.value})")
            taken[goes_on.value] += 1
            api.delete_now(f"{DEFAULT_PODS}/twin")
        # A leftover reservation would make its GPU unavailable now.
        api.create_all(pod(f"last-{index}", queue=QUEUE) for index in range(4))
        api.wait_for_phase("Running", *(f"last-{index}" for index in range(4)), within_s=15)
        settle(observer, rules)

    print(dict(taken))
    assert breaches(observer.history(), rules, until_s=time.monotonic()) == []


def recreate_while_reserved(api: Api, bed: Bed, service: Service, goes_on: Pause) -> None:
    """Create a pod, stop kube-scheduler before its filter call, and replace the pod once it has a reservation."""
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
    """Whether every thread of a stopped process has stopped, which takes a moment on a busy machine."""
    states = [task.read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


def runs(pods: Sequence[Sight], uid: str) -> bool:
    return any(one.uid == uid and one.phase == "Running" for one in pods)


@pytest.mark.parametrize("away_s", [0.0, 8.0])
def test_leeboard_recovers_from_the_death_of_the_api_server_without_a_restart(
    own_bed: Bed, api: Api, service: Service, away_s: float
) -> None:
    # Without an API server no component can bind or release anything.
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
    """Check that Leeboard, without an API server, returns an error instead of a refusal of the pod (F1, I11)."""
    eventually(lambda: not service.is_ready(), within_s=10, what="Leeboard is no longer ready")
    question = {"Pod": pod("asked", queue=QUEUE), "NodeNames": ["k000"]}
    answer = httpx.post(f"{service.webhooks}/filter", json=question).json()
    assert answer["Error"]
    assert not answer.get("FailedAndUnresolvableNodes")
