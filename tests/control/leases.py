"""A replica beside a kube-scheduler that competes for a lease, and the holder of the lease."""

from typing import Any

from app.control.leadership.leadership import LOOK_EVERY_S, NOTICED_WITHIN_S
from tests.control.wired import FickleCluster, World, furnished

LEASE = "leeboard/leeboard-scheduler"
BESIDE_US: dict[str, Any] = {"scheduler_lease": LEASE, "hostname": "pod-a"}
LEASE_S = 15.0
SETTLED_S = LOOK_EVERY_S + NOTICED_WITHIN_S + 0.1
"""After this time a replica has seen that it holds the lease, and trusts it."""


def elected(holder: str = "pod-a_5b5c", *, gpus: int = 1, cluster: FickleCluster | None = None) -> FickleCluster:
    """Build a cluster of the node `a` whose lease is held already."""
    cluster = furnished("a", gpus=gpus, cluster=cluster)
    cluster.holders[LEASE] = holder
    return cluster


def active(world: World) -> bool:
    return next(check.passed for check in world.inspect.checks() if check.name == "active")
