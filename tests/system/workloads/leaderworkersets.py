"""A stand-in for the LeaderWorkerSet controller: a StatefulSet of leaders, and one of workers for each leader.

The real StatefulSet controller creates the pods. A policy of the API server replaces the pod webhook: it labels each
pod with its group. Names, labels and owners are those of LeaderWorkerSet 0.8.
"""

import copy

from tests.system.api import Api, Object, collection_of
from tests.system.rendered import ADMISSION, await_policies
from tests.system.workloads.kinds import LEADER_WORKER_SET, POD, STATEFUL_SET
from tests.system.workloads.seen import Seen, is_leaving, is_true, short_hash

PREFIX = "leaderworkerset.sigs.k8s.io"
NAME, GROUP, WORKER, KEY = f"{PREFIX}/name", f"{PREFIX}/group-index", f"{PREFIX}/worker-index", f"{PREFIX}/group-key"
SIZE, LEADER, REVISION = f"{PREFIX}/size", f"{PREFIX}/leader-name", f"{PREFIX}/template-revision-hash"
POLICY = "stand-in-for-lws-pod-webhook"


def operate(seen: Seen) -> None:
    """Bring every LeaderWorkerSet one step further."""
    for lws in seen.all(LEADER_WORKER_SET):
        _operate(seen, lws)


def _operate(seen: Seen, lws: Object) -> None:
    replicas = lws["spec"].get("replicas", 1)
    (leaders,) = seen.owned(lws, STATEFUL_SET) or (None,)
    if leaders is None:
        seen.create(STATEFUL_SET, _leaders(lws), owner=lws, owner_kind=LEADER_WORKER_SET)
        return
    seen.set_spec(STATEFUL_SET, leaders, replicas=replicas)
    for leader in seen.owned(leaders, POD):
        _operate_group(seen, lws, leader)


def _operate_group(seen: Seen, lws: Object, leader: Object) -> None:
    if is_leaving(leader):
        return
    (workers,) = seen.owned(leader, STATEFUL_SET) or (None,)
    if workers is None:
        if size_of(lws) > 1 and not (_is_leader_first(lws) and not is_true(leader, "Ready")):
            seen.create(STATEFUL_SET, _workers(lws, leader), owner=leader, owner_kind=POD)
        return
    if _restarts_whole(lws) and seen.has_lost_a_pod(workers):
        seen.delete_whole(POD, leader)


def size_of(lws: Object) -> int:
    """Return how many pods a group has, including its leader."""
    return int(lws["spec"]["leaderWorkerTemplate"].get("size", 1))


def _is_leader_first(lws: Object) -> bool:
    return bool(lws["spec"].get("startupPolicy") == "LeaderReady")


def _restarts_whole(lws: Object) -> bool:
    policy = lws["spec"]["leaderWorkerTemplate"].get("restartPolicy", "RecreateGroupOnPodRestart")
    return bool(policy == "RecreateGroupOnPodRestart")


def _leaders(lws: Object) -> Object:
    name, template = lws["metadata"]["name"], lws["spec"]["leaderWorkerTemplate"]
    selector = {NAME: name, WORKER: "0"}
    pods = _template(
        template.get("leaderTemplate") or template["workerTemplate"],
        labels=selector | {REVISION: _revision(lws)},
        annotations={SIZE: str(size_of(lws)), **_own_annotations(lws)},
    )
    made = STATEFUL_SET.named(lws, name, _stateful(lws, selector, pods) | {"replicas": lws["spec"].get("replicas", 1)})
    made["metadata"]["labels"] = {NAME: name, REVISION: _revision(lws)}
    return made


def _workers(lws: Object, leader: Object) -> Object:
    metadata, template = leader["metadata"], lws["spec"]["leaderWorkerTemplate"]
    selector = {NAME: lws["metadata"]["name"], **{key: metadata["labels"][key] for key in (GROUP, KEY)}}
    annotations = {SIZE: str(size_of(lws)), LEADER: metadata["name"], **_own_annotations(lws)}
    pods = _template(template["workerTemplate"], labels=selector | {REVISION: _revision(lws)}, annotations=annotations)
    spec = _stateful(lws, selector, pods) | {"replicas": size_of(lws) - 1, "ordinals": {"start": 1}}
    made = STATEFUL_SET.named(lws, metadata["name"], spec)
    made["metadata"]["labels"] = selector
    return made


def _stateful(lws: Object, selector: Object, template: Object) -> Object:
    return {
        "serviceName": lws["metadata"]["name"],
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": selector},
        "template": template,
    }


def _template(template: Object, *, labels: Object, annotations: Object) -> Object:
    made = copy.deepcopy(template)
    own = made.setdefault("metadata", {})
    own["labels"] = {**own.get("labels", {}), **labels}
    own["annotations"] = {**own.get("annotations", {}), **annotations}
    return made


def _own_annotations(lws: Object) -> dict[str, str]:
    """Return the annotations of pods about sub-groups."""
    policy = lws["spec"]["leaderWorkerTemplate"].get("subGroupPolicy") or {}
    size = policy.get("subGroupSize")
    return {f"{PREFIX}/subgroup-size": str(size)} if size else {}


def _revision(lws: Object) -> str:
    return short_hash(lws["metadata"]["uid"])


# -- the pod webhook

LEADERS_LABELS = f"""Object{{metadata: Object.metadata{{labels: {{
  "{GROUP}": string(object.metadata.labels["apps.kubernetes.io/pod-index"]),
  "{KEY}": string(object.metadata.name) + "-key"
}}}}}}"""
WORKERS_LABELS = f"""Object{{metadata: Object.metadata{{labels: {{
  "{WORKER}": string(object.metadata.labels["apps.kubernetes.io/pod-index"])
}}}}}}"""


def install_pod_policy(api: Api) -> None:
    """Let new pods of LeaderWorkerSets be labelled, and wait until this is in force."""
    for item in _pod_policy():
        api.apply(item)
    await_policies(api)


def remove_pod_policy(api: Api) -> None:
    """Remove it again."""
    for item in _pod_policy():
        api.delete(f"{collection_of(item)}/{item['metadata']['name']}")


def _pod_policy() -> list[Object]:
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    is_leader = f'object.metadata.labels[?"{WORKER}"].orValue("") == "0"'
    mutation = f"{is_leader} ? {LEADERS_LABELS} : {WORKERS_LABELS}"
    spec = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {"resourceRules": [pods]},
        "matchConditions": [{"name": "of-a-set", "expression": f'"{NAME}" in object.metadata.?labels.orValue({{}})'}],
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": mutation}}],
    }
    head = {"apiVersion": ADMISSION, "metadata": {"name": POLICY}}
    return [
        head | {"kind": "MutatingAdmissionPolicy", "spec": spec},
        head | {"kind": "MutatingAdmissionPolicyBinding", "spec": {"policyName": POLICY}},
    ]
