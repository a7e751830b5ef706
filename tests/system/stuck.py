"""Ways to make pods pending, and the reports: by `leeboard why`, in the status of the PodGroup, and in events."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import orjson
from click.testing import CliRunner

from app.cli import main
from app.model.resources import GPU_MILLI
from tests.system.api import NODES, QUEUES, Api, Object, collection_of, gpu_node, path_of
from tests.system.forms import Deployed
from tests.system.identities import User
from tests.system.observer import Observer
from tests.system.rendered import ADMISSION, await_policies
from tests.system.waiting import eventually
from tests.system.watched import DEFAULT_GROUPS, OURS_ALONE
from tests.system.workloads.cluster import WorkloadCluster, empty_workloads

WITHIN_S = 30.0
"""Not a promise of Leeboard, but the time that a busy machine may need."""
ZONE = "topology.kubernetes.io/zone"
REPORTER = "leeboard"
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
AGAIN = re.compile(r"Leeboard tries again in \d+ s|Leeboard is trying again")
RESERVATION = re.compile(r"gpu-reservation-[\w-]+")
"""A time of day, the time of the next attempt, and the name of a reservation pod: a test cannot know them beforehand.
"""
VOLUMES = ("/api/v1/persistentvolumeclaims", "/api/v1/persistentvolumes")

Details = Mapping[str, int | str]
"""The numbers of a cause, in machine-readable form."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A reported cause; parts that a test cannot know are `<time>`, `<again>` or `<name>`."""

    reason: str
    sentence: str
    details: Details = field(default_factory=dict)


class StuckCluster(WorkloadCluster):
    """A cluster in which pods are pending; Leeboard runs already, for all tests of a file."""

    def __init__(self, running: Deployed, observer: Observer) -> None:
        super().__init__(running, observer)
        self.running_form = running

    # -- what the owner sees

    def shown(self, target: str, *options: str) -> str:
        """Return what `leeboard why` prints, on a wide terminal; for an error its message."""
        environment = {"COLUMNS": "400", "LEEBOARD_URL": self.running_form.operations}
        environment["LEEBOARD_TOKEN"] = self.running_form.bed.token(User.ADMIN)
        result = CliRunner(env=environment).invoke(main, ["why", target, *options])
        return result.output

    def told(self, target: str) -> Object:
        """Return the JSON that `leeboard why` prints; for an error nothing."""
        shown = self.shown(target, "--output", "json")
        told: Object = orjson.loads(shown) if shown.startswith("{") else {}
        return told

    def cause(self, target: str) -> Cause | None:
        """Return the cause of its state."""
        why = self.told(target).get("why")
        return Cause(why["reason"], _comparable(why["sentence"]), _details(why["details"])) if why else None

    def wait_until_stuck(self, pod: str, cause: Cause) -> None:
        """Wait until this cause of a single pod is reported everywhere."""
        self.wait_until_told(pod, cause)
        self.wait_for_event(pod, cause)

    def wait_until_gang_stuck(self, group: str, cause: Cause) -> None:
        """Wait until this cause of a PodGroup and the first of its pods is reported everywhere."""
        for target in (f"{group}-0", f"podgroup/{group}"):
            self.wait_until_told(target, cause)
        self.wait_for_condition(group, cause)
        self.wait_for_event(group, cause)

    def wait_until_told(self, target: str, cause: Cause) -> None:
        """Wait until `leeboard why` reports exactly this cause, in JSON and in text."""
        eventually(
            lambda: self.cause(target),
            until=lambda seen: seen == cause,
            within_s=WITHIN_S,
            what=f"why {target} is {cause}",
        )

        eventually(
            lambda: _comparable(self.shown(target).partition("\n")[0]),
            until=lambda said: said == cause.sentence,
            within_s=WITHIN_S,
            what=f"why {target} begins with the same sentence",
        )

    def wait_until_mended(self, name: str, number: int, *, told: Cause) -> None:
        """Wait until this many pods of this name run and nothing is reported; only this cause was ever reported."""
        self.wait_until_run(name, number)
        if self.api.find(f"{DEFAULT_GROUPS}/{name}"):
            self.wait_until_resolved(name)
        assert self.warnings(name) == [(told.reason, told.sentence)]

    def wait_for_condition(self, group: str, cause: Cause) -> None:
        """Wait until the status of a PodGroup shows exactly this."""
        told = (cause.reason, cause.sentence)
        expected = [("UnschedulableOnNodePool", "True", *told, [told])]
        eventually(
            lambda: [_condition(one) for one in self._conditions(group)],
            until=lambda seen: seen == expected,
            within_s=WITHIN_S,
            what=f"the status of PodGroup {group} says {cause}",
        )

    def wait_until_resolved(self, group: str) -> None:
        """Wait until the status of a PodGroup reports nothing."""
        eventually(
            lambda: self._conditions(group),
            until=lambda seen: seen == [],
            within_s=WITHIN_S,
            what=f"the status of PodGroup {group} says nothing",
        )

    def wait_for_event(self, name: str, cause: Cause) -> None:
        """Wait until exactly one event about the object reports this."""
        expected = [(cause.reason, cause.sentence)]
        eventually(
            lambda: self.warnings(name),
            until=lambda seen: seen == expected,
            within_s=WITHIN_S,
            what=f"one event about {name} tells {cause}",
        )

    def wait_until_described(self, path: str, expected: list[str]) -> None:
        """Wait until `kubectl describe` shows exactly these events of Leeboard at the object of this path."""
        eventually(
            lambda: self._described(path),
            until=lambda seen: seen == expected,
            within_s=WITHIN_S,
            what=f"{path} is described with {expected}",
        )

    def _described(self, path: str) -> list[str]:
        uid = self.api.get(path)["metadata"]["uid"]
        found = self.api.items("/api/v1/namespaces/default/events", fieldSelector=f"involvedObject.uid={uid}")
        return [one["message"] for one in found if one["reportingComponent"] == REPORTER]

    def warnings(self, name: str) -> list[tuple[str, str]]:
        """Return reason and text of every warning of Leeboard about the object."""
        found = self.warnings_of(name)
        return [(one["reason"], _comparable(one["note"])) for one in found if one["regarding"]["name"] == name]

    def warnings_of(self, prefix: str) -> list[Object]:
        """Return every warning of Leeboard about objects with this prefix, the oldest first."""
        ours = [one for one in self._new_events() if one["reportingController"] == REPORTER]
        found = [one for one in ours if one["type"] == "Warning" and one["regarding"]["name"].startswith(prefix)]
        return sorted(found, key=lambda one: str(one["eventTime"]))

    def _conditions(self, group: str) -> list[Object]:
        status = self.api.get(f"{DEFAULT_GROUPS}/{group}").get("status", {})
        conditions: list[Object] = status.get("schedulingConditions", [])
        return conditions

    # -- what makes it pending

    def start_again(self, **settings: str) -> None:
        """Restart Leeboard with these settings."""
        self.running_form.bed.stop("leeboard")
        again = replace(self.running_form, settings=settings)
        again.start_leeboard()
        again.wait_until_ready()

    @contextmanager
    def policy(self, name: str, resource: str, expression: str, message: str) -> Iterator[None]:
        """Let the API server refuse new objects that do not fulfil an expression, until the block ends."""
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [resource]}
        spec = {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": expression, "message": message}],
        }
        binding = {"policyName": name, "validationActions": ["Deny"]}
        kinds = {"ValidatingAdmissionPolicy": spec, "ValidatingAdmissionPolicyBinding": binding}
        items = [
            {"apiVersion": ADMISSION, "kind": kind, "metadata": {"name": name}, "spec": each}
            for kind, each in kinds.items()
        ]
        try:
            for item in items:
                self.api.apply(item)
            await_policies(self.api)
            yield
        finally:
            for item in reversed(items):
                self.api.delete(f"{collection_of(item)}/{name}")
            await_policies(self.api)

    def add_node(self, name: str, *, gpus: int, **more: object) -> None:
        """Create a node with a name that no other test uses; `memory`, `labels` and `taints` as for a node."""
        taints = more.pop("taints", None)
        node = gpu_node(name, gpus=gpus, **more)  # type: ignore[arg-type] # free-form by design
        if taints:
            node["spec"] = {"taints": taints}
        self.api.create(node)
        self.expect(name, gpus=gpus)

    def expect(self, node: str, *, gpus: int) -> None:
        """Record the number of GPUs of a node that others have created."""
        self._gpus[node] = gpus

    def entitle(self, queue: str, **gpus: int) -> None:
        """Change the quota or the limit of a queue, in GPUs; return when Leeboard knows it."""
        self.api.patch(f"{QUEUES}/{queue}", {"spec": {"resources": {"gpu": gpus}}})
        wanted = {name: None if number < 0 else number * GPU_MILLI for name, number in gpus.items()}
        eventually(
            lambda: self.running_form.entitlement(queue),
            until=lambda known: known.items() >= wanted.items(),
            within_s=WITHIN_S,
            what=f"Leeboard knows {gpus} of queue {queue}",
        )

    def untaint(self, node: str) -> None:
        """Remove every taint of a node."""
        self.api.patch(f"{NODES}/{node}", {"spec": {"taints": None}})

    def claim_volume(self, name: str, *, zone: str) -> None:
        """Create a claim whose volume is in a zone, as if it had been bound long ago."""
        metadata = {"name": name, "namespace": "default", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
        size, modes = {"storage": "1Gi"}, ["ReadWriteOnce"]
        spec = {"accessModes": modes, "resources": {"requests": size}, "volumeName": name, "storageClassName": ""}
        head = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata}
        claim = self.api.create({**head, "spec": spec})
        reference = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": name}
        volume = {
            "capacity": size,
            "accessModes": modes,
            "claimRef": reference | {"uid": claim["metadata"]["uid"]},
            "csi": {"driver": "disks.example.com", "volumeHandle": name},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [_in_zone(zone)]}},
        }
        self.api.create({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume})


@contextmanager
def stuck_cluster(running: Deployed) -> Iterator[StuckCluster]:
    """Yield Leeboard to one test, and remove what only tests here create."""
    try:
        with Observer(running.bed) as observer:
            cluster = StuckCluster(running, observer)
            yield cluster
            cluster.check()
    finally:
        empty_workloads(running.api)
        for collection in OURS_ALONE:
            running.api.empty(collection)
        _remove_volumes(running.api)


def _remove_volumes(api: Api) -> None:
    for collection in VOLUMES:
        for item in api.items(collection):
            # No controller runs here that would remove the finalizers.
            api.patch(path_of(collection, item), {"metadata": {"finalizers": None}})
        api.empty(collection)


def _in_zone(zone: str) -> Object:
    return {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}


def _condition(one: Object) -> tuple[object, ...]:
    said = [(each["reason"], _comparable(each["message"])) for each in one["reasons"]]
    return one["type"], one["status"], one["reason"], _comparable(one["message"]), said


def _comparable(text: str) -> str:
    return RESERVATION.sub("<name>", AGAIN.sub("<again>", MOMENT.sub("<time>", text)))


def _details(details: Object) -> dict[str, int | str]:
    """Return the details without the number of the snapshot, which grows with every change."""
    kept = {key: value for key, value in details.items() if key != "generation"}
    return {key: _comparable(value) if isinstance(value, str) else value for key, value in kept.items()}
