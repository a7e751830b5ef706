"""Benchmarks plan with the typical mix that Leeboard has learnt, as the service does."""

from collections.abc import Callable

import pytest

from app.model.snapshot import Snapshot
from app.scheduling.policy import DEFAULT_POLICY
from loadtest.mixtures import mixed, racks
from loadtest.philly import nodes_of
from loadtest.planned import PlannedCluster
from loadtest.saturated import weighted
from loadtest.snapshots import gangs, gangs_of_parts, halves, lone_pods, reclaim, shared_full
from loadtest.virtual_time import Job


def shapes(snapshot: Snapshot) -> set[tuple[int, int]]:
    """Return GPUs and the part of each, of the kinds in the mix."""
    assert snapshot.mix is not None
    return {(kind.devices, kind.part_milli) for kind in snapshot.mix.pods}


def test_a_cluster_in_virtual_time_learns_what_starts() -> None:
    cluster = PlannedCluster(nodes_of(64), [weighted("a", 1, 0)], DEFAULT_POLICY)
    for number in range(25):
        cluster.post(float(number), "come", Job(f"j{number}", "a", 1, 2, 1000.0, float(number)))
    cluster.run_until(60.0)

    snapshot = cluster.snapshot()
    assert shapes(snapshot) == {(1, 1000), (2, 1000)}
    assert snapshot.mix is not None
    assert dict(zip((kind.devices for kind in snapshot.mix.pods), snapshot.mix.counts, strict=True))[2] >= 20 * 1024


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (lambda: lone_pods(4, 8, gpus=2), (2, 1000)),
        (lambda: gangs(4, 2, pods=4, gpus=2), (2, 1000)),
        (lambda: reclaim(20), (1, 1000)),
        (lambda: halves(4, 8), (1, 500)),
        (lambda: gangs_of_parts(4, 2, pods=4), (2, 250)),
        (lambda: shared_full(4), (1, 500)),
        (lambda: mixed(20, 40), (4, 1000)),
        (lambda: racks(32, 2, pods=4), (1, 1000)),
    ],
    ids=["lone pods", "gangs", "reclaim", "halves", "gangs of parts", "full of halves", "mixed", "racks"],
)
def test_a_snapshot_has_the_mix_of_its_own_pods(build: Callable[[], Snapshot], shape: tuple[int, int]) -> None:
    assert shape in shapes(build())
