"""Asks NVML one thing at a time: each call may fail on its own, and what fails is named while the rest goes on."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import pynvml

from app.agent.readings import DriverFailure

GONE = {
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
}
"""It is not one device that fails, it is the driver that was taken away or exchanged."""

LOST = {pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_GPU_NOT_FOUND}
"""Nothing more can be learnt of this device."""

TOO_OLD = {pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH}
"""The driver does not know the call, or not in this form."""

ABSENT = {pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED}
"""The hardware does not have what is asked about, which is no failure."""

MOST_FAILURES = 64


class DriverGoneError(Exception):
    """The driver has to be opened anew."""


class DeviceLostError(Exception):
    """The driver does not reach this device any more, or wants it to be reset first."""


class Asking:
    """One look at the machine."""

    def __init__(self) -> None:
        # In the order they happened; grows while one look lasts.
        self.failures: list[DriverFailure] = []

    def ask(
        self, call: Callable[..., Any], *arguments: object, device: str = "", expected: Collection[int] = ()
    ) -> Any:
        """Return what NVML answers, None where it does not; errors that were `expected` are no failures.

        Raises `DriverGoneError`, and `DeviceLostError` when it is about one device.
        """
        return self.first_of([call], *arguments, device=device, expected=expected)

    def first_of(
        self, calls: Sequence[Callable[..., Any]], *arguments: object, device: str = "", expected: Collection[int] = ()
    ) -> Any:
        """Ask by the first of these calls, newest first, that the driver knows."""
        for call in calls[:-1]:
            answer, error = _answer(call, *arguments)
            if error is None:
                return answer
            if error.value not in TOO_OLD:
                return self._refused(calls[0], error, device, expected)
        answer, error = _answer(calls[-1], *arguments)
        return answer if error is None else self._refused(calls[0], error, device, expected)

    def ask_twice(self, call: Callable[..., Any], *arguments: object, device: str) -> Any:
        """Ask again what failed for no reason given, where nothing can be told of a device without an answer."""
        answer, error = _answer(twice, call, *arguments)
        return answer if error is None else self._refused(call, error, device, ())

    def has_failed(self, call: str, device: str) -> bool:
        """Return whether this call, which the driver knows, was refused for this device."""
        return any(each.call == call and each.device == device for each in self.failures)

    def failed(self, call: str, error: str, device: str = "") -> None:
        """Note what went wrong elsewhere."""
        self.failures.append(DriverFailure(call, error, device))

    def _refused(self, call: Callable[..., Any], error: Any, device: str, expected: Collection[int]) -> None:
        if error.value in GONE:
            raise DriverGoneError(words(error))
        if error.value in ABSENT or error.value in expected:
            return
        # What the library lacks it lacks for every device.
        self.failed(call.__name__, words(error), "" if error.value in TOO_OLD else device)
        if device and error.value in LOST:
            raise DeviceLostError(words(error))


def told(failures: Iterable[DriverFailure], devices: Collection[str]) -> tuple[DriverFailure, ...]:
    """Return what failed, sorted and once; what failed for each of several devices alike is about all of them."""
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
    """Call again what failed for no reason given. Raises `NVMLError`."""
    try:
        return call(*arguments)
    except pynvml.NVMLError_Unknown:
        return call(*arguments)


def words(error: pynvml.NVMLError) -> str:
    """Return what the driver says of an error, of which pynvml knows some only."""
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
        # pynvml's word for a missing function, where it knows a newer form of the call.
        return None, pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    except UnicodeDecodeError:
        return None, pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
