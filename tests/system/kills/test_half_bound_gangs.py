"""A gang that is partially bound when a program is killed, while others wait for the same GPUs."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from tests.system.api import DEFAULT_PODS, NODES, Api, gang, pod, pod_group
from tests.system.bed import Bed
from tests.system.kills.ground import (
    QUEUE,
    SCHEDULER_BACK_WITHIN_S,
    SEED,
    SETTLED_WITHIN_S,
    Service,
    add_nodes,
    bound,
    crew_is_whole,
    delete_gang,
    pass_time,
    report,
    settle,
)
from tests.system.observer import Observer, Rules, Sight, breaches

OTHERS = 40
ROUNDS = 3


def wait_for_gpus(api: Api) -> None:
    """Create a gang of 50 and 40 single pods, for which there is no node yet; the gang is first."""
    group, *members = gang("crew", size=50, queue=QUEUE)
    group["spec"]["priorityClassName"] = "build-preemptible"
    api.create_all([group, *members])
    api.create_all(pod(f"other-{index}", queue=QUEUE) for index in range(OTHERS))


def go_away(api: Api, observer: Observer) -> None:
    """Delete what `wait_for_gpus` has created."""
    delete_gang(api, "crew", 50)
    for index in range(OTHERS):
        api.delete_now(f"{DEFAULT_PODS}/other-{index}")
    observer.wait_for(lambda pods: not pods, within_s=30, what="all pods are gone")


def test_gang_left_partially_bound_by_a_crash_is_completed_before_others_start(
    own_bed: Bed, api: Api, service: Service
) -> None:
    (node,) = gpus = add_nodes(api, 1, gpus=60)
    rules = Rules(gpus=gpus, min_members={"crew": 50})
    # As after a month of operation: what Leeboard lists at its start does not arrive at one moment.
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
    """Bind a pod, like a Leeboard that is gone."""
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    api.call("POST", f"{DEFAULT_PODS}/{name}/binding", body=binding)


@pytest.mark.parametrize("victim", ["leeboard", "own-scheduler", "kube-apiserver"])
def test_partially_bound_gang_is_completed_before_others_start(
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
            # One node, so that all GPUs exist from one moment on.
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
