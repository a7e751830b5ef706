"""The warnings and refusals for queues, PodGroups and topologies before they are stored."""

import pytest

from app.cluster import decode
from app.model.admission import AdmissionQuestion, Admitted, Operation
from app.model.names import NodeName, PodUid, QueueName
from tests.cluster.raw import Raw
from tests.control.desk import Desk, changed, group, queue

TOGETHER = "the sub-groups start with 5 pods together, the sum of their minMember"


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
def test_a_queue_without_resources_is_refused_with_the_message_of_kai(operation: str) -> None:
    message = Desk().denial("Queue", queue("q", resources=None), operation=operation, old=None)

    assert message.startswith("resources must be specified: write spec.resources with gpu, cpu and memory")


def test_an_invalid_number_in_a_queue_is_refused_with_what_to_write_instead() -> None:
    message = Desk().denial("Queue", queue("q", resources={"gpu": {"quota": -2}}))

    assert message.startswith("spec.resources.gpu.quota cannot be read: -2 is out of range; write a number from 0 to")


def test_a_cycle_of_parent_queues_is_refused_with_their_names() -> None:
    desk = Desk()
    for name, parent in (("a", "b"), ("b", "c")):
        desk.cache.apply_queue(decode.queue(queue(name, parentQueue=parent)))

    message = desk.denial("Queue", queue("c", parentQueue="a"))

    assert message == "its parents form a circle (c -> a -> b -> c); change spec.parentQueue of one of them"
    assert desk.denial("Queue", queue("q", parentQueue="q"), **changed(queue("q"))).startswith("its parents form a cir")


def test_a_queue_that_is_only_below_a_cycle_is_admitted() -> None:
    desk = Desk()
    for name, parent in (("a", "b"), ("b", "a")):
        desk.cache.apply_queue(decode.queue(queue(name, parentQueue=parent)))

    (told,) = desk.warnings("Queue", queue("c", parentQueue="a"))

    assert told == "its parent queue 'a' is not valid: the queue takes no pods until it is"


@pytest.mark.parametrize(
    ("spec", "warning"),
    [
        ({"parentQueue": "p"}, "its parent queue 'p' does not exist: the queue takes no pods until it does"),
        (
            {"resources": {"gpu": {"quota": 4, "limit": 2}}},
            "spec.resources.gpu.limit is below spec.resources.gpu.quota: the queue never gets more than its limit",
        ),
    ],
)
def test_a_queue_with_settings_that_are_probably_wrong_gives_a_warning(spec: Raw, warning: str) -> None:
    assert Desk().warnings("Queue", queue("r", **spec)) == [warning]


@pytest.mark.parametrize("gpu", [{}, {"quota": -1, "limit": 4}, {"quota": 4, "limit": 4}, {"quota": 4, "limit": -1}])
def test_a_plain_queue_is_admitted_without_a_warning(gpu: Raw) -> None:
    assert Desk().validate("Queue", queue("r", parentQueue="q", resources={"gpu": gpu})) == Admitted()


def test_deleting_a_queue_gives_a_warning_about_its_children_and_pods() -> None:
    desk = Desk()
    for name in "fedcba":
        desk.cache.apply_queue(decode.queue(queue(name, parentQueue="q")))
    desk.add_pod("running", node="n1")
    desk.add_pod("waiting")

    assert desk.warnings("Queue", queue("q"), operation="DELETE") == [
        "its child queues take no pods until a queue of this name exists again: a, b, c, d, e and 1 more",
        "1 of its pods keeps running and is the first to be reclaimed",
        "1 of its pods waits until a queue of this name exists again",
    ]
    assert desk.validate("Queue", queue("a"), operation="DELETE") == Admitted()


def test_deleting_a_queue_without_pending_pods_gives_no_warning_about_pending_pods() -> None:
    desk = Desk()
    desk.add_pod("running", node="n1")
    desk.add_pod("running too", node="n1")

    assert desk.warnings("Queue", queue("q"), operation="DELETE") == [
        "2 of its pods keep running and are the first to be reclaimed"
    ]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"minMember": -1}, "spec.minMember cannot be read: -1 is out of range; write a number from 0 to 100000"),
        ({"minMember": 1.5}, "spec.minMember cannot be read: 1.5 is not an integer; write a number from 0 to 100000"),
        ({"preemptibility": "no"}, "spec.preemptibility is 'no'; write preemptible or non-preemptible"),
        (
            {"subGroups": [{"name": "a", "parent": "b"}, {"name": "b", "parent": "a"}]},
            "sub-group 'a' is more than 16 deep, or its parents form a circle; change the parent of one of them",
        ),
    ],
)
def test_an_unusable_podgroup_is_refused(spec: Raw, message: str) -> None:
    assert Desk().denial("PodGroup", group(**spec)) == message


@pytest.mark.parametrize(
    ("spec", "warning"),
    [
        ({"queue": "r"}, "queue 'r' does not exist: the pods wait until it does"),
        (
            {"minMember": 9, "subGroups": [{"name": "a", "minMember": 2}, {"name": "b", "minMember": 3}]},
            f"spec.minMember is 9 and has no effect: {TOGETHER}",
        ),
    ],
)
def test_a_podgroup_with_settings_that_are_probably_wrong_gives_a_warning(spec: Raw, warning: str) -> None:
    assert Desk().warnings("PodGroup", group(**spec)) == [warning]


def test_changing_a_gang_that_is_being_started_gives_a_warning_about_the_effect() -> None:
    desk, old = Desk(), group(minMember=2)
    desk.cache.apply_group(decode.pod_group(old))
    desk.add_pod("member", group="g")
    desk.cache.promises.make(PodUid("member"), NodeName("n1"), expires_at=9.0)

    told = desk.warnings("PodGroup", group(minMember=1), **changed(old))

    assert told == ["1 of its pods is being started: the change counts at once for those that are not bound yet"]
    assert desk.validate("PodGroup", group(minMember=2, markUnschedulable=True), **changed(old)) == Admitted()


def test_the_change_of_a_gang_that_is_being_started_takes_effect_at_once() -> None:
    desk = Desk()
    desk.cache.apply_group(decode.pod_group(group(minMember=2)))
    desk.add_pod("member", group="g")
    desk.cache.promises.make(PodUid("member"), NodeName("n1"), expires_at=9.0)
    key = decode.pod_group(group()).key

    desk.cache.apply_group(decode.pod_group(group(minMember=1, queue="r")))

    assert desk.cache.groups.progress.owes(key) == 1
    assert desk.cache.charges.usage().keys() == {QueueName("r")}


@pytest.mark.parametrize("more", [{}, changed(group())], ids=["made anew", "changed"])
def test_making_a_started_preemptible_gang_non_preemptible_gives_a_warning_that_it_stays_preemptible(more: Raw) -> None:
    desk = Desk()
    desk.add_pod("old", node="n1", group="g", **{"leeboard.dev/preemptible": "true"})
    desk.add_pod("new", node="n1", group="g")

    (told,) = desk.warnings("PodGroup", group(preemptibility="non-preemptible"), **more)

    assert told == (
        "1 of its pods has started as preemptible: the group stays preemptible as long as any of them exists; delete"
        " them to start the group again on other terms"
    )
    assert desk.warnings("PodGroup", group(preemptibility="preemptible"), **more) == []


def test_an_unusable_topology_is_refused() -> None:
    levels = [{"nodeLabel": "rack"}, {"nodeLabel": "rack"}]

    message = Desk().denial("Topology", {"metadata": {"name": "t"}, "spec": {"levels": levels}})

    assert message == "spec.levels lists a nodeLabel twice; list every level once"


@pytest.mark.parametrize("kind", [("apps", "Pod"), ("", "Queue"), ("", "Secret")])
def test_other_kinds_are_admitted(kind: tuple[str, str]) -> None:
    asked = AdmissionQuestion(group=kind[0], kind=kind[1], namespace="", name="", operation=Operation.CREATE, object={})

    assert Desk().admission.validate(asked) == Admitted()
