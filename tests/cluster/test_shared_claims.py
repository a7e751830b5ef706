"""Claims that pods share in the cache: a node gives their devices once, and each queue whose pods use one pays once."""

from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

import pytest

from app.model.names import NodeName, PodUid, QueueName
from app.model.snapshot import ClaimUsers
from tests import given
from tests.cluster.dra_objects import Raw, claim, device_class, gpu, request, resource_slice
from tests.cluster.steps import entries, steps
from tests.cluster.test_device_claims import Cluster

ASKED = request("gpu.example.com", count=2)
LABELS = {"kai.scheduler/queue": "q"}
DEVICES = ["gpu-0", "gpu-1"]


def shared(*, on: str = "", name: str = "c") -> Raw:
    return claim(name, ASKED, labels=LABELS, on=on, devices=DEVICES)


class Sharing(Cluster):
    """A cluster whose node has four GPUs, with the queues `q` and `r` and what they pay."""

    def __init__(self) -> None:
        super().__init__("a")
        self.cache.apply_queue(given.queue("r"))
        self.show_slice(resource_slice("a", [gpu(f"gpu-{number}") for number in range(4)]))

    def usage(self, queue: str = "q") -> tuple[int, int, int]:
        """Return the GPUs that a queue holds, non-preemptible ones, and requests."""
        found = self.cache.snapshot().usage.get(QueueName(queue))
        if found is None:
            return 0, 0, 0
        amounts = found.allocated, found.allocated_non_preemptible, found.requested
        held, firm, asked = (each.gpu_milli // 1000 for each in amounts)
        return held, firm, asked

    def promise(self, name: str) -> None:
        self.cache.promises.make(PodUid(f"uid-{name}"), NodeName("a"), expires_at=1.0)

    def end(self, name: str) -> None:
        self.cache.delete_pod(PodUid(f"uid-{name}"))


@pytest.fixture
def cluster() -> Sharing:
    made = Sharing()
    made.show_claim(shared())
    return made


def test_queue_pays_for_a_claim_once_however_many_pods_use_it(cluster: Sharing) -> None:
    for name in ("first", "second", "third"):
        cluster.show_pod(name, "c")
    waiting = cluster.usage()

    for name in ("first", "second"):
        cluster.promise(name)

    assert (waiting, cluster.usage(), cluster.free("a")) == ((0, 0, 2), (2, 0, 2), 2000)


def test_claim_is_paid_until_its_last_pod_is_gone_whichever_began(cluster: Sharing) -> None:
    cluster.show_claim(shared(on="a"))
    seen = []
    for name in ("first", "second"):
        cluster.show_pod(name, "c", on="a")
    for name in ("first", "second"):
        cluster.show_pod(name, "c", on="a", deleting=True)
        seen.append((cluster.usage()[0], cluster.free("a"), cluster.free_later("a")))
        cluster.end(name)
        seen.append((cluster.usage()[0], cluster.free("a"), cluster.free_later("a")))

    cluster.end_claim(shared())

    assert seen == [(2, 2000, 2000), (2, 2000, 2000), (2, 2000, 4000), (0, 2000, 4000)]
    assert cluster.free("a") == 4000


def test_each_of_two_queues_pays_once_and_the_node_gives_the_devices_once(cluster: Sharing) -> None:
    for name, queue in (("one", "q"), ("two", "r"), ("three", "r")):
        cluster.show_pod(name, "c", on="a", queue=queue)

    assert (cluster.usage("q"), cluster.usage("r"), cluster.free("a")) == ((2, 0, 2), (2, 0, 2), 2000)


def test_non_preemptible_part_is_paid_while_a_non_preemptible_pod_uses_the_claim(cluster: Sharing) -> None:
    cluster.show_pod("soft", "c", on="a")
    soft = cluster.usage()
    cluster.show_pod("firm", "c", on="a", explicit_preemptible=False)
    both = cluster.usage()
    cluster.end("firm")

    assert (soft, both, cluster.usage()) == ((2, 0, 2), (2, 2, 2), (2, 0, 2))


def test_claim_with_another_cost_is_paid_anew(cluster: Sharing) -> None:
    for name in ("one", "two"):
        cluster.show_pod(name, "c", on="a")

    cluster.show_claim(claim("c", request("gpu.example.com", count=3), labels=LABELS))

    assert (cluster.usage(), cluster.free("a")) == ((3, 0, 3), 1000)


def test_pods_outside_all_queues_take_a_claim_from_what_queues_divide_unless_a_queue_pays(cluster: Sharing) -> None:
    def divided() -> int:
        return cluster.cache.snapshot().total.gpu_milli

    for name in ("other", "another"):
        cluster.show_pod(name, "c", on="a", queue="", managed=False)
    alone = divided()
    cluster.show_pod("ours", "c", on="a")
    with_us = divided()
    cluster.end("ours")

    assert (alone, with_us, divided()) == (2000, 4000, 2000)


def test_pod_that_wrote_its_node_itself_makes_no_queue_pay(cluster: Sharing) -> None:
    cluster.show_pod("liar", "c", on="a", managed=False, self_placed=True)

    assert cluster.usage() == (0, 0, 0)


def test_room_of_a_claim_is_awaited_until_the_pods_that_hold_it_are_gone(cluster: Sharing) -> None:
    cluster.show_pod("big", on="a", gpus=3, deleting=True)
    uids = [PodUid(f"uid-{name}") for name in ("one", "two")]
    for name in ("one", "two"):
        cluster.show_pod(name, "c")
    for uid in uids:
        cluster.cache.promises.await_release(uid, NodeName("a"), expires_at=1.0)
    room = cluster.cache.room
    seen = room.suffices(uids), room.suffices_later(uids)

    cluster.end("big")

    assert (seen, room.suffices(uids)) == ((False, True), True)


def test_pods_that_wait_for_room_stay_within_the_limit_that_their_claim_would_exceed(cluster: Sharing) -> None:
    cluster.cache.apply_queue(given.queue("q", limit=3))
    uids = [PodUid(f"uid-{name}") for name in ("one", "two")]
    cluster.show_pod("there", on="a", gpus=2)
    for name in ("one", "two"):
        cluster.show_pod(name, "c")
    for uid in uids:
        cluster.cache.promises.await_release(uid, NodeName("a"), expires_at=1.0)
    over = cluster.cache.room.limits().admit(uids)

    cluster.cache.apply_queue(given.queue("q", limit=4))
    limits = cluster.cache.room.limits()
    first = limits.admit(uids[:1])
    limits.start(uids[:1])

    assert (over, first, limits.admit(uids[1:])) == (False, True, True)


def test_deleted_node_and_its_return_change_no_payment(cluster: Sharing) -> None:
    for name in ("one", "two"):
        cluster.show_pod(name, "c", on="a", deleting=True)
    before = cluster.usage()

    cluster.cache.delete_node(NodeName("a"))
    cluster.cache.apply_node(given.node("a", gpus=0))

    assert (cluster.usage(), before, cluster.free_later("a")) == ((2, 0, 2), (2, 0, 2), 4000)


# Random order ---------------------------------------------------------------------------------------------------------


def books(cluster: Sharing) -> object:
    """Return everything that a plan reads of claims."""
    snapshot = cluster.cache.snapshot()
    usage = {name: cluster.usage(name) for name in ("q", "r")}
    return usage, dict(snapshot.claimed), dict(snapshot.claim_users), cluster.free("a"), cluster.free_later("a")


def changes(chance: Random, pods: dict[str, dict[str, Any]], claims: dict[str, Raw]) -> Iterator[tuple[str, str]]:
    """Change what exists, and yield what has changed."""
    for number in range(60):
        name, key = f"p{chance.randrange(6)}", chance.choice("cd")
        match chance.randrange(5):
            case 0:
                claims[key] = shared(name=key, on=chance.choice(["", "a"]))
                yield "claim", key
            case 1 if key in claims and number % 3 == 0:
                del claims[key]
                yield "claim", key
            case 2 if name in pods:
                del pods[name]
                yield "pod", name
            case 3 if name in pods and pods[name]["on"]:
                pods[name] = {**pods[name], "deleting": True}
                yield "pod", name
            case _ if name not in pods:
                named = chance.choice([("c",), ("d",), ("c", "d")])
                firm = {"explicit_preemptible": False} if chance.random() < 0.3 else {}
                on = chance.choice([None, "a"])
                pods[name] = {"claims": named, "on": on, "queue": chance.choice("qr"), **firm}
                yield "pod", name


def show(cluster: Sharing, kind: str, name: str, pods: dict[str, dict[str, Any]], claims: dict[str, Raw]) -> None:
    if kind == "claim":
        cluster.show_claim(claims[name]) if name in claims else cluster.end_claim(shared(name=name))
    elif name in pods:
        stated = dict(pods[name])
        cluster.show_pod(name, *stated.pop("claims"), **stated)
    else:
        cluster.end(name)


def paid_by_hand(pods: dict[str, dict[str, Any]], claims: dict[str, Raw]) -> dict[str, int]:
    """Return what each queue holds, counted pod by pod."""
    used = {(each["queue"], key) for each in pods.values() if each["on"] for key in each["claims"] if key in claims}
    return {queue: 2 * sum(payer == queue for payer, _ in used) for queue in ("q", "r")}


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_events_leads_to_the_same_books_as_a_restart(seed: int) -> None:
    chance, cluster = Random(seed), Sharing()
    pods, claims = dict[str, dict[str, Any]](), dict[str, Raw]()
    for kind, name in changes(chance, pods, claims):
        show(cluster, kind, name, pods, claims)
        assert {queue: cluster.usage(queue)[0] for queue in ("q", "r")} == paid_by_hand(pods, claims)

    there = [*(("claim", key) for key in claims), *(("pod", name) for name in pods)]
    chance.shuffle(there)
    restarted = Sharing()
    for kind, name in there:
        show(restarted, kind, name, pods, claims)

    assert books(restarted) == books(cluster)


def test_users_of_a_claim_are_counted_by_queue(cluster: Sharing) -> None:
    for name, node in (("one", "a"), ("two", "a"), ("three", None)):
        cluster.show_pod(name, "c", on=node)

    assert cluster.cache.snapshot().claim_users == {
        (QueueName("q"), given.claim_key("c")): ClaimUsers(placed=2, firm=0, known=3)
    }


# Cost -----------------------------------------------------------------------------------------------------------------


def shared_by(users: int) -> Sharing:
    """Return a cluster in which so many pods of two queues use a claim; half of them run."""
    made = Sharing()
    made.show_claim(shared(on="a"))
    for number in range(users):
        made.show_pod(f"u{number}", "c", on="a" if number % 2 else None, queue="qr"[number % 3 % 2])
    made.cache.snapshot()
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    "event",
    [
        lambda cluster: cluster.show_pod("new", "c"),
        lambda cluster: cluster.show_pod("u1", "c", on="a", deleting=True),
        lambda cluster: cluster.promise("u0"),
        lambda cluster: cluster.end("u1"),
        lambda cluster: cluster.show_class(device_class("other.example.com", "device.driver == 'other'")),
    ],
    ids=["comes", "is deleted", "is promised a node", "is gone", "another class"],
)
def test_an_event_costs_the_same_with_many_users_of_a_claim(event: Callable[[Sharing], object]) -> None:
    few, many = (steps(partial(event, shared_by(users))) for users in (60, 240))

    assert many <= 1.2 * few, (few, many)


@pytest.mark.slow
def test_nothing_is_left_of_claims_and_their_users() -> None:
    def come_and_go(cluster: Sharing, numbers: range) -> None:
        for number in numbers:
            cluster.show_claim(shared(name=f"c{number}"))
            cluster.show_pod(f"u{number}", f"c{number}", on="a")
        cluster.cache.snapshot()
        for number in numbers:
            cluster.end(f"u{number}")
            cluster.end_claim(shared(name=f"c{number}"))
        cluster.cache.snapshot()
        cluster.cache.drain_changes()
        cluster.cache.groups.touched.tell({})

    cluster = Sharing()
    come_and_go(cluster, range(30))
    before = entries(cluster.cache)

    come_and_go(cluster, range(30, 90))

    assert entries(cluster.cache) == before
