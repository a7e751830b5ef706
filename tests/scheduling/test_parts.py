"""The columns of shared GPUs that a later snapshot takes over from an earlier one."""

from dataclasses import replace

import numpy as np

from app.model.names import NodeName
from app.model.snapshot import PART, SharedDevice, Snapshot
from app.scheduling.placement.parts import Initial
from tests import given

A, B, C = (NodeName(name) for name in "abc")


def half(name: str, free: int = 500) -> SharedDevice:
    return SharedDevice(name, free * PART)


def columns(snapshot: Snapshot) -> dict[int, list[int]]:
    """Return what is free in future on each shared GPU, by the column of its node."""
    parts = Initial(snapshot).parts
    rows = zip(parts.columns.tolist(), parts.future.tolist(), strict=True)
    return {column: [each for each in row if each >= 0] for column, row in rows if any(each >= 0 for each in row)}


def test_later_snapshots_of_one_node_table_show_their_own_shared_gpus() -> None:
    first = given.snapshot([given.node(name, device_memory_mib=1000) for name in "abcdefgh"], [], [])
    all_half: dict[NodeName, tuple[SharedDevice, ...]] = {NodeName(name): (half("d"),) for name in "abcdefgh"}
    later: list[dict[NodeName, tuple[SharedDevice, ...]]] = [
        all_half,
        {**all_half, A: (half("d", 250), half("e"))},
        {**all_half, A: (half("d", 250), half("e")), B: ()},
        {name: devices for name, devices in all_half.items() if name != C},
        {},
        all_half,
    ]
    for shared in later:
        snapshot = replace(first, shared=shared)
        alone = replace(snapshot, nodes=given.snapshot(first.nodes.nodes, [], []).nodes)
        assert columns(snapshot) == columns(alone)


def test_an_earlier_snapshot_keeps_its_columns() -> None:
    first = given.snapshot([given.node(name, device_memory_mib=1000) for name in "abcd"], [], [])
    all_half: dict[NodeName, tuple[SharedDevice, ...]] = {NodeName(name): (half("d"),) for name in "abcd"}
    before = Initial(replace(first, shared=all_half)).parts
    future = before.future.copy()

    after = Initial(replace(first, shared={**all_half, A: (half("d", 0),)})).parts

    assert not np.array_equal(after.future, future)
    assert np.array_equal(before.future, future)
