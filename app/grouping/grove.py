"""The row of Grove. Its operator writes a PodGang, which holds all grouping information."""

from app.grouping import marks
from app.grouping.case import Case, GroupShape
from app.grouping.parts import constraint, divided, part
from app.grouping.pods import below
from app.grouping.reading import Block, OwnerReading
from app.model.owner import Kind, Owner
from app.model.quantity import shown
from app.model.seam import RawObject

POD_GANG = Kind("scheduler.grove.io", "v1alpha1", "PodGang")


def grove(case: Case) -> GroupShape:
    """Return the PodGroup of the PodGang that the pod names."""
    reading = OwnerReading(case.owner)
    name = case.label(marks.POD_GANG)
    if not name:
        reading.doubt(f"its pod {case.pod.name} has no label {marks.POD_GANG}; let the Grove operator write it")
        return GroupShape(problem=reading.problem)
    gang = case.chain.find(POD_GANG, name)
    if gang is None:
        reading.doubt(
            f"PodGang {shown(name)} of pod {case.pod.name} does not exist; wait for the Grove operator to write it"
        )
        return GroupShape(problem=reading.problem)
    return _ganged(case, below(case.owner, gang))


def _ganged(case: Case, gang: Owner) -> GroupShape:
    reading = OwnerReading(gang)
    spec = reading.spec()
    groups = spec.blocks("podgroups")
    topology = gang.annotations.get(marks.GROVE_TOPOLOGY) or gang.annotations.get(marks.TOPOLOGY, "")
    parents = _parents(spec, topology, {group.text("name") for group in groups})
    inside = {name: parent["name"] for parent, names in parents for name in names}
    leaves = [_leaf(group, topology, inside) for group in groups]
    return GroupShape(
        owner=gang,
        min_member=reading.members(sum(one["minMember"] for one in leaves)),
        parts=divided(reading, [*(parent for parent, _ in parents), *leaves]),
        subgroup=_clique(case, groups),
        priority_classes=(gang.labels.get(marks.PRIORITY_CLASS, ""), spec.text("priorityClassName")),
        topology=_constraint(spec, topology),
        problem=reading.problem,
    )


def _leaf(group: Block, topology: str, inside: dict[str, str]) -> RawObject:
    name = group.text("name")
    if group.fields.get("minReplicas") is None:
        group.reading.doubt(f"{group.where} has no minReplicas; write how many, 1 or more")
    least = group.number("minReplicas", otherwise=1, minimum=1)
    return part(name, least, parent=inside.get(name, ""), topology=_constraint(group, topology))


def _parents(spec: Block, topology: str, known: set[str]) -> list[tuple[RawObject, list[str]]]:
    """Return the sub-groups with children, and the children of each. One without children would need its own pods."""
    found: list[tuple[RawObject, list[str]]] = []
    taken: set[str] = set()
    for at, config in enumerate(spec.blocks("topologyConstraintGroupConfigs")):
        listed = config.fields.get("podGroupNames")
        names = [one for one in listed if isinstance(one, str)] if isinstance(listed, list) else []
        mine = [name for name in dict.fromkeys(names) if name in known and name not in taken]
        if mine:
            taken.update(mine)
            name = config.text("name") or f"topology-group-{at}"
            found.append((part(name, 0, topology=_constraint(config, topology)), mine))
    return found


def _constraint(block: Block, topology: str) -> RawObject | None:
    pack = block.block("topologyConstraint", "packConstraint")
    required, preferred = pack.text("required"), pack.text("preferred")
    return constraint(block.reading, topology=topology, required=required, preferred=preferred)


def _clique(case: Case, groups: list[Block]) -> str:
    """Return the group that lists the pod. Grove's label on the pod makes the search unnecessary."""
    named = case.label(marks.POD_CLIQUE)
    if named and any(group.fields.get("name") == named for group in groups):
        return named
    me = {"namespace": case.pod.namespace, "name": case.pod.name}
    return next((group.text("name") for group in groups if _lists(group, me)), "")


def _lists(group: Block, me: RawObject) -> bool:
    references = group.fields.get("podReferences")
    return isinstance(references, list) and me in references
