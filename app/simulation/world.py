"""Builds a running cluster: its initial objects, and the actors that change it until cancelled."""

import asyncio
import time
from collections.abc import Callable

import aiohttp

from app.simulation.agents import Agents
from app.simulation.clock import Clock, WallClock
from app.simulation.cluster import SimulatedCluster
from app.simulation.devices import SimulatedDevices
from app.simulation.kubelet import SimulatedKubelet
from app.simulation.scheduler import Scheduler
from app.simulation.users import Users
from app.simulation.webhooks import ExtenderWebhooks
from app.simulation.workload import arrivals, furniture


def furnished(*, now: Callable[[], float] = time.time) -> SimulatedCluster:
    """Return a cluster with nodes, queues and priority classes, without jobs; `now` is in seconds since the epoch."""
    cluster = SimulatedCluster(now=now)
    for resource, item in furniture():
        cluster.create(resource, item)
    return cluster


async def live(cluster: SimulatedCluster, webhooks_url: str, *, speed: float, seed: int) -> None:
    """Run users that submit jobs and a kube-scheduler that places them through the webhooks, until cancelled."""
    clock: Clock = WallClock(speed=speed)
    devices = SimulatedDevices(cluster)
    connector = aiohttp.TCPConnector(limit=0)  # A waiting bind holds a connection, and all members of a gang wait.
    async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as actors:
        actors.create_task(SimulatedKubelet(cluster, devices, clock).run())
        actors.create_task(Agents(cluster, devices, clock).run())
        actors.create_task(Scheduler(cluster, ExtenderWebhooks(session, webhooks_url), clock).run())
        actors.create_task(Users(cluster, clock).run(arrivals(seed)))
