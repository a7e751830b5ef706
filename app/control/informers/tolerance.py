"""Runs one step for one object, so that a bug of ours that this object triggers affects no other object."""

from collections.abc import Callable
from typing import TypeVar

import structlog

from app.cluster import decode
from app.model.seam import Resource
from app.telemetry import Metrics, Step

log = structlog.get_logger()

R = TypeVar("R")


class Tolerance:
    """Counts and logs failed steps."""

    def __init__(self, metrics: Metrics) -> None:
        """Start without logged failures."""
        self._metrics = metrics
        self._told: set[tuple[Resource, Step, type[Exception]]] = set()

    def attempt(self, resource: Resource, step: Step, name: object, act: Callable[[], R]) -> R | None:
        """Return the result of the step; None when a bug of ours makes it fail. Raises `DecodeError`."""
        try:
            return act()
        except decode.DecodeError:
            raise
        except Exception as error:  # noqa: BLE001 # an error with one object must not affect the others
            self._metrics.object_failed(repr(resource), step)
            what = (resource, step, type(error))
            # The traceback is logged once: thousands of objects may come from one template.
            tell = log.warning if what in self._told else log.exception
            tell("object cannot be used", resource=repr(resource), object=name, step=step.value, error=repr(error))
            self._told.add(what)
            return None
