"""No field that the owner of a running pod may write changes its charge, before or after a restart."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from app.cluster import decode
from app.cluster.state.cache import ClusterCache
from app.model.marks import PREFIX
from app.model.names import GroupKey, NodeName, PodUid, QueueName
from app.model.pod import Pod
from app.model.podgroup import GroupSpec
from tests import given
from tests.cluster.raw import PROFILES, Raw, container, raw_pod

LABELS: dict[str, list[str]] = {
    "kai.scheduler/queue": ["ghost", "r", ""],
    "runai/queue": ["ghost", "r"],
    "project": ["ghost", "r"],
    "kai.scheduler/node-pool": ["ghost"],
    "priorityClassName": ["inference", "train"],
    "kai.scheduler/preemptibility": ["preemptible", "non-preemptible", "?"],
    "kai.scheduler/task-priority": ["1", "?"],
    "kai.scheduler/subgroup-name": ["x"],
    "app.kubernetes.io/managed-by": ["leeboard"],
    "runai-gpu-group": ["g2"],
}
ANNOTATIONS: dict[str, list[str]] = {
    "pod-group-name": ["gang"],
    "gpu-fraction": ["0.1", "0.9", "?"],
    "gpu-memory": ["1", "100000", "?"],
    "gpu-fraction-num-devices": ["2", "?"],
    "gpu-fraction-container-name": ["other"],
    "mps": ["true"],
    "workload.leeboard.dev/checkpoint-interval": ["1m", "?"],
}
"""Every label and annotation of others that is read from a pod, with possible values."""
GUARDED = {"pod-group-name"}
"""Those that a policy protects after bind: they are believed after a restart."""

BOUND: Raw = {"leeboard.dev/queue": "q", "leeboard.dev/preemptible": "true"}
SHARES: Raw = BOUND | {"leeboard.dev/devices": "GPU-1", "leeboard.dev/device-groups": "g1"}
PODS: dict[str, Raw] = {
    "whole": {"annotations": BOUND},
    "firm": {
        "annotations": BOUND | {"leeboard.dev/preemptible": "false"},
        "labels": {"kai.scheduler/preemptibility": "non-preemptible"},
    },
    "fraction": {"annotations": SHARES | {"leeboard.dev/gpu-share": "0.50", "gpu-fraction": "0.5"}},
    "memory": {"annotations": SHARES | {"leeboard.dev/gpu-share": "8192Mi", "gpu-memory": "8192"}},
}


def running(kind: str) -> Raw:
    """Build a pod as it was bound."""
    asked = container(cpu="1") if "gpu-share" in repr(PODS[kind]) else container(cpu="1", gpu="2")
    meta = {"labels": {"kai.scheduler/queue": "q"}, **PODS[kind]}
    meta["labels"] = {"kai.scheduler/queue": "q", **meta["labels"]}
    return raw_pod(asked, meta=meta, nodeName="n1")


def changed(raw: Raw, kind: str, key: str, value: str | None) -> Raw:
    """Return the pod with one label or annotation changed, or without it."""
    kept = {name: each for name, each in raw["metadata"].get(kind, {}).items() if name != key}
    return raw | {"metadata": raw["metadata"] | {kind: kept if value is None else kept | {key: value}}}


def edits() -> Iterator[Any]:
    for kind, keys in (("labels", LABELS), ("annotations", ANNOTATIONS)):
        for key, values in keys.items():
            for value in (*values, None):
                yield pytest.param(kind, key, value, id=f"{key}={value}")


def cluster(raw: Raw) -> ClusterCache:
    found = ClusterCache()
    found.apply_node(given.node("n1", device_memory_mib=16_384))
    for name in ("q", "r"):
        found.apply_queue(given.queue(name))
    found.apply_group(GroupSpec(key=GroupKey("team", "gang"), min_member=1, uid="gang"))
    for number in range(3):
        found.apply_pod(member_of_another_queue(number))
    found.apply_pod(decode.pod(raw, profiles=PROFILES))
    return found


def member_of_another_queue(number: int) -> Pod:
    member = given.pod(f"member-{number}", node="n1", queue="r")
    return replace(member, group=GroupKey("team", "gang"), names_group=True, bound_queue=QueueName("r"))


def books(found: ClusterCache) -> object:
    """Return what is charged: to queues, to the node, and to the shared GPU."""
    part = found.gpus.parts.of(PodUid("u1"))
    queues = {name: used for name, used in found.charges.usage().items() if used.requested.pods}
    names = found.gpus.shared(NodeName("n1"))
    return queues, found.snapshots.free().tolist(), part, [(each.name, each.free) for each in names]


@pytest.mark.parametrize(
    ("pod", "gpu_milli", "firm_milli", "memory_mib"),
    [("whole", 2000, 0, None), ("firm", 2000, 2000, None), ("fraction", 500, 0, 8192), ("memory", 500, 0, 8192)],
)
def test_a_running_pod_is_charged_by_what_it_was_bound_with(
    pod: str, gpu_milli: int, firm_milli: int, memory_mib: int | None
) -> None:
    found = cluster(running(pod))

    used, part = found.charges.usage()[QueueName("q")], found.gpus.parts.of(PodUid("u1"))

    assert (used.allocated.gpu_milli, used.allocated_non_preemptible.gpu_milli) == (gpu_milli, firm_milli)
    assert (part.memory_mib if part else None) == memory_mib


@pytest.mark.parametrize("pod", PODS)
@pytest.mark.parametrize(("kind", "key", "value"), list(edits()))
def test_no_edit_of_a_running_pod_changes_its_charge(pod: str, kind: str, key: str, value: str | None) -> None:
    raw = running(pod)
    found, before = cluster(raw), books(cluster(raw))
    edited = changed(raw, kind, key, value)

    found.apply_pod(decode.pod(edited, profiles=PROFILES))

    assert books(found) == before
    assert key in GUARDED or books(cluster(edited)) == before


@pytest.mark.parametrize("key", ["queue", "preemptible", "gpu-share", "devices", "device-groups"])
@pytest.mark.parametrize("value", ["r", "0.1", "1Mi", None])
@pytest.mark.parametrize("pod", PODS)
def test_the_first_seen_value_of_bind_counts_where_no_policy_protects_it(pod: str, key: str, value: str | None) -> None:
    raw = running(pod)
    found, before = cluster(raw), books(cluster(raw))

    found.apply_pod(decode.pod(changed(raw, "annotations", PREFIX + key, value), profiles=PROFILES))

    assert books(found) == before


class Recorded(dict[str, Any]):
    """A mapping that records the keys that were read."""

    def __init__(self, entries: Raw) -> None:
        super().__init__(entries)
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)


@pytest.mark.parametrize("node", ["n1", None])
def test_every_label_and_annotation_that_is_read_is_among_those_edited_above(node: str | None) -> None:
    asked: dict[str, set[str]] = {"labels": set(), "annotations": set()}
    reserves = {"app.kubernetes.io/managed-by": "leeboard", "runai-gpu-group": "g"}
    for kind, labels in [(kind, labels) for kind in PODS for labels in ({}, {"project": "p"}, reserves)]:
        raw = running(kind)
        entries = {"labels": Recorded(labels), "annotations": Recorded(raw["metadata"]["annotations"])}
        for namespace in ("team", "kai-resource-reservation"):
            meta = raw["metadata"] | entries | {"namespace": namespace}
            decode.pod(raw | {"metadata": meta, "spec": raw["spec"] | {"nodeName": node}}, profiles=PROFILES)
        for name, entry in entries.items():
            asked[name] |= {key for key in entry.asked if not key.startswith(PREFIX)}

    # The last one is read only from reservation pods, in a namespace of Leeboard.
    read = {name: keys - {"run.ai/reserve_for_gpu_index"} for name, keys in asked.items()}
    assert (read["labels"] - LABELS.keys(), read["annotations"] - ANNOTATIONS.keys()) == (set(), set())
    assert LABELS.keys() == read["labels"]


@pytest.mark.parametrize("asked", [{"gpu-fraction": "0.9"}, {"gpu-memory": "1"}, {}])
def test_a_pod_that_requests_another_gpu_share_loses_its_reservation(asked: Raw) -> None:
    waiting = raw_pod(container(cpu="1"), meta={"annotations": {"gpu-fraction": "0.1"}}, nodeName=None)
    found = cluster(waiting)
    found.promises.make(PodUid("u1"), NodeName("n1"), ("g1",), expires_at=60.0)

    found.apply_pod(decode.pod(changed(waiting, "labels", "mine", "1"), profiles=PROFILES))
    kept = found.reservations.get(PodUid("u1"))
    found.apply_pod(decode.pod(waiting | {"metadata": waiting["metadata"] | {"annotations": asked}}, profiles=PROFILES))

    assert (kept is not None, found.reservations.get(PodUid("u1"))) == (True, None)
    assert found.gpus.parts.of(PodUid("u1")) is None
