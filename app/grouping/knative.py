"""The row of Knative: the pods of one Revision are one PodGroup. Its minimum is the Revision's minimum scale."""

from app.grouping import marks
from app.grouping.case import Case, GroupShape
from app.grouping.reading import MAX_MEMBERS, OwnerReading
from app.model.owner import Kind, Owner
from app.model.quantity import QuantityError, integer, shown

KNATIVE = "serving.knative.dev"


def knative(case: Case) -> GroupShape:
    """Return the PodGroup of the pod's Revision. Annotations cannot set its topology (KAI)."""
    revision = _revision(case)
    if revision is not None:
        return GroupShape(owner=revision, min_member=_min_scale(revision), topology={})
    reading = OwnerReading(case.owner)
    named = case.label(marks.REVISION)
    if named:
        reading.doubt(f"Revision {shown(named)} of pod {case.pod.name} does not exist; wait for it, or delete the pod")
    else:
        reading.doubt(f"its pod {case.pod.name} has no label {marks.REVISION}; let Knative write it")
    return GroupShape(topology={}, problem=reading.problem)


def _revision(case: Case) -> Owner | None:
    mine, named = case.owner_of_kind(KNATIVE, "Revision"), case.label(marks.REVISION)
    if mine is not None or not named:
        return mine
    return case.chain.find(Kind(KNATIVE, case.owner.ref.kind.version, "Revision"), named)


def _min_scale(revision: Owner) -> int:
    """Return the Revision's minimum scale; an unreadable value counts as 1 (KAI)."""
    text = next((revision.annotations[key] for key in marks.MIN_SCALES if key in revision.annotations), "1")
    try:
        return integer(text, minimum=1, maximum=MAX_MEMBERS)
    except QuantityError:
        return 1
