"""The rows of Ray: a head and groups of workers, whichever object has created the RayCluster."""

from dataclasses import replace
from functools import partial

from app.grouping import marks
from app.grouping.case import Case, GroupShape, Shaping
from app.grouping.parts import constraint, divided, part
from app.grouping.pods import apart
from app.grouping.reading import Block, OwnerReading
from app.model.owner import Kind, Owner
from app.model.seam import RawObject

RAY = "ray.io"
HEAD = "headgroup"
CLEANUP = "redis-cleanup"
"""The node type of the pod that cleans up Redis after all other pods of a RayCluster are gone."""


def ray_cluster(case: Case) -> GroupShape:
    """Return one PodGroup of the head and of each group of workers with its minimum."""
    return _alone(case) if case.label(marks.RAY_NODE_TYPE) == CLEANUP else _clustered(case, case.owner)


def _made(case: Case, *, status: tuple[tuple[str, ...], ...]) -> GroupShape:
    """Return the PodGroup of an owner that has created a RayCluster. Its status names it at one of these paths."""
    mine = case.owner_of_kind(RAY, "RayCluster")
    if (mine is None and not case.label(marks.RAY_GROUP)) or case.label(marks.RAY_NODE_TYPE) == CLEANUP:
        return _alone(case)
    cluster = _named(case, status) or mine
    if cluster is not None:
        return _clustered(case, cluster)
    reading = OwnerReading(case.owner)
    reading.doubt(f"the RayCluster of pod {case.pod.name} cannot be found; wait for it, or delete the pod")
    return GroupShape(priority_classes=_priority_classes(case), problem=reading.problem)


ray_job: Shaping = partial(_made, status=((),))
ray_service: Shaping = partial(_made, status=(("activeServiceStatus",), ("pendingServiceStatus",)))


def _alone(case: Case) -> GroupShape:
    """Return the PodGroup of a pod that is created while the cluster runs or after it, so it cannot start with it."""
    return replace(apart(case), priority_classes=_priority_classes(case))


def _named(case: Case, status: tuple[tuple[str, ...], ...]) -> Owner | None:
    fields = OwnerReading(case.owner).root().block("status")
    names = [name for path in status if (name := fields.block(*path).text("rayClusterName"))]
    kind = Kind(RAY, case.owner.ref.kind.version, "RayCluster")
    found = (case.chain.find(kind, name) for name in names)
    return next((one for one in found if one is not None), None)


def _clustered(case: Case, cluster: Owner) -> GroupShape:
    reading = OwnerReading(cluster)
    spec = reading.spec()
    parts = [part(HEAD, 1, topology=_constraint(spec.block("headGroupSpec")))]
    for at, group in enumerate(spec.blocks("workerGroupSpecs")):
        if pods := _workers(group):
            least = 0 if _grows_from_nothing(spec, group) else pods
            parts.append(part(group.text("groupName") or f"worker-group-{at}", least, topology=_constraint(group)))
    divisions = divided(reading, parts)
    return GroupShape(
        min_member=reading.members(sum(one["minMember"] for one in parts)),
        parts=divisions,
        subgroup=_group_of(case, divisions),
        priority_classes=_priority_classes(case),
        problem=reading.problem,
    )


def _workers(group: Block) -> int:
    """Return how many pods of a group must start with the others. An autoscaler adds more when there is room."""
    if group.fields.get("suspend") is True or group.fields.get("suspended") is True:
        return 0
    least = group.number("minReplicas", otherwise=0)
    # KubeRay treats missing replicas as the minimum. The API server stores 0 for them, as the CRD says.
    replicas = group.number("replicas", otherwise=0) or least
    if least > replicas:
        group.reading.doubt(f"{group.where}.minReplicas is {least} and replicas {replicas}; write no fewer replicas")
    pods = _capped(group, least or replicas) * group.number("numOfHosts", otherwise=1, minimum=1)
    return group.reading.members(pods) if pods else 0


def _capped(group: Block, replicas: int) -> int:
    """Return the number that KubeRay creates: at most the maximum, whose default is practically unlimited."""
    most = group.fields.get("maxReplicas")
    return min(replicas, max(most, 0)) if type(most) is int else replicas


def _grows_from_nothing(spec: Block, group: Block) -> bool:
    """Return whether Ray's autoscaler writes `replicas`. Its pods then start one by one, as there is room."""
    return spec.fields.get("enableInTreeAutoscaling") is True and not group.number("minReplicas", otherwise=0)


def _constraint(group: Block) -> RawObject | None:
    said = group.block("template", "metadata", "annotations")
    return constraint(
        group.reading,
        topology=said.text(marks.TOPOLOGY),
        required=said.text(marks.REQUIRED_LEVEL),
        preferred=said.text(marks.PREFERRED_LEVEL),
    )


def _group_of(case: Case, parts: tuple[RawObject, ...]) -> str:
    """Return the pod's sub-group. A pod of a group without a minimum joins the last one, because it must be in one."""
    names = [one["name"] for one in parts]
    named = case.label(marks.RAY_GROUP)
    return named if named in names or not names else str(names[-1])


def _priority_classes(case: Case) -> tuple[str, ...]:
    return (case.owner.labels.get(marks.RAY_PRIORITY_CLASS, ""),)
