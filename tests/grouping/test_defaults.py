"""The defaults of administrators for kinds: KAI's list of types."""

import pytest

from app.grouping import NO_DEFAULTS, GroupingDefaults, defaults_of
from app.grouping.defaults import NOTHING, Default
from app.model.owner import Kind

JOB, OTHER = Kind("batch", "v1", "Job"), Kind("example.com", "v1", "Job")


def test_the_entry_of_a_kind_in_one_group_overrides_the_general_one() -> None:
    said = defaults_of(
        '[{"typeName": "Job", "priorityName": "any"}, {"typeName": "Job", "group": "batch", "priorityName": "b"}]'
    )

    assert (said.of(JOB), said.of(OTHER), said.of(Kind("apps", "v1", "Deployment"))) == (
        Default("b"),
        Default("any"),
        NOTHING,
    )


def test_preemptibility_may_be_written_in_capitals() -> None:
    said = defaults_of('[{"typeName": "Job", "preemptibility": "Non-Preemptible"}]')

    assert said.of(JOB) == Default("", "non-preemptible")


@pytest.mark.parametrize("text", ["", "  ", "[]"])
def test_empty_defaults_are_valid(text: str) -> None:
    assert defaults_of(text) == NO_DEFAULTS == GroupingDefaults()


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("{", "the defaults of kinds are no JSON"),
        ("[" * 100_000, "the defaults of kinds are no JSON"),
        ('{"a": 1}', "the defaults of kinds are a dict; write a list such as"),
        ("null", "the defaults of kinds are None; write a list such as"),
        ('[{"typeName": "Job"}, {}]', "item 2 of the defaults of kinds names no typeName"),
        ("[7]", "item 1 of the defaults of kinds names no typeName"),
        ('[{"typeName": 7}]', "item 1 of the defaults of kinds"),
        ('[{"typeName": "Job", "group": ["x"]}]', "item 1 of the defaults of kinds"),
        (
            '[{"typeName": "Job", "preemptibility": "no"}]',
            "item 1 of the defaults of kinds has preemptibility 'no'; write preempt",
        ),
    ],
)
def test_unreadable_defaults_are_reported(text: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=r"\.$") as raised:
        defaults_of(text)

    assert str(raised.value).startswith(wrong)
