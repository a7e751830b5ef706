"""Leeboard is down for a while, under load: other pods are not affected, and no managed pod starts against a rule.

`LEEBOARD_OUTAGE_S` makes it longer; counts of the same run are compared.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import pytest

from app.model.marks import GATE
from tests.system.api import NODES, PODS, QUEUES, Api, gpu_node, pod, queue
from tests.system.bed import PLAIN_SCHEDULER, Bed
from tests.system.forms import Deployed, Form, deployed
from tests.system.observer import Observer, Rules, breaches
from tests.system.waiting import eventually

OUTAGE_S = float(os.environ.get("LEEBOARD_OUTAGE_S", "15"))
NODE_COUNT = 4 + int(OUTAGE_S / 5)
"""A node takes 250 pods, and ten come a second."""
GPUS, LIMIT = 8, 20
EVERY_S = 0.1
"""Between two unmanaged pods; every third time a managed pod is created too."""

_names = count()


@pytest.fixture(params=[Form.HELD, Form.BESIDE], ids=lambda form: form.value)
def leeboard(bed: Bed, api: Api, request: pytest.FixtureRequest) -> Iterator[Deployed]:
    with deployed(bed, api, request.param, PLAIN_SCHEDULER) as running:
        yield running


@dataclass
class Load:
    """Users who create pods of both kinds all the time; unmanaged pods end at once, so that there is always room."""

    api: Api
    created_at: dict[str, float] = field(default_factory=dict)
    refused: list[Exception] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        for turn in count():
            if self.ended.wait(EVERY_S):
                return
            self._create("other", scheduler="default-scheduler", gpus=0)
            if turn % 3 == 0:
                self._create("ours", queue="limited")

    def _create(self, kind: str, **more: object) -> None:
        name = f"{kind}-{next(_names)}"
        try:
            self.api.create(pod(name, **more))  # type: ignore[arg-type] # free-form by design
        except Exception as error:  # noqa: BLE001 - judged by the test, whatever it is
            self.refused.append(error)
        else:
            self.created_at[name] = time.monotonic()

    def names(self, kind: str, since: float, until: float) -> set[str]:
        return {name for name, at in self.created_at.items() if name.startswith(kind) and since <= at < until}


def wait_for(seconds: float, bed: Bed) -> tuple[float, float]:
    """Let time pass, which is tested here; return the begin and the end."""
    since = time.monotonic()
    eventually(lambda: time.monotonic() - since >= seconds, within_s=seconds + 5, what="time goes by", every_s=0.5)
    assert bed.children
    return since, time.monotonic()


def test_other_pods_continue_and_managed_pods_wait_while_leeboard_is_down(leeboard: Deployed, api: Api) -> None:
    bed = leeboard.bed
    api.create(queue("limited", limit=LIMIT))
    nodes = [gpu_node(f"o-{leeboard.form.name.lower()}-{index}", gpus=GPUS) for index in range(NODE_COUNT)]
    api.create_all(nodes)
    with Observer(bed) as observer:
        load = Load(api)
        users = threading.Thread(target=load.run)
        users.start()
        try:
            before = wait_for(OUTAGE_S / 3, bed)
            bed.kill("leeboard")
            ours_at_kill = running(api, "ours")
            outage = wait_for(OUTAGE_S, bed)
            waiting = load.names("ours", outage[0] + 1.0, outage[1])
            stored = {one["metadata"]["name"]: one["spec"] for one in api.items(PODS)}
            bound = {name for name in load.names("other", *outage) if stored.get(name, {}).get("nodeName")}
            leeboard.start_leeboard()
            wait_for(OUTAGE_S / 3, bed)
        finally:
            load.ended.set()
            users.join()

        # 1. no pod was refused, and unmanaged pods ran at the usual rate
        assert load.refused == []
        rates = [len(load.names("other", *span)) / (span[1] - span[0]) for span in (before, outage)]
        print(f"others created/s before and during: {rates[0]:.1f}, {rates[1]:.1f}; bound meanwhile {len(bound)}")
        assert rates[1] >= 0.8 * rates[0], rates
        assert len(bound) >= 0.9 * len(load.names("other", *outage))
        # 2. managed pods were pending, with the gate that is set without Leeboard
        assert waiting
        assert {name for name in waiting if stored[name].get("nodeName")} == set()
        assert {name for name in waiting if {"name": GATE} not in stored[name].get("schedulingGates", [])} == set()
        # 3. all pods within the limit run, and no more
        seen = eventually(
            lambda: running(api, "ours"), until=lambda ours: len(ours) >= LIMIT, within_s=60, what="ours run"
        )
        print(f"ours: {len(ours_at_kill)} ran before, {len(waiting)} waited, {len(seen)} run in the end, limit {LIMIT}")
        assert len(seen) == LIMIT >= len(ours_at_kill)
        rules = Rules(gpus={node["metadata"]["name"]: GPUS for node in nodes})
        assert breaches(observer.history(), rules, until_s=time.monotonic()) == []
    for collection in (PODS, QUEUES, NODES):
        api.empty(collection)


@pytest.mark.parametrize("leeboard", [Form.HELD], indirect=True, ids=str)
def test_a_new_pod_waits_once_for_a_hanging_leeboard_and_is_gated_by_the_policy(leeboard: Deployed, api: Api) -> None:
    hung = leeboard.bed.child("leeboard").process
    hung.send_signal(signal.SIGSTOP)
    try:
        before = given_up(api)
        began = time.monotonic()
        made = api.create(pod("ours-in-vain", queue="nowhere"))
        print(f"  created after {time.monotonic() - began:.2f} s")
        assert made["spec"]["schedulingGates"] == [{"name": GATE}]
        assert given_up(api) - before == 1
    finally:
        hung.send_signal(signal.SIGCONT)
    api.empty(PODS)


def given_up(api: Api) -> int:
    """Return how many calls of our webhooks the API server has skipped."""
    lines = api.text("/metrics").splitlines()
    found = (one for one in lines if one.startswith("apiserver_admission_webhook_fail_open_count{"))
    return sum(int(float(one.rpartition(" ")[2])) for one in found if "leeboard.dev" in one)


def running(api: Api, prefix: str) -> set[str]:
    return {
        one["metadata"]["name"]
        for one in api.items(PODS)
        if one["metadata"]["name"].startswith(prefix) and one["status"]["phase"] == "Running"
    }
