"""The message about room that is held until it is free."""

import pytest

from app.control.journal.waits import Wait, for_devices
from app.model.names import GroupKey, NodeName, PodUid

BEGAN = "2026-01-31T12:00:00Z"


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ("a", f"A GPU is not ready yet to be shared on node a; it has waited since {BEGAN}."),
        ("ab", f"GPUs are not ready yet to be shared on nodes a, b; it has waited since {BEGAN}."),
    ],
)
def test_the_message_of_a_gang_that_shares_gpus_of_several_nodes_names_all_of_them(nodes: str, says: str) -> None:
    wait = Wait(
        group=GroupKey("q", "gang"),
        pods=tuple(PodUid(node) for node in nodes),
        nodes=frozenset(map(NodeName, nodes)),
        victims=(),
        freed=frozenset(),
        since=0.0,
        began=BEGAN,
        relief=0,
    )

    assert for_devices(wait, "").sentence == says
    assert for_devices(wait, "its cause").sentence == says.replace(";", ": its cause;")
