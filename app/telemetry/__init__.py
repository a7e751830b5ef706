"""The output for operators: metrics and log lines."""

from app.telemetry.logs import Logging, LogWriter
from app.telemetry.metrics import (
    OUTCOMES,
    BindOutcome,
    CallOutcome,
    Drift,
    EvictionCause,
    Metrics,
    PlanOutcome,
    Renewal,
    Review,
    ReviewOutcome,
    Step,
    Verb,
)

__all__ = [
    "OUTCOMES",
    "BindOutcome",
    "CallOutcome",
    "Drift",
    "EvictionCause",
    "LogWriter",
    "Logging",
    "Metrics",
    "PlanOutcome",
    "Renewal",
    "Review",
    "ReviewOutcome",
    "Step",
    "Verb",
]
