"""Reservations: what is held for which pod, until when, and the state of its binding."""

from dataclasses import replace

from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from app.cluster.ledger.reservations import Reservation, Reservations, ReservationState
from app.model.names import GroupKey, NodeName, PodUid

GANG, OTHER = GroupKey("default", "gang"), GroupKey("default", "other")


def promise(pod: str, *, until: float = 60.0, group: GroupKey = GANG, node: str = "n") -> Reservation:
    return Reservation(
        pod=PodUid(pod), group=group, node=NodeName(node), state=ReservationState.PROMISED, expires_at=until
    )


def holding(*promises: Reservation) -> Reservations:
    found = Reservations()
    for each in promises:
        found.put(each)
    return found


X, Y = promise("x", until=1.0), promise("y", until=2.0)


def test_a_reservation_is_found_by_pod_and_by_podgroup() -> None:
    found = holding(X, Y)

    assert (found.get(X.pod), found.get(PodUid("z"))) == (X, None)
    assert sorted(found.of_group(GANG), key=repr) == list(found) == [X, Y]
    assert (len(found), found.of_group(OTHER)) == (2, [])


def test_a_second_reservation_of_a_pod_replaces_the_first_even_in_another_podgroup() -> None:
    moved = replace(X, group=OTHER, node=NodeName("m"))

    found = holding(X, Y, moved)

    assert list(found) == [Y, moved]
    assert (found.of_group(GANG), found.of_group(OTHER)) == ([Y], [moved])


def test_a_dropped_reservation_is_gone_and_reported_once() -> None:
    found = holding(X, Y)

    assert (found.drop(X.pod), found.drop(X.pod)) == (X, None)
    assert (list(found), found.of_group(GANG)) == ([Y], [Y])


def test_a_reservation_expires_at_its_time() -> None:
    found = holding(X, Y)

    assert [found.expired(now) for now in (0.9, 1.0, 2.0)] == [[], [X], [X, Y]]


def test_a_reservation_that_waits_for_room_does_so_until_its_time() -> None:
    found = holding(replace(X, state=ReservationState.AWAITING), Y)

    found.extend(X.pod, 3.0)

    assert found.expired(2.5) == [Y]
    assert found.expired(3.0) == [Y, replace(X, state=ReservationState.AWAITING, expires_at=3.0)]


def test_an_extended_reservation_stays_and_extends_no_other() -> None:
    found = holding(X, Y)

    found.extend(X.pod, 3.0)

    assert found.expired(2.5) == [Y]
    assert found.expired(3.0) == [Y, replace(X, expires_at=3.0)]


def test_a_binding_never_expires_and_extends_no_other_reservation() -> None:
    found = holding(X)

    found.binding(X.pod)
    found.put(Y)

    assert found.get(X.pod) == replace(X, state=ReservationState.BINDING)
    assert found.expired(9.0) == [Y]


steps = st.lists(
    st.tuples(
        st.sampled_from(["put", "drop", "binding", "extend"]), st.sampled_from("xyz"), st.sampled_from([GANG, OTHER])
    )
)


@settings(deadline=None)
@for_all(steps)
def test_reservations_equal_those_of_a_plain_list(steps: list[tuple[str, str, GroupKey]]) -> None:
    found, known = Reservations(), list[Reservation]()
    for now, (action, name, group) in enumerate(steps):
        pod, held = PodUid(name), next((each for each in known if each.pod == name), None)
        known = [each for each in known if each is not held]
        fresh = promise(name, until=now + 3.0, group=group)
        match action:
            case "put":
                found.put(fresh)
                known.append(fresh)
            case "drop":
                assert found.drop(pod) == held
            case "binding" if held:
                found.binding(pod)
                known.append(replace(held, state=ReservationState.BINDING))
            case "extend" if held and held.state is ReservationState.PROMISED:
                found.extend(pod, now + 3.0)
                known.append(replace(held, expires_at=now + 3.0))
            case _:
                known += [held] if held else []

        promised = [each for each in known if each.state is ReservationState.PROMISED]
        assert sorted(found, key=repr) == sorted(known, key=repr)
        assert found.expired(now) == [each for each in promised if each.expires_at <= now]
        for key in (GANG, OTHER):
            assert {*found.of_group(key)} == {each for each in known if each.group == key}
