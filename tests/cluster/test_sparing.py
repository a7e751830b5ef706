"""What decoding keeps of pods that were never stored: any user may send admission any number of them."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from app.cluster import decode
from app.control.groups.grouped_pods import KEEPS
from tests.cluster.raw import PROFILES, Raw

PODS, CHARACTERS = 20, 100_000

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def affinity(values: list[str]) -> Raw:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": values}]}]
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}


def owned(**more: str) -> Raw:
    return {"ownerReferences": [{"apiVersion": "v1", "kind": "Job", "name": "j", "uid": "u"} | more]}


STATED: dict[str, Callable[[str], tuple[Raw, Raw]]] = {
    "toleration": lambda text: ({}, {"tolerations": [{"key": "k", "value": text}]}),
    "node selector": lambda text: ({}, {"nodeSelector": {"zone": text}}),
    "values": lambda text: ({}, {"affinity": affinity([text[at : at + 63] for at in range(0, len(text), 63)])}),
    "label of a term": lambda text: ({"labels": {"app": text}}, {"affinity": {"podAffinity": {REQUIRED: [
        {"labelSelector": {"matchLabels": {"app": text}}, "topologyKey": "zone"}]}}}),
    "priority class": lambda text: ({}, {"priorityClassName": text}),
    "resource": lambda text: ({}, {"containers": [{"resources": {"requests": {f"a/{text}": "1"}}}]}),
    "name of an owner": lambda text: (owned(name=text), {}),
    "kind of an owner": lambda text: (owned(kind=text), {}),
    "uid of an owner": lambda text: (owned(uid=text), {}),
    "label": lambda text: ({"labels": {"kai.scheduler/queue": text}}, {}),
    "annotation": lambda text: ({"annotations": {"pod-group-name": text}}, {}),
    "time": lambda text: ({"creationTimestamp": f"2026-01-31T12:00:00.{'0' * len(text)}{text[:5]}Z"}, {}),
}  # fmt: skip


def read(number: int, stated: Callable[[str], tuple[Raw, Raw]]) -> None:
    meta, spec = stated(f"{number:05}".ljust(CHARACTERS, "x"))
    raw: Any = {
        "metadata": {"name": "p", "namespace": "q", "uid": f"u{number}"} | meta,
        "spec": {"schedulerName": "kai-scheduler", "containers": []} | spec,
    }
    decode.pod(orjson.loads(orjson.dumps(raw)), profiles=PROFILES, keeps=KEEPS)


@pytest.mark.parametrize("field", STATED)
def test_nothing_long_is_kept_about_a_deleted_pod(field: str) -> None:
    read(0, STATED[field])
    tracemalloc.start()
    try:
        for number in range(1, PODS + 1):
            read(number, STATED[field])
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert kept < CHARACTERS
