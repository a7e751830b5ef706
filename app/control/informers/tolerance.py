"""Runs one step for one object, so that a bug of ours that this object triggers affects no other object."""

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import structlog

from app.cluster import decode
from app.model.pod import Pod
from app.model.seam import Resource
from app.telemetry import Metrics, Step

log = structlog.get_logger()

R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class Tolerance:
    """Counts and logs failed steps."""

    def __init__(self, metrics: Metrics) -> None:
        """Start without logged failures."""
        self._metrics = metrics
        self._told: set[tuple[Resource, Step, type[Exception]]] = set()

    def attempt(self, resource: Resource, step: Step, what: object, act: Callable[[*Ts], R], *args: *Ts) -> R | None:
        """Return the result of the step; None when a bug of ours makes it fail. Raises `DecodeError`.

        `what` is the object, raw or decoded, or its key: it is named only when the step fails.
        """
        try:
            return act(*args)
        except decode.DecodeError:
            raise
        except Exception as error:  # noqa: BLE001 # an error with one object must not affect the others
            self._metrics.object_failed(repr(resource), step)
            kind = (resource, step, type(error))
            # The traceback is logged once: thousands of objects may come from one template.
            tell = log.warning if kind in self._told else log.exception
            named = _name(what)
            tell("object cannot be used", resource=repr(resource), object=named, step=step.value, error=repr(error))
            self._told.add(kind)
            return None


def _name(what: object) -> object:
    if isinstance(what, dict):
        return decode.full_name(what)
    return repr(what) if isinstance(what, Pod) else what
