"""Turns the changes in a report into log lines, one for each change. Pure functions."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from app.agent.report import Status

NOTHING: Status = {"kubelet": {}, "devices": []}


@dataclass(frozen=True, slots=True)
class NewsLine:
    """One log line."""

    event: str
    fields: dict[str, Any] = field(default_factory=dict)


def news(before: Status | None, now: Status) -> Iterator[NewsLine]:
    """Yield the changes, except measured memory and the holders of devices, which change with every pod."""
    known = before or NOTHING
    if known.get("message") != now.get("message"):
        yield _devices(now)
    if known["kubelet"] != now["kubelet"]:
        yield _kubelet(now["kubelet"])
    healths = {device["uuid"]: device["health"] for device in known["devices"]}
    for device in now["devices"]:
        if device["health"] != healths.get(device["uuid"]):
            yield _device(device)
    for failure in now.get("failures", ()):
        if failure not in known.get("failures", ()):
            yield NewsLine("not_told", dict(failure))


def _devices(status: Status) -> NewsLine:
    return (
        NewsLine("no_devices", {"reason": status["message"]}) if "message" in status else NewsLine("devices_are_back")
    )


def _kubelet(kubelet: Status) -> NewsLine:
    return NewsLine("kubelet_answers" if kubelet["answers"] else "kubelet_is_silent", {**kubelet})


def _device(device: Status) -> NewsLine:
    told = {name: device[name] for name in ("uuid", "index", "product", "health", "healthReason") if name in device}
    return NewsLine("device", told)
