"""Measures one cluster of `scale_objects` in one fresh process: `python -m loadtest.scale_probe` prints JSON.

Everything goes through the service's own components (`service.Components`); only the API server is missing.
"""

import argparse
import asyncio
import gc
import json
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from app.cluster.state.cache import ClusterCache
from app.model.seam import Resource
from app.service import GARBAGE_THRESHOLDS, Components
from app.settings import Settings
from app.telemetry import Metrics
from app.web.scrape import scrape
from app.web.visits import OnTheSpot
from loadtest.holds import watched
from loadtest.scale_cluster import Wire
from loadtest.scale_objects import gpu_node, node
from loadtest.scale_pods import Size, pod, written
from loadtest.scale_webhooks import latencies

Figures = dict[str, float]

ROUNDS = 200
"""Times that what takes less than a millisecond is measured."""

FEW = 5
"""Times that what takes up to seconds is measured."""


def rss_bytes(field: str = "VmRSS") -> int:
    """Return what this process has in memory; `VmHWM` is the most that it ever had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(each.split()[1]) * 1024 for each in lines if each.startswith(field))


class Probe:
    """The service without its ports on one cluster, and what is measured of it."""

    def __init__(self, size: Size, wire: Wire) -> None:
        self._size = size
        self._wire = wire
        self._parts = Components(Settings(), wire, Metrics())
        self._cache: ClusterCache = self._parts.cache

    @property
    def parts(self) -> Components:
        """The service's own."""
        return self._parts

    async def fill(self) -> Figures:
        """List everything."""
        before, began, spent = rss_bytes(), time.perf_counter(), time.process_time()
        async with watched() as holds:
            self._running = asyncio.gather(*(part.run() for part in self._parts.informers))
            while self._parts.freshness.failure():  # noqa: ASYNC110 # the owners are known later, without a notification
                await asyncio.sleep(0.01)
        took_s, cpu_s = time.perf_counter() - began, time.process_time() - spent
        gc.collect()
        gc.freeze()
        return {
            "fill_s": took_s,
            "fill_cpu_us_a_pod": cpu_s / self._size.pods * 1e6,
            "fill_json_s": sum(self._wire.decoding_s.values()),
            "fill_longest_hold_ms": holds.longest_s * 1e3,
            "rss_mb": rss_bytes() / 1e6,
            "rss_peak_mb": rss_bytes("VmHWM") / 1e6,
            "rss_bytes_a_pod": (rss_bytes() - before) / self._size.pods,
        }

    async def pod_events(self) -> Figures:
        """Let pods come, be bound, and go."""
        took: dict[str, list[float]] = {"add": [], "bind": [], "delete": []}
        for number in range(ROUNDS):
            name, team, on = f"new-{number}", f"team-{number}", number % self._size.nodes
            waits, runs = written(name, team=team), written(name, team=team, node=on)
            took["add"].append(await self._wire.send(Resource.PODS, "ADDED", waits))
            took["bind"].append(await self._wire.send(Resource.PODS, "MODIFIED", runs))
            took["delete"].append(await self._wire.send(Resource.PODS, "DELETED", runs))
            self._cache.groups.form()
        return {name: value for verb, times in took.items() for name, value in _us(f"pod_{verb}", times).items()}

    async def node_events(self) -> Figures:
        """Let kubelets be heard, nodes change, and agents measure something else."""
        beats = [await self._send_node(number, beat=1) for number in range(ROUNDS)]
        changes = [await self._send_node(number, beat=1, taint="tried") for number in range(ROUNDS)]
        for number in range(ROUNDS):
            await self._send_node(number, beat=2)
        reports = [
            await self._wire.send(Resource.GPU_NODES, "MODIFIED", gpu_node(self._size, number, used_mib=number))
            for number in range(ROUNDS)
        ]
        return {**_us("node_heartbeat", beats), **_us("node_change", changes), **_us("agent_report", reports)}

    async def _send_node(self, number: int, *, beat: int, taint: str = "") -> float:
        return await self._wire.send(Resource.NODES, "MODIFIED", node(number, beat=beat, taint=taint))

    async def snapshots(self) -> Figures:
        """Freeze after one change."""
        self._cache.snapshot()
        after_pod = [await self._after(self._touch_pod(number)) for number in range(ROUNDS)]
        after_gang = [await self._after(self._touch_gang(number)) for number in range(ROUNDS)]
        after_node = [await self._after(self._send_node(number, beat=3, taint="again")) for number in range(ROUNDS)]
        for number in range(ROUNDS):
            await self._send_node(number, beat=4)
        named = (
            ("snapshot_after_pod", after_pod),
            ("snapshot_after_gang", after_gang),
            ("snapshot_after_node", after_node),
        )
        return {key: value for name, times in named for key, value in _us(name, times).items()}

    async def _after(self, change: Awaitable[object]) -> float:
        await change
        return _timed(self._cache.snapshot)

    async def _touch_pod(self, number: int) -> None:
        await self._wire.send(Resource.PODS, "ADDED", written(f"touched-{number}", team="team-1", node=number))

    async def _touch_gang(self, number: int) -> None:
        raw = pod(self._size, number % 64).replace(b'"train"', f'"train-{number}"'.encode(), 1)
        await self._wire.send(Resource.PODS, "MODIFIED", raw.replace(b'"priority":50', f'"priority":{number}'.encode()))

    async def plans(self) -> Figures:
        """Plan everything that waits, then again after one change, with and without relief."""
        first = await self._settled()
        waiting, promised = len(self._cache.groups.waiting()), len(self._cache.reservations)
        relieved, others = [], []
        for number in range(FEW):
            await self._wire.send(Resource.PODS, "DELETED", written(f"touched-{number}", team="team-1", node=number))
            relieved.append((await self._settled())[0])
        for number in range(ROUNDS // 4):
            await self._wire.send(Resource.PODS, "ADDED", written(f"late-{number}", team="team-2"))
            others.append((await self._settled())[0])
        return {
            "plan_first_s": first[0],
            "plan_first_hold_ms": first[1] * 1e3,
            "promised": promised,
            "groups_waiting": waiting,
            "plan_after_relief_ms": statistics.median(relieved) * 1e3,
            "plan_of_one_pod_ms": statistics.median(others) * 1e3,
        }

    async def _settled(self) -> tuple[float, float]:
        async with watched() as holds:
            await asyncio.sleep(0)
            began = time.process_time()
            await self._parts.planning.settle()
            took_s = time.process_time() - began
            await asyncio.sleep(0)
        return took_s, holds.longest_s

    async def reads(self) -> Figures:
        """Ask as people and Prometheus do, and have the writers look when there is nothing to write."""
        inspect, status, events = self._parts.inspect, self._parts.status, self._parts.events
        block = self._size.running
        asked = [(f"team-{(block * 43 + each) % 950}", f"alone-{block}-0-{each}") for each in range(FEW)]
        whys = [_timed(partial(inspect.explain, *one)) for one in asked]
        scrapes = [await self._scraped() for _ in range(FEW)]
        await self._looked(status.round)  # writes what it has to say first
        await self._looked(events.round)
        looks = [await self._looked(status.round) for _ in range(FEW)]
        changed = [await self._looked_after_change(number) for number in range(FEW)]
        gpus = _timed(lambda: [inspect.gpu_node(name) for name in inspect.gpu_nodes()])
        return {
            "why_ms": statistics.median(whys) * 1e3,
            "queue_stands_ms": statistics.median(_timed(inspect.queue_stands()) for _ in range(FEW)) * 1e3,
            "metrics_read_ms": statistics.median(scrapes) * 1e3,
            "status_after_change_ms": statistics.median(changed) * 1e3,
            "status_idle_ms": statistics.median(looks) * 1e3,
            "gpus_list_s": gpus,
        }

    async def _scraped(self) -> float:
        """Return how much processor time one scrape takes in all; a part of it is spent in threads."""
        began = time.process_time()
        inspect = self._parts.inspect
        await scrape(self._parts.metrics.registry, inspect, OnTheSpot(), ready=inspect)
        return time.process_time() - began

    async def _looked_after_change(self, number: int) -> float:
        await self._wire.send(Resource.PODS, "ADDED", written(f"told-{number}", team="team-4"))
        return await self._looked(self._parts.status.round)

    async def _looked(self, look: Callable[[], Awaitable[None]]) -> float:
        began = time.process_time()
        await look()
        return time.process_time() - began

    async def stop(self) -> None:
        """End the feed."""
        self._running.cancel()
        with suppress(asyncio.CancelledError):
            await self._running


def _timed(ask: Callable[[], object]) -> float:
    began = time.process_time()
    ask()
    return time.process_time() - began


def _us(name: str, times: Sequence[float]) -> Figures:
    return {
        f"{name}_us": statistics.median(times) * 1e6,
        f"{name}_p99_us": statistics.quantiles(times, n=100)[98] * 1e6,
    }


async def measured(size: Size, *, first: Resource | None, with_webhooks: str) -> Figures:
    """Return all figures of a cluster of this size; only those of the list when pods are listed `first`."""
    wire = Wire(size, first=first)
    probe = Probe(size, wire)
    figures: Figures = {"nodes": size.nodes, "pods": size.pods}
    figures |= await probe.fill()
    if first is None:
        for measure in (probe.pod_events, probe.node_events, probe.snapshots, probe.plans, probe.reads):
            figures |= await measure()
        figures["rss_after_all_mb"] = rss_bytes() / 1e6
    if with_webhooks:
        figures |= await latencies(probe.parts, wire, size)
    await probe.stop()
    return figures


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("nodes", "running", "pending", "gpus_of_large"):
        parser.add_argument(name, type=int)
    parser.add_argument("--pods-first", action="store_const", const=Resource.PODS, help="list nodes after pods")
    parser.add_argument(
        "--webhooks", action="store_const", const="yes", default="", help="measure filter over HTTP, too"
    )
    chosen = parser.parse_args()
    size = Size(nodes=chosen.nodes, running=chosen.running, pending=chosen.pending, gpus_of_large=chosen.gpus_of_large)
    # As the service runs.
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    print(json.dumps(asyncio.run(measured(size, first=chosen.pods_first, with_webhooks=chosen.webhooks))))


if __name__ == "__main__":
    _main()
