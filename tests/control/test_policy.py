"""The settings of a user reach the planner."""

from dataclasses import replace
from typing import Any

import pytest

from app.cli.options import WrongSettingError, read_settings
from app.control.cycle.policy_settings import policy_of
from app.model.decision import Action
from app.scheduling.policy import Policy
from app.settings import Packing, PlacementStrategy, Preset, ResolveMethod, Settings

DEFAULTS = replace(Policy(), patience_s=300.0)
"""The defaults of the planner, which knows no plan before it, except for this value."""


def test_empty_settings_give_the_defaults_of_the_planner() -> None:
    assert policy_of(Settings()) == DEFAULTS


def test_the_preset_kai_restores_the_defaults_of_kai() -> None:
    policy = policy_of(Settings(preset=Preset.KAI))

    assert policy == replace(
        Policy(),
        packing=Packing.BEST_FIT,
        preempt_min_runtime_s=0.0,
        reclaim_min_runtime_s=0.0,
        consolidate_min_runtime_s=0.0,
        borrow_last=False,
        ageing_s=None,
    )


def test_an_explicit_setting_overrides_the_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEEBOARD_PRESET", "kai")
    monkeypatch.setenv("LEEBOARD_RECLAIM_MIN_RUNTIME_S", "20")

    policy = policy_of(Settings())

    assert (policy.reclaim_min_runtime_s, policy.preempt_min_runtime_s, policy.borrow_last) == (20.0, 0.0, False)


@pytest.mark.parametrize(
    ("settings", "policy"),
    [
        ({"placement": "spread"}, {"placement": PlacementStrategy.SPREAD}),
        ({"packing": "best-fit"}, {"packing": Packing.BEST_FIT}),
        ({"stale_grace_s": 5}, {"stale_grace_s": 5.0}),
        ({"preempt_min_runtime_s": 5}, {"preempt_min_runtime_s": 5.0}),
        ({"reclaim_min_runtime_s": 5}, {"reclaim_min_runtime_s": 5.0}),
        ({"consolidate_min_runtime_s": 5}, {"consolidate_min_runtime_s": 5.0}),
        ({"borrow_last": False}, {"borrow_last": False}),
        ({"patience_s": 5}, {"patience_s": 5.0}),
        ({"patience_s": 0}, {"patience_s": 0.0}),
        ({"ageing_s": 5}, {"ageing_s": 5.0}),
        ({"ageing_s": ""}, {"ageing_s": None}),
        ({"reclaim_resolve_method": "queue"}, {"reclaim_resolve_method": ResolveMethod.QUEUE}),
        ({"actions": "preempt, reclaim"}, {"actions": (Action.ALLOCATE, Action.RECLAIM, Action.PREEMPT)}),
        ({"actions": ""}, {"actions": (Action.ALLOCATE,)}),
    ],
)
def test_a_setting_reaches_the_planner(settings: dict[str, Any], policy: dict[str, Any]) -> None:
    assert policy_of(Settings(**settings)) == replace(DEFAULTS, **policy)


def test_actions_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEEBOARD_ACTIONS", "consolidate,stalegangeviction")

    assert policy_of(Settings()).actions == (Action.ALLOCATE, Action.CONSOLIDATE, Action.EVICT_STALE)


@pytest.mark.parametrize(
    ("setting", "value", "why"),
    [
        ("profiles", " , ", "name at least one scheduler"),
        ("eviction_ttl_s", "inf", "finite"),
        ("promise_ttl_s", "inf", "finite"),
        ("stale_grace_s", "-1", "greater than or equal to 0"),
        ("actions", "reclaim,fly", "'stalegangeviction', not 'fly'"),
    ],
)
def test_a_setting_with_a_senseless_value_is_named(setting: str, value: str, why: str) -> None:
    with pytest.raises(WrongSettingError, match=f"LEEBOARD_{setting.upper()}: .*{why}"):
        read_settings(**{setting: value})
