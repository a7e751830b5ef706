"""The past in time-based fairness: its weight, and each queue's past usage of the cluster."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.model.names import QueueName

MICRO = 1_000_000
"""Past usage and `k` are in millionths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Past usage. With `k_micro` 0 it has no effect."""

    k_micro: int = 0
    usage_micro: Mapping[QueueName, tuple[int, int, int]] = field(default_factory=dict)
    """What a queue and its descendants used, as millionths of the cluster's capacity, in the order of `QUOTA_AXES`."""


NO_PAST = Past()
