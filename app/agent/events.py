"""Waits, in a thread, for events of the driver, especially critical errors."""

import asyncio
import ctypes
import threading
from collections.abc import Sequence
from typing import Any, Protocol

import pynvml

from app.agent.asking import Asking, DeviceLostError
from app.agent.connections import End
from app.model.device import DeviceUuid

WAIT_MS = 500
"""The longest time that `stop` may take."""

WANTED = (
    pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError | pynvml.nvmlEventTypeGpuRecoveryAction
)


class Flag(Protocol):
    """A flag that any thread may set."""

    def set(self) -> None:
        """Set it."""


class LoopFlag:
    """A flag that any thread may set, and that the loop waits for which runs when the flag is created."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def set(self) -> None:
        """Set it soon."""
        self._loop.call_soon_threadsafe(self._event.set)

    def clear(self) -> None:
        """Reset it; the loop calls this."""
        self._event.clear()

    async def wait(self) -> None:
        """Wait until it is set."""
        await self._event.wait()


class DriverEvents:
    """The events of one open driver, until `stop`. Each XID is stored; any other event only triggers a poll."""

    def __init__(self, *, ignored_xids: frozenset[int], reported: Flag) -> None:
        """Set `reported` after each event."""
        self._ignored = ignored_xids
        self._reported = reported
        self._stopping = threading.Event()
        # `follow` writes these. It replaces `_names` as a whole, because the thread reads it.
        self._thread: threading.Thread | None = None
        self._set: Any = None
        self._names: dict[int | None, DeviceUuid] = {}
        self._settled: set[DeviceUuid] = set()
        # Only the thread writes it. It replaces the value as a whole, so that any thread may read it.
        self._xids: dict[DeviceUuid | None, frozenset[int]] = {}

    def xids(self, uuid: DeviceUuid) -> frozenset[int]:
        """Return the XIDs of this device, and those without a known device."""
        found = self._xids
        return found.get(uuid, frozenset()) | found.get(None, frozenset())

    def follow(self, asking: Asking, ends: Sequence[End]) -> None:
        """Register for the events of every device that has some. A failure is recorded and retried in the next poll."""
        fresh = [end for end in ends if end.uuid not in self._settled]
        if not fresh:
            return
        if self._set is None:
            self._set = asking.ask(pynvml.nvmlEventSetCreate)
        if self._set is None:
            return
        # Before the registration: an event of an unknown device would count for all devices.
        self._names = self._names | {_key(end.handle): end.uuid for end in fresh}
        self._settled |= {end.uuid for end in fresh if _register(asking, end, self._set)}
        if self._thread is None:
            self._thread = threading.Thread(target=self._wait, args=(self._set,), name="nvml-events", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread. It must have ended before the driver is closed."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _wait(self, events: Any) -> None:
        is_well = True
        while not self._stopping.is_set():
            try:
                self._note(pynvml.nvmlEventSetWait_v2(events, WAIT_MS))
                is_well = True
            except pynvml.NVMLError as error:
                if error.value == pynvml.NVML_ERROR_TIMEOUT:
                    continue
                # Such as a lost device. One poll is triggered to find out, even when the wait keeps failing.
                if is_well:
                    self._reported.set()
                is_well = False
                self._stopping.wait(WAIT_MS / 1000)
        try:
            pynvml.nvmlEventSetFree(events)
        except pynvml.NVMLError:
            return  # the driver is gone, and the event set with it

    def _note(self, event: Any) -> None:
        if event.eventType == pynvml.nvmlEventTypeXidCriticalError:
            xid = int(event.eventData)
            if xid in self._ignored:
                return
            uuid = self._names.get(_key(event.device))
            self._xids = self._xids | {uuid: self._xids.get(uuid, frozenset()) | {xid}}
        self._reported.set()


def _register(asking: Asking, end: End, events: Any) -> bool:
    """Return True when nothing is left to do: the device is registered, or it has no events."""
    refused = len(asking.failures)
    try:
        supported = asking.ask(pynvml.nvmlDeviceGetSupportedEventTypes, end.handle, device=end.uuid)
        if supported and supported & WANTED:
            asking.ask(pynvml.nvmlDeviceRegisterEvents, end.handle, supported & WANTED, events, device=end.uuid)
    except DeviceLostError:
        return False  # the running poll reports the lost device
    return len(asking.failures) == refused


def _key(handle: Any) -> int | None:
    """Return the pointer. Each answer of the driver has a new wrapper object."""
    return ctypes.cast(handle, ctypes.c_void_p).value
