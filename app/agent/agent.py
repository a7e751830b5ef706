"""Runs the agent: looks at the devices and at the kubelet, each in its own rhythm, and publishes what has changed.

Three tasks share one value, what was seen last; each look blocks, so it is made in a thread.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from app.agent.lookout import DeviceSource, Lookout
from app.agent.news import news
from app.agent.publication import Publication
from app.agent.readings import KubeletReading, MachineReading
from app.agent.report import Status, silent, status_of
from app.agent.settings import AgentSettings
from app.model.seam import KubeError

log = structlog.get_logger()

BREATH_S = 0.5
"""Between two looks that the driver asks for: a faulty device may report hundreds of errors a second."""

SILENCE_LOOKS = 6
"""After so many intervals without an answer the driver is taken to hang."""


class LibraryOutdatedError(Exception):
    """The driver was exchanged: a new container has the library that goes with it, and this one never will."""


class Agent:
    """One node's agent; `run` ends when it is cancelled, or with `LibraryOutdatedError`."""

    def __init__(
        self,
        settings: AgentSettings,
        publication: Publication,
        *,
        lookout: Callable[[Callable[[], None]], Lookout],
    ) -> None:
        """`lookout` makes one that calls back, from any thread, when the driver has something to say."""
        self._settings = settings
        self._publication = publication
        self._make_lookout = lookout
        # Set by the tasks that look, each its own; read by the one that publishes.
        self._devices: DeviceSource | None = None
        self._devices_at_s = 0.0
        self._kubelet: KubeletReading | None = None
        self._told: Status | None = None
        self._seen = asyncio.Event()
        self._asked = asyncio.Event()

    async def run(self) -> None:
        """Look and publish."""
        loop = asyncio.get_running_loop()
        self._devices_at_s = loop.time()

        def ask() -> None:
            loop.call_soon_threadsafe(self._asked.set)

        lookout = self._make_lookout(ask)
        # NVML is opened, asked and closed by one thread: while it is being closed nobody must ask.
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="nvml")
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow_devices(lookout, thread))
                tasks.create_task(self._follow_kubelet(lookout))
                tasks.create_task(self._publish(lookout))
        finally:
            await loop.run_in_executor(thread, lookout.close)
            thread.shutdown()

    async def _follow_devices(self, lookout: Lookout, thread: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._asked.clear()
            self._devices = await loop.run_in_executor(thread, lookout.devices)
            if self._devices.machine.is_outdated:
                raise LibraryOutdatedError(self._devices.machine.message)
            self._devices_at_s = loop.time()
            self._seen.set()
            await asyncio.sleep(BREATH_S)
            await _set_within(self._asked, self._settings.devices_interval_s - BREATH_S)

    async def _follow_kubelet(self, lookout: Lookout) -> None:
        while True:
            kubelet = await asyncio.to_thread(lookout.kubelet)
            if kubelet != self._kubelet:
                self._kubelet = kubelet
                self._seen.set()
            await asyncio.sleep(self._settings.pods_interval_s)

    async def _publish(self, lookout: Lookout) -> None:
        wait_s = self._settings.heartbeat_s
        while True:
            await _set_within(self._seen, wait_s)
            self._seen.clear()
            devices = self._devices_now()
            if devices is not None and self._kubelet is not None:
                wait_s = await self._publish_if_due(status_of(lookout.sight(devices, self._kubelet)))

    def _devices_now(self) -> DeviceSource | None:
        """Return what is known; None while the first look may still end."""
        silence_s = asyncio.get_running_loop().time() - self._devices_at_s
        if silence_s <= SILENCE_LOOKS * self._settings.devices_interval_s:
            return self._devices
        known = self._devices or DeviceSource(MachineReading(), {})
        return DeviceSource(silent(known.machine), known.owners)

    async def _publish_if_due(self, status: Status) -> float:
        """Return after how long to look again."""
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


async def _set_within(event: asyncio.Event, wait_s: float) -> None:
    try:
        async with asyncio.timeout(wait_s):
            await event.wait()
    except TimeoutError:
        return
