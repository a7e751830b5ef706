"""Carries out one step with one object, so that a mistake of ours that this object brings out costs no other object."""

from collections.abc import Callable
from typing import TypeVar

import structlog

from app.cluster import decode
from app.model.seam import Resource
from app.telemetry import Metrics, Step

log = structlog.get_logger()

R = TypeVar("R")


class Tolerance:
    """Counts and tells of the steps that failed."""

    def __init__(self, metrics: Metrics) -> None:
        """Start with no failure told."""
        self._metrics = metrics
        self._told: set[tuple[Resource, Step, type[Exception]]] = set()

    def attempt(self, resource: Resource, step: Step, name: object, act: Callable[[], R]) -> R | None:
        """Return what comes of it; None when it fails by a mistake of ours. Raises `DecodeError`."""
        try:
            return act()
        except decode.DecodeError:
            raise
        except Exception as error:  # noqa: BLE001 # whatever one object brings out, the others are served
            self._metrics.object_failed(repr(resource), step)
            what = (resource, step, type(error))
            # Where it happened is told once: thousands of objects may be of one template.
            tell = log.warning if what in self._told else log.exception
            tell("object cannot be used", resource=repr(resource), object=name, step=step.value, error=repr(error))
            self._told.add(what)
            return None
