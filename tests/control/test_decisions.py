from collections.abc import Sequence

from app.control.journal.decisions import KEPT, MOST_PODS, Decisions
from app.model.explanation import DecidedPod, Decision, Outcome
from app.model.names import GroupKey, NodeName, PodUid

GANG = GroupKey("q", "gang")


def decided(outcome: Outcome, *pods: str, group: GroupKey = GANG, generation: int = 1, cause: str = "") -> Decision:
    seats = tuple(DecidedPod(PodUid(f"uid-{name}"), name, NodeName("a")) for name in pods)
    sentence = f"{outcome.value} {' '.join(pods)}."
    return Decision(outcome=outcome, group=group, generation=generation, pods=seats, sentence=sentence, cause=cause)


def remembering(*decisions: Decision) -> Decisions:
    """Record these, one second apart."""
    now = iter(range(1, len(decisions) + 1))
    remembered = Decisions(wall_clock=lambda: next(now))
    for decision in decisions:
        remembered.record(decision)
    return remembered


def told(decisions: Sequence[Decision]) -> list[tuple[float, str]]:
    return [(one.at, one.sentence) for one in decisions]


def test_the_newest_decisions_are_first_whatever_their_outcome() -> None:
    remembered = remembering(
        decided(Outcome.STARTED, "p"), decided(Outcome.REFUSED), decided(Outcome.EVICTED, "p"), decided(Outcome.FAILED)
    )

    assert told(remembered.of_group(GANG, 3)) == [(4, "Failed ."), (3, "Evicted p."), (2, "Refused .")]


def test_the_decisions_of_a_pod_are_those_that_name_it_and_the_refusals_of_its_podgroup() -> None:
    remembered = remembering(
        decided(Outcome.STARTED, "p", "r"),
        decided(Outcome.STARTED, "r"),
        decided(Outcome.REFUSED),
        decided(Outcome.REFUSED, group=GroupKey("q", "other")),
    )

    assert told(remembered.of_pod(GANG, "p", 10)) == [(3, "Refused ."), (1, "Started p r.")]


def test_no_decision_is_shown_in_another_namespace() -> None:
    remembered = remembering(decided(Outcome.EVICTED, "p"))

    assert remembered.last_of_pod("team", "p") is None
    assert not remembered.of_pod(GroupKey("team", "gang"), "p", 10)


def test_evictions_of_a_podgroup_for_one_cause_are_one_decision() -> None:
    remembered = remembering(
        decided(Outcome.EVICTED, "p", cause="preempt"),
        decided(Outcome.EVICTED, "r", cause="preempt"),
        decided(Outcome.EVICTED, "s", cause="reclaim"),
        decided(Outcome.EVICTED, "t", cause="reclaim", generation=2),
    )

    assert told(remembered.of_group(GANG, 10)) == [
        (4, "Evicted t."),
        (3, "Evicted s."),
        (2, "Evicted r, and 1 more of its PodGroup with it."),
    ]


def test_the_time_of_an_eviction_is_known_by_the_uid_of_the_pod() -> None:
    remembered = remembering(
        decided(Outcome.EVICTED, "p"), decided(Outcome.STARTED, "r"), decided(Outcome.EVICTED, "s")
    )

    assert remembered.evicted_at() == {"uid-p": 1, "uid-s": 3}


def test_refusals_displace_only_refusals() -> None:
    refusals = [decided(Outcome.REFUSED, f"r{number}") for number in range(KEPT + 1)]
    remembered = remembering(decided(Outcome.EVICTED, "p"), *refusals)

    assert [remembered.last_of_pod("q", name) is None for name in ("p", "r0", "r1")] == [False, True, False]


def test_the_oldest_decisions_beyond_the_capacity_are_forgotten() -> None:
    remembered = remembering(*(decided(Outcome.STARTED, f"p{number}") for number in range(KEPT + 1)))

    assert [remembered.last_of_pod("q", name) is None for name in ("p0", "p1")] == [True, False]


def test_decisions_of_large_gangs_are_forgotten_earlier_but_never_the_newest() -> None:
    large = [f"p{number}" for number in range(MOST_PODS + 1)]
    remembered = remembering(decided(Outcome.STARTED, "old"), decided(Outcome.STARTED, *large))

    assert [remembered.last_of_pod("q", name) is None for name in ("old", "p0")] == [True, False]
