"""What a person sets is what the planner is told."""

from dataclasses import replace
from typing import Any

import pytest

from app.cli.options import WrongSettingError, read_settings
from app.control.planning import policy_of
from app.model.decision import Action
from app.scheduling.planner import Policy
from app.settings import PlacementStrategy, ResolveMethod, Settings


def test_whoever_sets_nothing_gets_kais_defaults() -> None:
    assert policy_of(Settings()) == Policy()


@pytest.mark.parametrize(
    ("settings", "policy"),
    [
        ({"placement": "spread"}, {"placement": PlacementStrategy.SPREAD}),
        ({"stale_grace_s": 5}, {"stale_grace_s": 5.0}),
        ({"preempt_min_runtime_s": 5}, {"preempt_min_runtime_s": 5.0}),
        ({"reclaim_min_runtime_s": 5}, {"reclaim_min_runtime_s": 5.0}),
        ({"ageing_s": 5}, {"ageing_s": 5.0}),
        ({"reclaim_resolve_method": "queue"}, {"reclaim_resolve_method": ResolveMethod.QUEUE}),
        ({"actions": "preempt, reclaim"}, {"actions": (Action.ALLOCATE, Action.RECLAIM, Action.PREEMPT)}),
        ({"actions": ""}, {"actions": (Action.ALLOCATE,)}),
    ],
)
def test_a_setting_reaches_the_planner(settings: dict[str, Any], policy: dict[str, Any]) -> None:
    assert policy_of(Settings(**settings)) == replace(Policy(), **policy)


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
def test_a_setting_that_would_hold_or_manage_nothing_sensible_is_named(setting: str, value: str, why: str) -> None:
    with pytest.raises(WrongSettingError, match=f"LEEBOARD_{setting.upper()}: .*{why}"):
        read_settings(**{setting: value})
