"""What we tell operators: metrics and log lines."""

from app.telemetry.logs import Logging, LogWriter
from app.telemetry.metrics import (
    OUTCOMES,
    BindOutcome,
    Drift,
    Metrics,
    Outcome,
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
    "Drift",
    "LogWriter",
    "Logging",
    "Metrics",
    "Outcome",
    "PlanOutcome",
    "Renewal",
    "Review",
    "ReviewOutcome",
    "Step",
    "Verb",
]
