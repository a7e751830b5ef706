"""Shows a GpuNode to a person: one line per device, then the links between devices, then the problems."""

from collections.abc import Iterator, Sequence
from typing import Any

from app.agent.report import Status

HEAD = ("GPU", "UUID", "PRODUCT", "USED MiB", "OF", "HEALTH", "MIG", "PODS")


def table(name: str, status: Status) -> str:
    """Return the text, without a newline at its end."""
    return "\n".join(_lines(name, status))


def _lines(name: str, status: Status) -> Iterator[str]:
    driver = status.get("driverVersion", "none")
    count = len(status["devices"])
    yield f"{name}: driver {driver}, {count} device{'' if count == 1 else 's'}"
    if status["devices"]:
        yield ""
        yield from columns([HEAD, *(_device(each) for each in status["devices"])])
    if any("links" in each for each in status["devices"]):
        yield ""
        yield from columns(_matrix(status["devices"]))
    problems = list(_problems(status))
    if problems:
        yield ""
        yield from problems


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the rows. Each column is as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _device(device: Status) -> tuple[str, ...]:
    memory = device.get("memoryMiB", {})
    pods = [f"{pod['namespace']}/{pod['name']}" for pod in device.get("pods", ())]
    return (
        str(device.get("index", "?")),
        device["uuid"],
        device.get("product", "?"),
        str(memory.get("used", "?")),
        str(memory.get("total", "?")),
        device["health"],
        _mig(device.get("mig")),
        ", ".join(pods) or "-",
    )


def _mig(mig: Status | None) -> str:
    if mig is None:
        return "-"
    profiles = [instance["profile"] for instance in mig.get("instances", ())]
    return ", ".join(profiles) or ("on" if mig["enabled"] else "off")


def _matrix(devices: Sequence[Status]) -> list[tuple[str, ...]]:
    names = tuple(str(each.get("index", "?")) for each in devices)
    rows = [("", *names)]
    for name, device in zip(names, devices, strict=True):
        ways = {link["uuid"]: _way(link) for link in device.get("links", ())}
        rows.append((name, *("X" if other is device else ways.get(other["uuid"], "?") for other in devices)))
    return rows


def _way(link: dict[str, Any]) -> str:
    return f"{link['nvlinks']} NVLink" if link["nvlinks"] else link.get("ancestor", "?")


def _problems(status: Status) -> Iterator[str]:
    if "message" in status:
        yield f"devices: {status['message']}"
    if "reason" in status["kubelet"]:
        yield f"kubelet: {status['kubelet']['reason']}"
    for device in status["devices"]:
        if "healthReason" in device:
            yield f"{device['uuid']}: {device['healthReason']}"
    for failure in status.get("failures", ()):
        yield f"{failure.get('device', 'all devices')}: {failure['call']}: {failure['error']}"
