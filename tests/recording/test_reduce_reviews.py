"""Admission answers alike for reduced objects: the same patch, the same refusal, the same warnings."""

import orjson
import pytest

from app.model.admission import AdmissionAnswer, AdmissionQuestion, Operation
from app.model.seam import Resource
from app.recording.reduce import reduced_review
from tests.cluster.raw import Raw, container, raw_pod
from tests.control.desk import KINDS, Desk
from tests.recording.readers import FULL, damaged

DAMAGES = 150
SHARING = {"annotations": {"gpu-memory": "5", "mps": "true"}, "labels": {"kai.scheduler/queue": "q"}}
VISIBLE = {"name": "NVIDIA_VISIBLE_DEVICES"}
RIGHT = {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.annotations['leeboard.dev/devices']"}}
ENVIRONMENT = [
    {"name": "A", "value": "secret"},
    VISIBLE | {"value": "all"},
    VISIBLE | {"valueFrom": RIGHT},
    VISIBLE | {"valueFrom": RIGHT, "value": "all"},
    VISIBLE | {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    {"name": "GPU_PORTION", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
]
OBJECTS = {
    "Pod": (
        *FULL[Resource.PODS],
        raw_pod(
            container() | {"env": ENVIRONMENT},
            container("b"),
            meta=SHARING,
            schedulingGates=[{"name": "leeboard.dev/held"}, {"name": "x"}],
            volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
            priority=1,
            preemptionPolicy="Never",
        ),
    ),
    "Queue": FULL[Resource.QUEUES],
    "PodGroup": FULL[Resource.POD_GROUPS],
    "Topology": FULL[Resource.TOPOLOGIES],
    "Deployment": ({"metadata": {"name": "d"}, "spec": {}},),
}


def answers(desk: Desk, question: AdmissionQuestion) -> list[AdmissionAnswer | str]:
    found: list[AdmissionAnswer | str] = []
    for answer in (desk.admission.mutate, desk.admission.validate):
        try:
            found.append(answer(question))
        except Exception as error:  # noqa: BLE001 # the reduced object must fail in the same way
            found.append(f"{type(error)}: {error}")
    return found


def asked(kind: str, operation: Operation, raw: Raw, old: Raw | None) -> AdmissionQuestion:
    return AdmissionQuestion(
        group=KINDS.get(kind, "apps"),
        kind=kind,
        namespace="team",
        name="it",
        operation=operation,
        object=raw,
        old=old,
        user="somebody",
    )


@pytest.mark.parametrize("kind", OBJECTS)
@pytest.mark.parametrize("operation", Operation)
def test_a_reduced_review_is_answered_alike(kind: str, operation: Operation) -> None:
    desks = [Desk(), Desk(gpu_runtime_class="nvidia"), Desk(gpu_sharing=False)]
    desks[1].entrance.open = desks[1].entrance.alone = True
    for number, raw in enumerate(OBJECTS[kind]):
        for seed in range(DAMAGES):
            wrong = damaged(raw, seed=1000 * number + seed) if seed else raw
            question = asked(kind, operation, wrong, None if operation is Operation.CREATE else raw)
            kept = reduced_review(question)
            for desk in desks:
                assert answers(desk, kept) == answers(desk, question), (number, seed)
            assert reduced_review(kept) == kept
            assert orjson.loads(orjson.dumps(kept.object)) == kept.object
