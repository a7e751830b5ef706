"""Reads a queue's past usage, which Leeboard wrote into its status; others may have changed it since."""

import re
from functools import partial

from app.cluster.decode.reading import Fields, ObjectReading, identified
from app.cluster.queues.usage import Sums, Tally
from app.model.quantity import QuantityError, shown
from app.model.resources import CPU, GPU, MEMORY

DIGITS = {CPU: 6, MEMORY: 3, GPU: 6}
"""How many decimals a core-second, byte-second or GPU-second has as a sum of thousandths, or bytes, times ms."""

NAMES = {CPU: "cpu", MEMORY: "memory", GPU: "nvidia.com/gpu"}

_SECONDS = re.compile(r"([0-9]{1,30})(?:\.([0-9]{1,6}))?", re.ASCII)


def tally(raw: object) -> tuple[Tally | None, str]:
    """Return the past usage in a queue's status, and what is wrong with it; None when nothing can be used."""
    fields, _ = identified(raw)
    status = fields.get("status")
    if not isinstance(status, dict) or status.get("usage") is None:
        return None, ""
    reading = ObjectReading()
    usage = reading.mapping(status, "usage")
    at_ms = round(reading.seconds(usage, "updated") * 1000)
    if at_ms <= 0:
        reading.doubt("status.usage.updated is no time since 1970")
    used, capacity = _sums(reading, usage, "used"), _sums(reading, usage, "capacity")
    if reading.problem:
        return None, reading.problem
    return Tally(at_ms=at_ms, used=used, capacity=capacity), ""


def _sums(reading: ObjectReading, usage: Fields, key: str) -> Sums:
    amounts = reading.mapping(usage, key)
    cpu, memory, gpu = (
        reading.number(f"status.usage.{key} of {name}", amounts.get(name), partial(_seconds, digits=DIGITS[axis]))
        for axis, name in NAMES.items()
    )
    return cpu, memory, gpu


def _seconds(text: object, *, digits: int) -> int:
    match = _SECONDS.fullmatch(text) if isinstance(text, str) else None
    decimals = (match[2] or "") if match else ""
    if match is None or len(decimals) > digits:
        raise QuantityError(f"{shown(text)} is no number of seconds with at most {digits} decimals, in quotes")
    return int(match[1] + decimals.ljust(digits, "0"))
