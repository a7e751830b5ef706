"""What we tell operators: metrics and log lines."""

from app.telemetry.logs import Logging, LogWriter
from app.telemetry.metrics import (
    OUTCOMES,
    BindOutcome,
    Metrics,
    Outcome,
    PlanOutcome,
    Renewal,
    Review,
    ReviewOutcome,
    Verb,
)

__all__ = [
    "OUTCOMES",
    "BindOutcome",
    "LogWriter",
    "Logging",
    "Metrics",
    "Outcome",
    "PlanOutcome",
    "Renewal",
    "Review",
    "ReviewOutcome",
    "Verb",
]
