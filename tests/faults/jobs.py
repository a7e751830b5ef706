"""The owners of pods: they create the pods of each job through admission, and create lost pods again.

A pod that was evicted gets the same name, as a StatefulSet's or an indexed Job's pod does.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from app.model.admission import AdmissionQuestion, Admitted, Operation
from app.model.marks import ASK_MARKER, BIND_MARKER, GATE
from app.model.seam import ConflictError, Deleted, NotFoundError, RawObject, Resource
from app.simulation import manifests
from app.simulation.admission import admitted
from app.simulation.cluster import Ref
from app.web.admission import AnswersAdmission
from tests.cluster.patched import patched
from tests.faults.api import JOB_LABEL, ApiServer

AGAIN_AFTER_S, AGAIN_AFTER_FAILURE_S = 1.0, 10.0


@dataclass(slots=True)
class Owned:
    """A job, and which of its members have succeeded."""

    args: dict[str, Any]
    succeeded: set[int] = field(default_factory=set)
    given_up: set[int] = field(default_factory=set)
    """Members that their owner does not create again."""
    is_deleted: bool = False

    @property
    def group(self) -> str:
        return self.args["name"] if self.args.get("group") else ""

    @property
    def job(self) -> manifests.Job:
        args = self.args
        return manifests.Job(
            name=args["name"],
            queue=args["queue"],
            gpus=args.get("gpus", 0),
            cpu=args.get("cpu", 1),
            runtime_s=args["runtime_s"],
            priority_class=args.get("priority", "train"),
            group=self.group,
            part=args.get("part", {}),
            node_selector=args.get("selector", {}),
        )

    def pod(self, member: int) -> RawObject:
        pod = manifests.pod(self.job, member=member)
        pod["metadata"]["labels"] |= {JOB_LABEL: self.args["name"], "simulation.leeboard.dev/member": str(member)}
        pod["spec"]["terminationGracePeriodSeconds"] = self.args.get("grace_s", 5)
        if self.args["runtime_s"] <= 0:
            del pod["metadata"]["annotations"][manifests.RUNTIME_ANNOTATION]
        return pod


class Owners:
    """All owners and users."""

    def __init__(
        self, api: ApiServer, admission: Callable[[], AnswersAdmission | None], *, has_admission: bool
    ) -> None:
        self._api, self._admission, self._has_admission = api, admission, has_admission
        self.jobs: dict[str, Owned] = {}
        self.denials: list[str] = []
        self.lost_at: dict[str, float] = {}
        """By job, when it last lost a pod that had not succeeded."""

    def submit(self, args: dict[str, Any]) -> None:
        owned = self.jobs[args["name"]] = Owned(args)
        if "budget" in args:
            self._api.budgets[args["name"]] = args["budget"]
        if owned.group:
            group = manifests.pod_group(owned.job, min_member=args["min"])
            if "topology" in args:
                group["spec"]["topologyConstraint"] = args["topology"]
            with suppress(ConflictError):
                self._api.create(Resource.POD_GROUPS, group)
        for member in range(args["size"]):
            self._create(owned, member)

    def delete(self, name: str) -> None:
        """Delete a job with all its pods."""
        owned = self.jobs.get(name)
        if owned is None or owned.is_deleted:
            return
        owned.is_deleted = True
        self._note_loss(name)
        for pod in self._pods(name):
            self._api._have_it_leave(Ref.of(Resource.PODS, pod))
        self._drop_group(owned)

    def give_up(self, name: str, member: int) -> None:
        """Create a member of a job no more."""
        if name in self.jobs:
            self.jobs[name].given_up.add(member)

    def delete_pod(self, name: str, member: int) -> None:
        """Delete one pod of a job, which creates it again."""
        self._note_loss(name)
        for pod in self._pods(name):
            if pod["metadata"]["name"] == f"{name}-{member}":
                self._api._have_it_leave(Ref.of(Resource.PODS, pod))

    def finished(self, ref: Ref) -> None:
        """Note that a pod has succeeded."""
        name, _, member = ref.name.rpartition("-")
        owned = self.jobs.get(name)
        if owned is not None:
            owned.succeeded.add(int(member))
            if len(owned.succeeded) == owned.args["size"]:
                owned.is_deleted = True
                self._drop_group(owned)

    def _note_loss(self, name: str) -> None:
        self.lost_at[name] = asyncio.get_running_loop().time()

    async def run(self) -> None:
        """Create lost pods again."""
        async with asyncio.TaskGroup() as tasks:
            async for event in self._api.watch_whole(Resource.PODS):
                if isinstance(event, Deleted):
                    tasks.create_task(self._replace(event.object))

    async def _replace(self, pod: RawObject) -> None:
        metadata = pod["metadata"]
        owned = self.jobs.get(metadata.get("labels", {}).get(JOB_LABEL, ""))
        if owned is None:
            return
        self._note_loss(owned.args["name"])
        member = int(metadata["labels"]["simulation.leeboard.dev/member"])
        stored = self._api.pod(metadata["namespace"], metadata["name"], metadata["uid"])
        if stored is not None and stored["status"].get("phase") == "Failed":
            with suppress(NotFoundError):
                self._api.delete(Ref.of(Resource.PODS, stored))
            await asyncio.sleep(AGAIN_AFTER_FAILURE_S)
        await asyncio.sleep(AGAIN_AFTER_S)
        if not owned.is_deleted and member not in owned.succeeded | owned.given_up:
            self._create(owned, member)

    def _create(self, owned: Owned, member: int) -> None:
        pod = admitted(owned.pod(member))
        if self._has_admission:
            pod = self._through_webhook(self._through_policy(pod))
        with suppress(ConflictError):
            self._api.create(Resource.PODS, pod)

    def _through_policy(self, pod: RawObject) -> RawObject:
        """Do what the chart's MutatingAdmissionPolicy does: the pod is held, and Leeboard binds it."""
        first, *others = pod["spec"]["containers"]
        resources = {
            kind: amounts | {ASK_MARKER: "0", BIND_MARKER: "0"} for kind, amounts in first["resources"].items()
        }
        spec = pod["spec"] | {"schedulingGates": [{"name": GATE}]}
        return pod | {"spec": spec | {"containers": [first | {"resources": resources}, *others]}}

    def _through_webhook(self, pod: RawObject) -> RawObject:
        """Ask Leeboard; without an answer the pod stays held."""
        admission = self._admission()
        if admission is None:
            return pod
        metadata = pod["metadata"]
        question = AdmissionQuestion(
            group="",
            kind="Pod",
            namespace=metadata["namespace"],
            name=metadata["name"],
            operation=Operation.CREATE,
            object=pod,
        )
        answer = admission.mutate(question)
        if not isinstance(answer, Admitted):
            self.denials.append(f"{metadata['name']}: {answer}")
            return pod
        return patched(pod, answer.patch)

    def _pods(self, job: str) -> list[RawObject]:
        pods = self._api.objects(Resource.PODS)
        return [pod for pod in pods if pod["metadata"].get("labels", {}).get(JOB_LABEL) == job]

    def _drop_group(self, owned: Owned) -> None:
        if owned.group:
            with suppress(NotFoundError):
                ref = Ref(resource=Resource.POD_GROUPS, name=owned.group, namespace=owned.args["queue"])
                self._api.delete(ref)
