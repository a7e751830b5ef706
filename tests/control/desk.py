"""Admission over a cache that the test fills, and builders of new pods."""

from typing import Any

from app.cluster import decode
from app.cluster.state.cache import ClusterCache
from app.control.webhooks.admission import Admission
from app.control.webhooks.fast_path import Newcomer
from app.model.admission import AdmissionAnswer, AdmissionQuestion, Admitted, Denied, Operation
from app.model.names import QueueName
from app.model.seam import RawObject
from app.settings import Settings
from tests.cluster.patched import patched
from tests.cluster.raw import PROFILES, Raw, container, metadata, raw_pod
from tests.control.ready import Told

KINDS = {"Pod": "", "Queue": "scheduling.run.ai", "PodGroup": "scheduling.run.ai", "Topology": "kai.scheduler"}
QUEUE = {"labels": {"kai.scheduler/queue": "q"}}


class FakeEntrance:
    """Passes every pod or none, and records the pods; kube-scheduler binds no pod except `alone`."""

    def __init__(self) -> None:
        self.open = False
        self.alone = self.changed = False
        self.class_of_owners = ""
        self.asked: list[RawObject] = []

    def look(self, raw: RawObject) -> Newcomer:
        return Newcomer(raw, decode.asked_pod(raw, profiles=frozenset()), None)

    def can_run_now(self, newcomer: Newcomer) -> bool:
        self.asked.append(newcomer.raw)
        return self.open

    def may_be_bound_elsewhere(self, newcomer: Newcomer) -> bool:
        return bool(newcomer.raw) and self.alone

    def must_be_bound_here(self, newcomer: Newcomer) -> bool:
        return bool(newcomer.raw) and self.changed

    def queue(self, newcomer: Newcomer) -> QueueName:
        return newcomer.pod.queue

    def owners_class(self, newcomer: Newcomer) -> str:
        del newcomer
        return self.class_of_owners


class Desk:
    """Admission over a cache that the test fills; it knows queue `q`."""

    def __init__(self, **settings: Any) -> None:
        self.cache, self.entrance, self.unready = ClusterCache(), FakeEntrance(), Told()
        self.admission = Admission(self.cache, self.entrance, Settings(**settings), freshness=self.unready)
        self.cache.apply_queue(decode.queue(queue("q")))

    def mutate(self, raw: Raw, **more: Any) -> AdmissionAnswer:
        return self.admission.mutate(question("Pod", raw, **more))

    def stored(self, raw: Raw, **more: Any) -> Raw:
        """Return the pod as it would be stored."""
        answer = self.mutate(raw, **more)
        assert isinstance(answer, Admitted)
        return patched(raw, answer.patch)

    def validate(self, kind: str, raw: Raw, **more: Any) -> AdmissionAnswer:
        return self.admission.validate(question(kind, raw, **more))

    def warnings(self, kind: str, raw: Raw, **more: Any) -> list[str]:
        answer = self.validate(kind, raw, **more)
        assert isinstance(answer, Admitted)
        return list(answer.warnings)

    def denial(self, kind: str, raw: Raw, **more: Any) -> str:
        answer = self.validate(kind, raw, **more)
        assert isinstance(answer, Denied)
        return answer.message

    def add_pod(
        self, name: str, *, node: str | None = None, queue: str = "q", group: str = "", **annotations: str
    ) -> None:
        labels, named = {"kai.scheduler/queue": queue}, {"pod-group-name": group} if group else {}
        meta = {"name": name, "uid": name, "labels": labels, "annotations": annotations | named}
        self.cache.apply_pod(decode.pod(raw_pod(container(), meta=meta, nodeName=node), profiles=PROFILES))


def question(kind: str, raw: Raw, *, operation: str = "CREATE", **more: Any) -> AdmissionQuestion:
    name = raw.get("metadata", {}).get("name", "")
    said = {"group": KINDS[kind], "kind": kind, "namespace": "team", "name": name, "operation": Operation(operation)}
    return AdmissionQuestion(**(said | {"object": raw} | more))


def changed(old: Raw) -> dict[str, Any]:
    return {"operation": "UPDATE", "old": old}


def new_pod(*containers: Raw, meta: Raw | None = None, **spec: Any) -> Raw:
    """Build a pod as the API server shows it before it is stored: it has no uid yet."""
    raw = raw_pod(*(containers or (container(),)), meta=meta or QUEUE, **spec)
    del raw["metadata"]["uid"]
    return raw


def queue(name: str, **spec: object) -> Raw:
    return {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": {"resources": {}} | spec}


def group(**spec: object) -> Raw:
    return {"metadata": metadata(name="g"), "spec": {"queue": "q"} | spec}
