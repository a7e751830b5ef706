"""Calls NVML. Each call may fail alone: a failure is recorded, and the other calls continue."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import pynvml

from app.agent.readings import DriverFailure

GONE = {
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
}
"""The driver was unloaded or replaced. The failure is not about one device."""

LOST = {pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_GPU_NOT_FOUND}
"""No further call for this device can succeed."""

TOO_OLD = {pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH}
"""The driver does not know the call, or not this version of it."""

ABSENT = {pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED}
"""The hardware lacks the feature. This is no failure."""

MOST_FAILURES = 64


class DriverGoneError(Exception):
    """The driver must be reopened."""


class DeviceLostError(Exception):
    """The driver no longer reaches this device, or requires a reset first."""


class Asking:
    """The calls of one poll."""

    def __init__(self) -> None:
        # In the order of the calls; it grows during one poll.
        self.failures: list[DriverFailure] = []

    def ask(
        self, call: Callable[..., Any], *arguments: object, device: str = "", expected: Collection[int] = ()
    ) -> Any:
        """Return NVML's answer, or None after a failure. Errors in `expected` are not recorded.

        Raises `DriverGoneError`, and `DeviceLostError` for a call about one device.
        """
        return self.first_of([call], *arguments, device=device, expected=expected)

    def first_of(
        self, calls: Sequence[Callable[..., Any]], *arguments: object, device: str = "", expected: Collection[int] = ()
    ) -> Any:
        """Use the first of these calls, newest first, that the driver knows."""
        for call in calls[:-1]:
            answer, error = _answer(call, *arguments)
            if error is None:
                return answer
            if error.value not in TOO_OLD:
                return self._refused(calls[0], error, device, expected)
        answer, error = _answer(calls[-1], *arguments)
        return answer if error is None else self._refused(calls[0], error, device, expected)

    def ask_twice(self, call: Callable[..., Any], *arguments: object, device: str) -> Any:
        """Repeat the call after an unspecified error. It is for calls without which the device cannot be reported."""
        answer, error = _answer(twice, call, *arguments)
        return answer if error is None else self._refused(call, error, device, ())

    def has_failed(self, call: str, device: str) -> bool:
        """Return whether this call, which the driver knows, failed for this device."""
        return any(each.call == call and each.device == device for each in self.failures)

    def failed(self, call: str, error: str, device: str = "") -> None:
        """Record a failure outside of NVML."""
        self.failures.append(DriverFailure(call, error, device))

    def _refused(self, call: Callable[..., Any], error: Any, device: str, expected: Collection[int]) -> None:
        if error.value in GONE:
            raise DriverGoneError(words(error))
        if error.value in ABSENT or error.value in expected:
            return
        # A call that the library lacks is missing for every device.
        self.failed(call.__name__, words(error), "" if error.value in TOO_OLD else device)
        if device and error.value in LOST:
            raise DeviceLostError(words(error))


def told(failures: Iterable[DriverFailure], devices: Collection[str]) -> tuple[DriverFailure, ...]:
    """Return the failures, sorted and without duplicates. A failure of all devices is reported once for all."""
    about: dict[tuple[str, str], set[str]] = {}
    for failure in failures:
        about.setdefault((failure.call, failure.error), set()).add(failure.device)
    once = (
        DriverFailure(call, error, device)
        for (call, error), names in about.items()
        for device in ([""] if "" in names or (len(devices) > 1 and names >= set(devices)) else names)
    )
    return tuple(sorted(once)[:MOST_FAILURES])


def twice(call: Callable[..., Any], *arguments: object) -> Any:
    """Repeat the call after an unspecified error. Raises `NVMLError`."""
    try:
        return call(*arguments)
    except pynvml.NVMLError_Unknown:
        return call(*arguments)


def words(error: pynvml.NVMLError) -> str:
    """Return the text of an error. pynvml knows only some of them."""
    try:
        return str(error)
    except UnicodeDecodeError:
        return f"error {error.value}"


def _answer(call: Callable[..., Any], *arguments: object) -> tuple[Any, Any]:
    try:
        return call(*arguments), None
    except pynvml.NVMLError as error:
        return None, error
    except pynvml.NVMLLibraryMismatchError:
        # pynvml raises this for a missing function when it knows a newer version of the call.
        return None, pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    except UnicodeDecodeError:
        return None, pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
