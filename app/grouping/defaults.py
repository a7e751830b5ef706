"""Administrators' defaults by kind: priority class and preemptibility (KAI's ConfigMap)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from json import JSONDecodeError, loads

from app.model.owner import Kind
from app.model.quantity import shown

PREEMPTIBILITIES = ("preemptible", "non-preemptible")

EXAMPLE = '[{"typeName": "Job", "group": "batch", "priorityName": "train", "preemptibility": "preemptible"}]'


@dataclass(frozen=True, slots=True)
class Default:
    """The defaults of one kind."""

    priority_class: str = ""
    preemptibility: str = ""


NOTHING = Default()


@dataclass(frozen=True, slots=True)
class GroupingDefaults:
    """The administrators' defaults."""

    by_kind: Mapping[str, Default] = field(default_factory=dict)
    """The defaults of each kind, by `Kind.group` or, for every group, by `Kind`."""
    owners_project: bool = True
    """Whether the label `project` of an owner names the queue of its pods when there is no queue label."""

    def of(self, kind: Kind) -> Default:
        """Return the defaults of a kind."""
        if not self.by_kind:
            return NOTHING
        return self.by_kind.get(f"{kind.name}.{kind.group}") or self.by_kind.get(kind.name) or NOTHING


NO_DEFAULTS = GroupingDefaults()


def defaults_of(text: str) -> GroupingDefaults:
    """Parse KAI's `types`: a JSON list of `typeName`, `group`, `priorityName` and `preemptibility`.

    Raises ValueError with a sentence that says what to write.
    """
    try:
        items = loads(text) if text.strip() else []
    except (JSONDecodeError, RecursionError) as error:
        raise ValueError(f"the defaults of kinds are no JSON ({error}); write a list such as {EXAMPLE}.") from error
    if not isinstance(items, list):
        raise ValueError(f"the defaults of kinds are {shown(items)}; write a list such as {EXAMPLE}.")  # noqa: TRY004 - a setting's value, not our own type
    return GroupingDefaults(dict(_default(number, item) for number, item in enumerate(items, start=1)))


def _default(number: int, item: object) -> tuple[str, Default]:
    fields = item if isinstance(item, dict) else {}
    texts = {key: fields.get(key) or "" for key in ("typeName", "group", "priorityName", "preemptibility")}
    if not texts["typeName"] or not all(isinstance(value, str) for value in texts.values()):
        raise ValueError(
            f"item {number} of the defaults of kinds names no typeName in quotes; write it as in {EXAMPLE}."
        )
    preemptibility = texts["preemptibility"].lower()
    if preemptibility not in ("", *PREEMPTIBILITIES):
        allowed = " or ".join(PREEMPTIBILITIES)
        raise ValueError(
            f"item {number} of the defaults of kinds has preemptibility {shown(preemptibility)}; write {allowed}."
        )
    key = f"{texts['typeName']}.{texts['group']}" if texts["group"] else texts["typeName"]
    return key, Default(texts["priorityName"], preemptibility)
