"""The frames of a busy cluster: what changed is all that is told, and reading decides nothing."""

import asyncio
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from app.control.cycle.policy_settings import policy_of
from app.control.report.live_state import LiveState
from app.control.report.queue_rows import MOST_WAITING
from app.model.live import Row
from app.model.names import NodeName
from app.model.resources import GPU_MILLI
from app.model.seam import RawObject, Resource
from app.service.feed import BURST_S, FRAME_EVERY_S, LONGEST_PAUSE_S, PART, Allowance, Condition
from app.settings import Settings
from app.simulation.cluster import Ref
from app.view.kept_state import KeptState
from app.view.sight import Picture, Sight
from tests.control.wired import ref
from tests.service.recorded import EPOCH_S, Service, demo, serving
from tests.service.test_replay import replayed
from tests.view.frames import Client, events, tell


def live_state(service: Service) -> LiveState:
    components = service.shell.components
    return LiveState(components.cache, components.planning, policy_of(Settings()), wall_clock=lambda: EPOCH_S)


def told_at_once(service: Service) -> KeptState:
    kept = KeptState()
    tell(service.shell, live_state(service), kept, is_full=True)
    return kept


def held(shares: dict[str, Row]) -> Counter[tuple[Any, ...]]:
    """Return what each pod has on each node: which of two free devices a pod got depends on what was there before."""
    found: Counter[tuple[Any, ...]] = Counter()
    for _, device, milli, *rest in shares.values():
        found[device.rpartition("/")[0], *rest] += milli
    return found


def ordered(waiting: dict[str, Row]) -> list[Row]:
    return sorted(row[1:] for row in waiting.values())


def assert_same(kept: KeptState, fresh: KeptState) -> None:
    for name in ("nodes", "devices", "queues"):
        assert kept.tables[name] == fresh.tables[name]
    assert held(kept.tables["shares"]) == held(fresh.tables["shares"])
    assert ordered(kept.tables["waiting"]) == ordered(fresh.tables["waiting"])
    assert kept.scalars == fresh.scalars


def assert_adds_up(kept: KeptState) -> None:
    amounts = dict(kept.scalars["summary"]["gpuMilli"])
    assert amounts.pop("total") == GPU_MILLI * len(kept.tables["devices"]) == sum(amounts.values())
    # What no pod has of a shared GPU is free. A reservation pod may have ended since the last report.
    assert {row[2] for row in kept.tables["shares"].values() if row[5] == "kai-resource-reservation"} <= {GPU_MILLI}
    used: Counter[str] = Counter()
    for _, device, milli, *_ in kept.tables["shares"].values():
        used[device] += milli
    assert max(used.values(), default=0) <= GPU_MILLI
    assert used.keys() <= kept.tables["devices"].keys()


async def test_changes_lead_to_what_a_new_viewer_is_told_and_watching_decides_nothing(tmp_path: Path) -> None:
    seen = Counter[str]()

    async def watch(service: Service) -> None:
        live, kept, chance = live_state(service), KeptState(), Random(7)
        client, picture = Client(), Picture(kept, Sight())
        for number in range(60):
            await asyncio.sleep(chance.choice((0.3, 0.5, 2.0, 9.0)))
            # A view process that ended is told everything again.
            tell(service.shell, live, kept, is_full=number % 20 == 0)
            if kept.tick != client.state.get("tick") or client.state.get("epoch") != picture.epoch:
                known = client.state["tick"] if client.state.get("epoch") == picture.epoch else -1
                client.hear(events(picture, known, most=1000))
            newcomer = Client()
            newcomer.hear(events(picture, -1, most=0))
            assert client.whole == newcomer.whole
            assert_same(kept, told_at_once(service))
            assert_adds_up(kept)
            seen.update(row[3] for row in kept.tables["shares"].values())
            seen["waiting"] += len(kept.tables["waiting"])
            seen["parts"] += sum(row[2] < GPU_MILLI for row in kept.tables["shares"].values())
        assert client.states == 3
        assert client.deltas > 20

    await demo(tmp_path, seed=219, minutes=6.0, beside=watch)

    assert replayed(tmp_path).differences == []
    assert all(seen[each] for each in ("bound", "foreign", "waiting", "parts")), seen


async def test_a_pod_has_the_gpus_that_its_agent_reports_and_else_the_same_free_ones_all_the_time() -> None:
    async with serving() as service:
        service.queue()
        nodes = service.nodes(1, gpus=4)
        live, kept = live_state(service), KeptState()
        first, second = service.pod("first", gpus=2), service.pod("second", gpus=1)
        assert await service.starts(first, *nodes) == await service.starts(second, *nodes) == "node-00"
        await asyncio.sleep(1)
        tell(service.shell, live, kept, is_full=True)
        before = {row[6]: row[1] for row in kept.tables["shares"].values() if row[6] == "second-0"}
        service.cluster.delete(_ref(first))
        await asyncio.sleep(1)
        tell(service.shell, live, kept, is_full=False)

    (share,) = kept.tables["shares"].values()
    assert before == {"second-0": share[1]}
    assert share[2:8] == [1000, "bound", "q", "q", "second-0", "second-0"]
    assert [row[3] for row in kept.tables["nodes"].values()] == [3000]


async def test_a_place_is_shown_from_its_reservation_until_its_pod_has_gone() -> None:
    async with serving() as service:
        service.queue()
        nodes = service.nodes(1, gpus=2)
        live, kept, states = live_state(service), KeptState(), list[list[str]]()

        def look() -> None:
            tell(service.shell, live, kept, is_full=not states)
            states.append([row[3] for row in kept.tables["shares"].values()])

        pod = service.pod("one", gpus=2)
        await service.filter(pod, *nodes)
        look()
        assert kept.scalars["summary"]["gpuMilli"]["reserved"] == 2000
        await service.starts(pod, *nodes)
        await asyncio.sleep(1)
        look()
        await service.cluster.delete_pod(ref(pod))
        await asyncio.sleep(1)
        look()
        service.cluster.delete(_ref(pod))
        await asyncio.sleep(1)
        look()
    assert states == [["reserved"] * 2, ["bound"] * 2, ["leaving"] * 2, []]


async def test_nothing_is_collected_while_nobody_watches() -> None:
    async with serving() as service:
        service.queue()
        nodes = service.nodes(2)
        live, kept = live_state(service), KeptState()
        tell(service.shell, live, kept, is_full=True)
        live.end()
        await service.starts(service.pod("late"), *nodes)
        await asyncio.sleep(1)
        assert service.shell.components.cache.changes.drain_seen().pods == {}
        tell(service.shell, live, kept, is_full=True)
    assert [row[6] for row in kept.tables["shares"].values()] == ["late-0"]


async def test_a_deleted_node_takes_its_rows_along_and_a_cordoned_one_is_not_free() -> None:
    async with serving() as service:
        first, second = service.nodes(2, gpus=1)
        live, kept = live_state(service), KeptState()
        tell(service.shell, live, kept, is_full=True)
        service.cluster.delete(_node(first))
        service.cluster.patch(_node(second), {"spec": {"unschedulable": True}})
        await asyncio.sleep(1)
        tell(service.shell, live, kept, is_full=False)
    assert list(kept.tables["devices"]) == [f"{second}/0"]
    assert kept.tables["nodes"][second][5] == "cordoned"
    assert kept.scalars["summary"] == {
        "gpuMilli": {"total": 1000, "free": 0, "allocated": 0, "reserved": 0, "unhealthy": 1000, "unmanaged": 0},
        "largestGangs": [],
    }


@pytest.mark.slow
async def test_a_long_line_is_shown_up_to_a_bound_and_its_length_is_told() -> None:
    async with serving() as service:
        service.queue()
        service.nodes(1, gpus=1)
        for number in range(MOST_WAITING + 100):
            service.pod(f"pod-{number:04}", gpus=2)
        await asyncio.sleep(30)
        live, kept = live_state(service), KeptState()
        tell(service.shell, live, kept, is_full=True)
    assert len(kept.tables["waiting"]) == MOST_WAITING
    assert kept.scalars["leftOut"] == 100


async def test_a_standby_says_that_it_does_not_decide_and_since_when() -> None:
    async with serving(scheduler_lease="leeboard/scheduler") as service:
        now = EPOCH_S
        components = service.shell.components
        condition = Condition(service.shell, components.readiness, components.metrics, wall_clock=lambda: now)
        first = condition.look()
        now += 60
        later: Any = condition.look()
    assert (first["active"], later["active"]) == (False, False)
    assert later["stale"]["since"] == first["time"] != later["time"]
    assert "leeboard/scheduler" in later["stale"]["sentence"]


async def test_a_replica_that_decides_tells_its_last_plan() -> None:
    async with serving() as service:
        service.queue()
        components = service.shell.components
        condition = Condition(service.shell, components.readiness, components.metrics, wall_clock=lambda: EPOCH_S)
        before: Any = condition.look()
        await service.starts(service.pod("one"), *service.nodes(1))
        await asyncio.sleep(1)
        after: Any = condition.look()
    assert (after["active"], after["stale"]) == (True, None)
    assert before["plan"] == {"at": None, "milliseconds": None}
    assert after["plan"]["milliseconds"] > 0


def test_work_is_bounded_to_its_part_of_the_time_apart_from_a_burst() -> None:
    now = 0.0
    allowance = Allowance(clock=lambda: now)
    assert allowance.pause_s(BURST_S) == FRAME_EVERY_S
    spent, began = 0.0, now
    for _ in range(200):
        now += allowance.pause_s(0.02)
        spent += 0.02
    assert spent <= BURST_S + PART * (now - began)
    assert allowance.pause_s(100.0) == LONGEST_PAUSE_S


def _ref(pod: RawObject) -> Ref:
    return Ref.of(Resource.PODS, pod)


def _node(name: NodeName) -> Ref:
    return Ref(resource=Resource.NODES, name=name)
