"""What time-based fairness knows of the past: how strongly it counts, and how much of the cluster each queue used."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.model.names import QueueName

MICRO = 1_000_000
"""Past usage and `k` are given in millionths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """With `k_micro` 0 the past does not matter."""

    k_micro: int = 0
    usage_micro: Mapping[QueueName, tuple[int, int, int]] = field(default_factory=dict)
    """What a queue and those below it used, as a part of the cluster's capacity, in the order of `QUOTA_AXES`."""


NO_PAST = Past()
