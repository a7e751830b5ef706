"""The pods on the GPUs of a node, from the agent's report and the cache."""

from dataclasses import replace

from app.cluster.ledger.reservations import Reservation, ReservationState
from app.control.gpus.occupancy import by_health, measured, occupancy, shared_memory
from app.model.device import Device, DeviceUuid, Health, Holder
from app.model.names import NodeName, PodUid
from app.model.occupancy import DeviceUse, NodeUse, Occupant, Reserved, SharedMemory, SharedUse
from app.model.pod import PPM, Pod
from tests import given
from tests.control.books import GROUP, WHOLE_MIB, A, Books, books, reservation, sharer
from tests.occupied import device


def seen(books: Books) -> NodeUse:
    use = occupancy(books, A, now=112.0)
    assert use is not None
    return use


def held_by(pod: Pod, *, uid: str | None = None, memory_mib: int | None = None) -> Holder:
    return Holder(pod.namespace, pod.name, pod.uid if uid is None else uid, memory_mib)


def on_shared(*holders: Holder, **more: object) -> Device:
    return device(0, memory_mib=WHOLE_MIB, holders=holders, **more)


def test_nothing_is_known_about_a_node_without_an_agent() -> None:
    assert occupancy(books(), NodeName("b"), now=0.0) is None


def test_a_pod_with_a_whole_device_has_all_of_it_reserved() -> None:
    pod = given.pod("llm", node=A)
    whole = on_shared(held_by(pod), processes=((pod.uid, 70_000),))

    (use,) = seen(books(whole, pods=(pod,))).devices

    expected = Occupant(
        namespace="default", name="llm", uid=pod.uid, portion_ppm=PPM, promised_mib=WHOLE_MIB, used_mib=70_000
    )
    assert use == DeviceUse(device=whole, whole=(expected,))


def test_pods_that_share_a_device_are_shown_instead_of_its_reservation_pod() -> None:
    half, some, reserve = sharer("half", portion_ppm=PPM // 2), sharer("some", memory_mib=8_000), reservation()
    told = on_shared(held_by(reserve, uid=""), processes=((half.uid, 39_000), (some.uid, 9_000)))

    node = seen(books(told, pods=(half, some, reserve), uuid=told.uuid))

    (use,) = node.devices
    assert node.opening == ()
    occupants = tuple(
        Occupant(
            namespace="default", name=name, uid=PodUid(f"uid-{name}"), portion_ppm=ppm, promised_mib=mib, used_mib=used
        )
        for name, ppm, mib, used in (("half", PPM // 2, 40_000, 39_000), ("some", PPM // 10, 8_000, 9_000))
    )
    assert use == DeviceUse(
        device=told,
        shared=(SharedUse(name=GROUP, state="ready", promised_mib=48_000, occupants=occupants),),
    )
    assert use.promised_mib == 48_000


def test_a_terminating_reservation_pod_does_not_hold_its_device_alone() -> None:
    leaving = replace(reservation(), deleting=True)

    (use,) = seen(books(on_shared(held_by(leaving)), pods=(leaving,))).devices

    assert (use.whole, use.is_free) == ((), False)


def test_a_device_that_is_not_known_yet_is_opening() -> None:
    pod = sharer("late", memory_mib=8_000)

    use = seen(books(device(0), pods=(pod,), is_bound=False))

    assert [(each.name, each.state, [one.name for one in each.occupants]) for each in use.opening] == [
        (GROUP, "opening", ["late"])
    ]
    assert use.devices[0].shared == ()


def test_only_schedulable_devices_are_free() -> None:
    taken, sick, cut = (
        device(1, holders=(Holder("d", "p"),)),
        device(2, health=Health.UNHEALTHY),
        device(3, is_mig=True),
    )

    use = seen(books(device(0), taken, sick, cut))

    assert [each.is_free for each in use.devices] == [True, False, False, False]


def test_a_node_with_a_silent_agent_says_so_and_has_no_free_device() -> None:
    old = books(device(0))
    old.gpus.agents.age(since=101.0)
    old.gpus.refresh(A)

    use = seen(old)

    assert (use.silent_s, use.is_trusted, use.devices[0].is_free) == (12.0, False, False)


def test_metrics_report_only_shared_devices() -> None:
    half, reserve = sharer("half", portion_ppm=PPM // 2), reservation()
    told = on_shared(held_by(reserve), used_mib=700)

    known = books(told, device(1, health=Health.UNHEALTHY), pods=(half, reserve), uuid=told.uuid)

    memory = SharedMemory(node=A, device=told.uuid, total_mib=WHOLE_MIB, promised_mib=40_000, used_mib=700)
    assert list(shared_memory(known.gpus, known.gpus.agents.all())) == [memory]
    assert by_health(known.gpus.agents.all()) == {Health.HEALTHY: 1, Health.UNHEALTHY: 1}


# Usage of pods

P, Q = PodUid("p"), PodUid("q")


def test_processes_show_the_usage_of_each_pod() -> None:
    assert measured(device(0, used_mib=900, processes=((P, 300), (Q, 200), (P, 100))), [P]) == {P: 400, Q: 200}


def test_the_kubelet_list_supplies_what_processes_do_not_show() -> None:
    holders = (Holder("d", "p", P, 1), Holder("d", "q", Q, 200), Holder("d", "r", "r"))

    assert measured(device(0, used_mib=900, processes=((P, 300),), holders=holders), []) == {P: 300, Q: 200}


def test_without_processes_the_only_pod_on_a_shared_gpu_uses_all_but_foreign_memory() -> None:
    assert measured(device(0, used_mib=900, foreign_mib=100), [P]) == {P: 800}


def test_a_process_with_unknown_memory_is_counted_to_the_only_pod_there() -> None:
    assert measured(device(0, used_mib=900, processes=((P, None),)), [P]) == {P: 900}
    assert measured(device(0, used_mib=900, processes=((Q, None),)), [P]) == {}
    assert measured(device(0, used_mib=900, processes=((P, None), (Q, 300))), [P]) == {Q: 300}


def test_without_processes_the_usage_of_several_pods_on_one_gpu_is_unknown() -> None:
    assert measured(device(0, used_mib=900), [P, Q]) == {}


def test_without_measurements_the_usage_is_unknown() -> None:
    assert measured(device(0, used_mib=None), [P]) == {}


def test_processes_show_the_usage_of_a_pod_with_whole_gpus_though_the_kubelet_tells_only_its_name() -> None:
    alone = given.pod("alone", node=A)
    held = Device(
        uuid=DeviceUuid("GPU-1"),
        memory_mib=WHOLE_MIB,
        holders=(Holder("default", "alone"),),
        processes=((alone.uid, 700),),
    )

    use = occupancy(books(held, pods=(alone,)), A, now=100.0)

    assert use is not None
    assert [(one.name, one.uid, one.used_mib) for one in use.devices[0].whole] == [("alone", alone.uid, 700)]


def test_reserved_whole_gpus_are_reported_by_state() -> None:
    pods = [given.pod(f"p{number}", gpus=gpus) for number, gpus in enumerate((2, 1, 4, 0))]
    found = books(device(0), pods=tuple(pods))
    for pod, state in zip(
        pods,
        [ReservationState.PROMISED, ReservationState.PROMISED, ReservationState.AWAITING, ReservationState.PROMISED],
        strict=True,
    ):
        found.reservations.put(Reservation(pod=pod.uid, group=pod.group, node=A, state=state, expires_at=1.0))

    assert seen(found).reserved == (
        Reserved(state="Awaiting", devices=4, pods=1),
        Reserved(state="Promised", devices=3, pods=2),
    )


class NoPods:
    """Knows no pod, and counts the look-ups."""

    looked_up = 0

    def get(self, _: PodUid, /) -> None:
        self.looked_up += 1


def test_pods_and_processes_are_not_compared_pairwise() -> None:
    holders = tuple(Holder("q", f"p-{number}", "") for number in range(100))
    processes = tuple((PodUid(f"uid-{number}"), 1) for number in range(100))
    pods = NoPods()
    there = replace(books(on_shared(*holders, processes=processes)), pods=pods)

    assert len(seen(there).devices[0].whole) == 100
    assert pods.looked_up <= 300
