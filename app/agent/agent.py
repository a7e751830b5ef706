"""Runs the agent: polls the devices and the kubelet, each at its own interval, and publishes what has changed.

Three tasks share the last readings. Each poll blocks, so it runs in a thread.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import structlog

from app.agent.events import LoopFlag
from app.agent.lookout import DeviceSource, Lookout
from app.agent.news import news
from app.agent.publication import Publication
from app.agent.readings import KubeletReading, MachineReading
from app.agent.report import Status, silent, status_of
from app.agent.settings import AgentSettings
from app.model.seam import KubeError

log = structlog.get_logger()

BREATH_S = 0.5
"""The shortest time between two polls that the driver asks for. A faulty device may report hundreds of errors a second.
"""

SILENCE_LOOKS = 6
"""After this many intervals without an answer, the driver is considered hung."""


class LibraryOutdatedError(Exception):
    """The driver was replaced. Only a new container gets the library that matches it."""


class Agent:
    """One node's agent. `run` ends when it is cancelled, or with `LibraryOutdatedError`."""

    def __init__(
        self,
        settings: AgentSettings,
        publication: Publication,
        lookout: Lookout,
        reported: LoopFlag,
    ) -> None:
        """`lookout` sets `reported` when the driver reports an event."""
        self._settings = settings
        self._publication = publication
        self._lookout = lookout
        self._reported = reported
        # Each polling task sets its own value; the publishing task reads them.
        self._devices: DeviceSource | None = None
        self._devices_at_s = 0.0
        self._kubelet: KubeletReading | None = None
        self._told: Status | None = None
        self._seen = asyncio.Event()

    async def run(self) -> None:
        """Poll and publish."""
        loop = asyncio.get_running_loop()
        self._devices_at_s = loop.time()

        # One thread opens, queries and closes NVML, so that no query runs while NVML is being closed.
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="nvml")
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow_devices(thread))
                tasks.create_task(self._follow_kubelet())
                tasks.create_task(self._publish())
        finally:
            await loop.run_in_executor(thread, self._lookout.close)
            thread.shutdown()

    async def _follow_devices(self, thread: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._reported.clear()
            self._devices = await loop.run_in_executor(thread, self._lookout.devices)
            if self._devices.machine.is_outdated:
                raise LibraryOutdatedError(self._devices.machine.message)
            self._devices_at_s = loop.time()
            self._seen.set()
            await asyncio.sleep(BREATH_S)
            await _set_within(self._reported, self._settings.devices_interval_s - BREATH_S)

    async def _follow_kubelet(self) -> None:
        while True:
            kubelet = await asyncio.to_thread(self._lookout.kubelet)
            if kubelet != self._kubelet:
                self._kubelet = kubelet
                self._seen.set()
            await asyncio.sleep(self._settings.pods_interval_s)

    async def _publish(self) -> None:
        wait_s = self._settings.heartbeat_s
        while True:
            await _set_within(self._seen, wait_s)
            self._seen.clear()
            devices = self._devices_now()
            if devices is not None and self._kubelet is not None:
                wait_s = await self._publish_if_due(status_of(self._lookout.sight(devices, self._kubelet)))

    def _devices_now(self) -> DeviceSource | None:
        """Return the last reading; None while the first poll may still end."""
        silence_s = asyncio.get_running_loop().time() - self._devices_at_s
        if silence_s <= SILENCE_LOOKS * self._settings.devices_interval_s:
            return self._devices
        known = self._devices or DeviceSource(MachineReading(), {})
        return DeviceSource(silent(known.machine), known.owners)

    async def _publish_if_due(self, status: Status) -> float:
        """Publish the status if it is due. Return the seconds until the next check."""
        self._tell(status)
        time = asyncio.get_running_loop().time
        wait_s = self._publication.due_in_s(status, time())
        if wait_s > 0:
            return wait_s
        try:
            await self._publication.publish(status, time())
        except KubeError as error:
            wait_s = self._publication.due_in_s(status, time())
            log.warning("not_published", reason=str(error), retry_in_s=round(wait_s, 1))
            return wait_s
        return self._publication.due_in_s(status, time())

    def _tell(self, status: Status) -> None:
        for line in news(self._told, status):
            log.info(line.event, **line.fields)
        self._told = status


async def _set_within(event: asyncio.Event | LoopFlag, wait_s: float) -> None:
    try:
        async with asyncio.timeout(wait_s):
            await event.wait()
    except TimeoutError:
        return
