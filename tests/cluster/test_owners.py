from app.cluster.groups.lineage import Lineage, pods_of
from app.cluster.groups.owners import LONGEST_WALK, Owners, Walk
from app.model.names import PodUid
from app.model.owner import Kind, Owner, OwnerRef

JOB, SET, POD = Kind("batch", "v1", "Job"), Kind("jobset.x-k8s.io", "v1alpha2", "JobSet"), Kind("", "v1", "Pod")
TOP = Owner(ref=OwnerRef(SET, "set", "s"), namespace="ns")
MIDDLE = Owner(ref=OwnerRef(JOB, "job", "j"), namespace="ns", owner=TOP.ref)
A, B = PodUid("a"), PodUid("b")


def owners(*known: Owner) -> Owners:
    found = Owners(lambda _: None)
    for one in known:
        found.put(one)
    return found


# Walking


def test_a_walk_of_owners_goes_up_to_the_last_owner() -> None:
    assert owners(TOP, MIDDLE).walk(MIDDLE.ref, "ns") == Walk((MIDDLE, TOP))


def test_a_walk_of_owners_stops_at_an_owner_that_is_not_known_yet() -> None:
    assert owners(MIDDLE).walk(MIDDLE.ref, "ns") == Walk((MIDDLE,), TOP.ref)


def test_a_walk_of_owners_ends_below_a_forbidden_owner_until_its_kind_can_be_read() -> None:
    known = owners(MIDDLE)
    known.end_at(TOP.ref)
    ended = known.walk(MIDDLE.ref, "ns")

    known.reopen(SET)

    assert (ended, known.walk(MIDDLE.ref, "ns")) == (Walk((MIDDLE,), ended=TOP.ref), Walk((MIDDLE,), TOP.ref))


def test_an_owner_that_is_shown_later_is_found() -> None:
    known = owners(MIDDLE)
    known.end_at(TOP.ref)
    known.put(TOP)

    assert known.walk(MIDDLE.ref, "ns") == Walk((MIDDLE, TOP))


def test_an_object_of_another_namespace_or_of_none_owns_no_pods() -> None:
    known = owners(TOP)

    assert known.walk(TOP.ref, "elsewhere") == Walk()


def test_a_cycle_of_owners_ends() -> None:
    one = Owner(ref=OwnerRef(JOB, "one", "1"), namespace="ns", owner=OwnerRef(JOB, "two", "2"))
    two = Owner(ref=OwnerRef(JOB, "two", "2"), namespace="ns", owner=one.ref)

    assert len(owners(one, two).walk(one.ref, "ns").owners) == LONGEST_WALK


def test_an_object_is_found_by_its_name_in_its_namespace_in_any_version() -> None:
    known = owners(TOP)

    assert known.walk(OwnerRef(Kind(SET.group, "v1", SET.name), "set"), "ns") == Walk((TOP,))
    assert known.find(SET, "elsewhere", "set") is None


def test_a_later_object_of_the_same_name_stays_when_the_first_is_deleted() -> None:
    later = Owner(ref=OwnerRef(SET, "set", "later"), namespace="ns")
    known = owners(TOP, later)

    known.drop("s")

    assert known.find(SET, "ns", "set") == later


def test_a_pod_that_owns_others_is_looked_up_among_the_pods() -> None:
    leader = Owner(ref=OwnerRef(POD, "leader", "p"), namespace="ns", owner=TOP.ref)
    known = Owners({"p": leader}.get)
    known.put(TOP)

    assert known.walk(leader.ref, "ns") == Walk((leader, TOP))


# Lineage


def test_a_change_of_an_owner_reaches_all_pods_below() -> None:
    known = owners(TOP, MIDDLE)
    lineage = Lineage(known)
    line = lineage.add(MIDDLE.ref, "ns", A)
    lineage.add(MIDDLE.ref, "ns", B)
    lineage.note(line, known.walk(MIDDLE.ref, "ns"))

    assert set(pods_of(lineage.lines_of(TOP))) == {A, B}
    assert set(lineage.pods_below(MIDDLE)) == {A, B}


def test_pods_that_looked_up_an_object_by_name_are_updated_with_it() -> None:
    known = owners(MIDDLE)
    lineage = Lineage(known)
    line = lineage.add(MIDDLE.ref, "ns", A)
    lineage.note(line, Walk((MIDDLE,)))
    lineage.note_asked(line, OwnerRef(SET, "set"))

    assert pods_of(lineage.lines_of(TOP)) == [A]


def test_pods_that_wait_for_a_kind_are_known() -> None:
    known = owners(MIDDLE)
    lineage = Lineage(known)
    lineage.note(lineage.add(MIDDLE.ref, "ns", A), known.walk(MIDDLE.ref, "ns"))

    assert (pods_of(lineage.waiting_for(SET)), pods_of(lineage.waiting_for(JOB))) == ([A], [])
    assert list(lineage.missing()) == [(TOP.ref, "ns")]


def test_each_pod_that_waits_for_a_kind_waits_for_one_object() -> None:
    other = OwnerRef(SET, "other", "o")
    known = owners()
    lineage = Lineage(known)
    for ref, pod in ((TOP.ref, A), (other, B)):
        lineage.note(lineage.add(ref, "ns", pod), known.walk(ref, "ns"))

    assert sorted(pods_of(lineage.waiting_for(SET))) == [A, B]
    assert (pods_of(lineage.lines_to(TOP.ref, "ns")), pods_of(lineage.lines_to(other, "ns"))) == ([A], [B])
    assert pods_of(lineage.lines_to(other, "elsewhere")) == []


def test_no_pod_waits_for_a_known_owner() -> None:
    known = owners(MIDDLE)
    lineage = Lineage(known)
    line = lineage.add(MIDDLE.ref, "ns", A)
    lineage.note(line, known.walk(MIDDLE.ref, "ns"))
    known.put(TOP)

    lineage.note(line, known.walk(MIDDLE.ref, "ns"))

    assert (lineage.missing(), lineage.waiting_for(SET)) == ([], [])


def test_a_deleted_pod_waits_for_no_owner() -> None:
    known = owners(MIDDLE)
    lineage = Lineage(known)
    lineage.note(lineage.add(MIDDLE.ref, "ns", A), known.walk(MIDDLE.ref, "ns"))

    lineage.remove(MIDDLE.ref, "ns", A)

    assert (lineage.missing(), lineage.waiting_for(SET)) == ([], [])


def test_a_deleted_owner_is_kept_until_its_last_pod_is_deleted() -> None:
    known = owners(MIDDLE)
    lineage = Lineage(known)
    lineage.note(lineage.add(MIDDLE.ref, "ns", A), Walk((MIDDLE,)))
    lineage.retire(MIDDLE)
    kept = known.of(JOB), lineage.is_gone(MIDDLE.ref, "ns")

    lineage.remove(MIDDLE.ref, "ns", A)

    assert (kept, known.of(JOB)) == (([MIDDLE], True), [])
    assert not lineage.is_gone(MIDDLE.ref, "ns")


def test_an_owner_without_pods_is_forgotten_at_once() -> None:
    known = owners(MIDDLE)

    Lineage(known).retire(MIDDLE)

    assert known.of(JOB) == []
