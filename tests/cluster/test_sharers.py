"""The pods with GPU shares, by node."""

from app.cluster.gpus.sharers import Sharers
from app.model.names import NodeName, PodUid

A, B = NodeName("a"), NodeName("b")
ONE, TWO, THREE = PodUid("one"), PodUid("two"), PodUid("three")


def test_a_node_names_only_its_own_pods_and_the_others_are_those_without_known_facts() -> None:
    sharers = Sharers()
    for uid, place in ((ONE, A), (TWO, B), (THREE, None)):
        sharers.put(uid, place)

    assert (set(sharers.on(A)), sharers.elsewhere(lambda node: node == A)) == ({ONE}, [TWO, THREE])


def test_a_pod_that_moves_or_is_deleted_leaves_nothing_behind() -> None:
    sharers = Sharers()
    sharers.put(ONE, None)
    sharers.put(ONE, A)
    assert (ONE in sharers, set(sharers.on(A)), sharers.elsewhere(lambda _: True)) == (True, {ONE}, [])

    sharers.drop(ONE)
    sharers.drop(TWO)

    assert (ONE in sharers, set(sharers.on(A)), sharers.elsewhere(lambda _: False)) == (False, set(), [])
