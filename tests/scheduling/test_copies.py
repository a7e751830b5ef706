"""A what-if and its copy share nothing that changes, whatever fields they have."""

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from random import Random

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from app.model.decision import Action
from app.model.pod import Near, Pod
from app.model.podgroup import PodGroup
from app.scheduling import copies
from app.scheduling.copies import Copied, Owned, Rule, Value
from app.scheduling.explain import refusals
from app.scheduling.placement.rivals import Rivals
from app.scheduling.placement.state import Timing
from app.scheduling.policy import DEFAULT_POLICY
from app.scheduling.preemption.whatif import WhatIf
from tests.given import claim as claim_of
from tests.scheduling.worlds import World, world, worlds

NOT_SEEN = {Rule.COMMON, Rule.CLAIMS}
"""Objects that all copies share, and which class may change what in place."""


CLASS = "of-claims"


def fingerprint(state: WhatIf) -> object:
    """Return a value that differs for two different what-ifs, made of all their fields and of everything in these."""
    state.board.stock.devices.free_parts()  # The columns are updated when they are read.
    return _seen(state)


def _seen(value: object) -> object:
    if isinstance(value, Copied):
        return [(field, _seen(getattr(value, field))) for field, rule in value.rules.items() if rule not in NOT_SEEN]
    if isinstance(value, np.ndarray):
        return value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return [(key, _seen(each)) for key, each in value.items()]
    if isinstance(value, list | tuple):
        return [_seen(each) for each in value]
    if value is None or isinstance(value, int | float | str | frozenset | set | Enum):
        return sorted(value) if isinstance(value, set) else value
    parameters = getattr(value, "__dataclass_params__", None)
    assert getattr(parameters, "frozen", False), f"{type(value)} may change"
    return id(value)


def odd(pod: Pod, dice: Random) -> Pod:
    """Return the pod with something of its own: labels, anti-affinity, or a resource claim."""
    near = Near(labels=(("app", "a"),), topology_key="zone", apart=dice.random() < 0.5)
    claim = claim_of(f"c{dice.randrange(3)}", CLASS, 1)
    labels = {"app": dice.choice("ab")}
    return replace(pod, labels=labels, near=(near,), claims=(claim,) if dice.random() < 0.5 else ())


def work(state: WhatIf, dice: Random, steps: int) -> None:
    """Do what plans do: start, evict, move, keep, close nodes, charge, and read."""
    snapshot = state.snapshot
    waiting, running = list(snapshot.groups.values()), list(snapshot.running.values())
    for _ in range(steps):
        if waiting:
            start(state, dice.choice(waiting), dice)
        if running:
            evict(state, state.as_it_is(dice.choice(running)), dice)
        if dice.random() < 0.2:
            state.board.withhold([dice.choice(snapshot.nodes.nodes).name] if dice.random() < 0.5 else [])


def start(state: WhatIf, group: PodGroup, dice: Random) -> None:
    """Start a group, and pods with anti-affinity or claims, and ask why others do not start."""
    chunk, request = state.next_of(group)
    if not chunk:
        return
    state.start(group, chunk, timing=dice.choice(list(Timing)))
    state.seat(state.board.keep(chunk))
    state.ledger.charge(group, request, odd(chunk[0], dice).claims)
    refusals.no_room(group, chunk, state.board, Rivals(state.snapshot, DEFAULT_POLICY.strategy))
    pod = odd(chunk[0], dice)
    seat = state.board.find(pod)
    if seat is not None:
        state.board.take([seat])
    if dice.random() < 0.5:
        state.board.allowed(pod)
    state.board.stock.devices.free_parts()


def evict(state: WhatIf, group: PodGroup, dice: Random) -> None:
    """Evict some pods of a running group, and sometimes move them."""
    gone = group.placed[: dice.randint(0, len(group.placed))]
    if not gone:
        return
    state.evict(group, gone, Action.PREEMPT, None)
    state.growing[group.key] = None
    if dice.random() < 0.5:
        state.resettle(state.as_it_is(group), [one.pod for one in gone])


def is_kept_apart(world: World, dice: Random) -> bool:
    """Return whether changes of a copy leave its origin unchanged, and the other way round."""
    snapshot = world.snapshot()
    claimable = {f"dra:{CLASS}": np.full(len(snapshot.nodes.nodes), 4)}
    origin = WhatIf(replace(snapshot, scalars=claimable), DEFAULT_POLICY.strategy)
    work(origin, dice, 3)
    pair = origin, origin.copy()
    for at_work, idle in (pair, pair[::-1], pair):
        before = fingerprint(idle)
        work(at_work, dice, 2)
        if fingerprint(idle) != before:
            return False
    return True


@settings(max_examples=40)
@for_all(worlds, st.randoms(use_true_random=False))
def test_changes_of_a_what_if_and_of_its_copy_do_not_affect_each_other(world: World, dice: Random) -> None:
    assert is_kept_apart(world, dice)


def look_for_what_is_shared() -> None:
    """Try the same with enough clusters to see each field change."""
    for seed in range(60):
        assert is_kept_apart(world(Random(seed)), Random(seed))


def parts(value: object) -> set[type[Copied]]:
    """Return the classes that make up a what-if."""
    found = set[type[Copied]]()
    if isinstance(value, Copied):
        found = {type(value)}.union(*(parts(getattr(value, field)) for field in value.rules))
    elif isinstance(value, Mapping):
        found = found.union(*(parts(each) for each in value.values()))
    return found


def _own_fields() -> list[tuple[type[Copied], str]]:
    state = WhatIf(world(Random(1)).snapshot(), DEFAULT_POLICY.strategy)
    state.board.stock.devices.free_parts()
    ordered = sorted(parts(state), key=lambda each: each.__name__)
    return [
        (each, field) for each in ordered for field, rule in each.rules.items() if rule in {Rule.OWNED, Rule.CLAIMS}
    ]


NEVER_WRITTEN = {"requested"}
"""Fields that only `Tree` writes, which copies accounts too."""


@pytest.mark.parametrize(("part", "field"), [each for each in _own_fields() if each[1] not in NEVER_WRITTEN])
def test_a_field_that_a_copy_misses_is_detected(
    part: type[Copied], field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, "copy", copies._copy({**part.rules, field: Rule.VALUE}))

    with pytest.raises((AssertionError, KeyError)):
        look_for_what_is_shared()


def test_an_undeclared_field_cannot_be_set() -> None:
    class Sums(Copied):
        held: Owned[list[int]]

        def __init__(self) -> None:
            self.held = [0]
            self.forgotten = [0]

    with pytest.raises(AttributeError, match="forgotten"):
        Sums()


def test_a_class_declares_for_each_field_how_it_is_copied() -> None:
    with pytest.raises(TypeError, match=r"Sums\.held has no copy rule"):

        class Sums(Copied):
            held: list[int]


def test_no_class_copies_itself_by_hand() -> None:
    with pytest.raises(TypeError, match="Sums writes copy by hand"):

        class Sums(Copied):
            held: Value[int]

            def copy(self) -> "Sums":
                return self


def test_an_adopted_copy_cannot_be_used_any_more() -> None:
    state = WhatIf(world(Random(1)).snapshot(), DEFAULT_POLICY.strategy)
    spent = state.copy()

    state.adopt(spent)

    with pytest.raises(AttributeError):
        _ = spent.board
