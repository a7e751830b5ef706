"""Turns the jobs and tasks of a scheduling case into PodGroups and pods."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.model.dra import ClaimKey
from app.model.names import GroupKey, NodeName, PodUid, QueueName
from app.model.pod import ANYWHERE, PPM, Constraint, Near, Operator, Placed, Pod, Requirement, ResourceClaim, Sharing
from app.model.podgroup import PodGroup, PodSet, SubGroup, TopologyConstraint
from app.model.reason import Reason, Refusal
from app.model.resources import GPU_MILLI, Resources, Scalars
from tests.conformance.seats import HOLDING, PENDING, SUCCEEDED, Seats
from tests.conformance.vectors import Case, exact

NODE_TYPE = "kai.scheduler/type"
QUEUE_LABEL = "kai.scheduler/queue"
UNORDERED = -(1 << 31)
"""Tasks without a priority label come after those that have one."""

NO_SUCH_CLAIM: Case = {"device_class": "", "count": 1, "labels": None}
"""Requests a class of which no node has devices, so that its pod stays pending."""

LEGACY_MIG = Refusal(reason=Reason.INVALID_REQUEST, sentence="MIG profiles are no longer requested by annotation.")


def is_legacy_mig(task: Case) -> bool:
    """Return whether the task asks for MIG devices by an annotation: it may run, but never start."""
    return bool(task.get("legacy_mig"))


@dataclass(frozen=True, slots=True)
class Jobs:
    """The jobs of a case in our terms; the places of their tasks are given for each session."""

    case: Case
    pods: Mapping[str, Pod]
    """By the name of the task, pending."""

    @staticmethod
    def of(case: Case) -> "Jobs":
        """Read every task once."""
        reader = _Reader(case)
        return Jobs(
            case, {task["name"]: reader.pod(job, task) for job in case["cluster"]["jobs"] for task in job["tasks"]}
        )

    def groups(self, seats: Seats) -> list[PodGroup]:
        """Return every PodGroup at one moment; the clock is at 0."""
        return [self._group(job, seats) for job in self.case["cluster"]["jobs"]]

    def _group(self, job: Case, seats: Seats) -> PodGroup:
        pods = [(self.pods[task["name"]], seats[task["name"]]) for task in job["tasks"]]
        root = _root(job["sub_groups"], declared=job["sub_groups_declared"])
        started = job["last_start_seconds_ago"]
        placed = tuple(_placed(pod, seat.node, seat.devices) for pod, seat in pods if seat.status in HOLDING)
        finished = [task for task in job["tasks"] if seats[task["name"]].status == SUCCEEDED]
        group = PodGroup(
            key=key(job),
            queue=QueueName(job["queue"]),
            priority=job["priority"],
            preemptible=job["preemptible"],
            min_member=sum(each["min_available"] for each in _pod_sets(job["sub_groups"])),
            root=root,
            created_at=-60 * float(job["age_minutes"]),
            pending=tuple(sorted((pod for pod, seat in pods if seat.status == PENDING), key=_turn)),
            placed=placed,
            succeeded=Counter(task.get("pod_set", "default") if root else "" for task in finished),
            started_at=-float(60 if started is None else started) if placed else None,
        )
        return replace(group, stale_since=_stale_since(job, group), refusal=self._refusal(job, group))

    def _refusal(self, job: Case, group: PodGroup) -> Refusal | None:
        waiting = {pod.name for pod in group.pending}
        if any(is_legacy_mig(task) and task["name"] in waiting for task in job["tasks"]):
            return LEGACY_MIG
        return _missing(group) if waiting else None


def key(job: Case) -> GroupKey:
    """Return the identity of the job's PodGroup."""
    return GroupKey(job["namespace"], job["name"])


def _placed(pod: Pod, node: str | None, devices: tuple[str, ...]) -> Placed:
    name = NodeName(node or "")
    return Placed(pod=replace(pod, node=name), node=name, devices=devices)


def _turn(pod: Pod) -> tuple[int, str]:
    return -pod.task_priority, pod.name


def _missing(group: PodGroup) -> Refusal | None:
    there = Counter(group.held()) + Counter(group.pod_set(pod) for pod in group.pending)
    if all(there[each.name] >= each.min_member for each in group.tree.leaves()):
        return None
    return Refusal(reason=Reason.MEMBERS_MISSING, sentence=f"PodGroup {group.key} waits for more members.")


def _stale_since(job: Case, group: PodGroup) -> float | None:
    held = group.held()
    if (
        not group.placed
        or group.succeeded
        or all(held.get(each.name, 0) >= each.min_member for each in group.tree.leaves())
    ):
        return None
    return -float(job.get("stale_seconds") or 0)


def _pod_sets(tree: Case) -> Iterable[Case]:
    for inner in tree["groups"]:
        yield from _pod_sets(inner)
    yield from tree["pod_sets"]


def _root(tree: Case, *, declared: bool) -> SubGroup | None:
    root = _sub_group(tree)
    plain = root.topology is None and all(each.topology is None for each in root.leaves())
    return root if declared or not plain else None


def _sub_group(tree: Case) -> SubGroup:
    return SubGroup(
        name=tree["name"],
        topology=_topology(tree["topology_constraint"]),
        groups=tuple(_sub_group(inner) for inner in tree["groups"]),
        pod_sets=tuple(
            PodSet(
                name=each["name"],
                min_member=each["min_available"],
                topology=_topology(each["topology_constraint"]),
            )
            for each in tree["pod_sets"]
        ),
    )


def _topology(constraint: Case | None) -> TopologyConstraint | None:
    if constraint is None:
        return None
    return TopologyConstraint(
        constraint["topology"], constraint["required_level"] or "", constraint["preferred_level"] or ""
    )


class _Reader:
    """Reads tasks; fields that the case's plugins do not read are left out."""

    def __init__(self, case: Case) -> None:
        self._predicates = case["config"]["predicates_plugin_loaded"]
        dra = case["cluster"].get("dra") or {}
        self._claims = {(each["namespace"], each["name"]): each for each in dra.get("resource_claims", ())}

    def pod(self, job: Case, task: Case) -> Pod:
        """Read one task as a pending pod, whose uid is the task's name."""
        gpu = task["gpu"]
        claims, others = self._devices_claimed(job, task)
        return Pod(
            uid=PodUid(task["name"]),
            namespace=job["namespace"],
            name=task["name"],
            group=key(job),
            names_group=True,
            queue=QueueName(job["queue"]),
            request=Resources(
                cpu_milli=exact(task["cpu_milli"], 1),
                memory_bytes=exact(task["memory_bytes"], 1),
                gpu_milli=exact(gpu["devices"], 1000) if gpu["kind"] == "whole" else 0,
                pods=1,
            ),
            sharing=_sharing(gpu),
            scalars=tuple(sorted((*gpu.get("mig", {}).items(), *others))),
            claims=claims,
            subgroup=task.get("pod_set", "default"),
            task_priority=task.get("priority", UNORDERED),
            **(self._whereabouts(task) if self._predicates else {}),
        )

    def _whereabouts(self, task: Case) -> dict[str, Any]:
        labels = task.get("labels")
        return {
            "constraint": _constraint(task.get("node_affinity_in")),
            "labels": labels,
            "near": tuple(_near(task, labels or {})),
        }

    def _devices_claimed(self, job: Case, task: Case) -> tuple[tuple[ResourceClaim, ...], Scalars]:
        """Return the claims of GPUs, and the count of claimed devices of other classes for queues."""
        if not self._predicates:
            return (), ()
        named = [(name, True) for name in task.get("resource_claims") or ()]
        named += [(name, False) for name in (task.get("resource_claim_templates") or {}).values()]
        claims = [self._claim(job, name, shared=shared) for name, shared in named]
        gpus = {device_scalar(name) for name in task["gpu"].get("dra_device_classes") or {}}
        others = Counter[str]()
        for each in claims:
            others.update({name: count for name, count in each.scalars if name not in gpus})
        return tuple(each for each in claims if gpus.issuperset(dict(each.scalars))), tuple(others.items())

    def _claim(self, job: Case, name: str, *, shared: bool) -> ResourceClaim:
        claim = self._claims.get((job["namespace"], name), NO_SUCH_CLAIM)
        queue = (claim["labels"] or {}).get(QUEUE_LABEL)
        return ResourceClaim(
            key=ClaimKey(job["namespace"], name),
            scalars=((device_scalar(claim["device_class"]), claim["count"]),),
            cost_milli=GPU_MILLI * claim["count"],
            queue=QueueName(queue) if queue else None,
            shared=shared,
        )


def device_scalar(device_class: str) -> str:
    """Return the name under which a node's DRA devices of one class are counted."""
    return f"dra:{device_class}"


def _sharing(gpu: Case) -> Sharing | None:
    match gpu["kind"]:
        case "fraction":
            return Sharing(portion_ppm=round(gpu["portion"] * PPM), devices=gpu["devices"])
        case "memory":
            return Sharing(memory_mib=exact(gpu["memory_mib"], 1), devices=gpu["devices"])
        case _:
            return None


def _constraint(names: list[str] | None) -> Constraint:
    if names is None:
        return ANYWHERE
    return Constraint(terms=((Requirement(NODE_TYPE, Operator.IN, tuple(names)),),))


def _near(task: Case, labels: Mapping[str, str]) -> Iterable[Near]:
    same = tuple(sorted(labels.items()))
    if "pod_affinity_topology_key" in task:
        yield Near(same, task["pod_affinity_topology_key"])
    if "pod_anti_affinity_topology_key" in task:
        yield Near(same, task["pod_anti_affinity_topology_key"], apart=True)
