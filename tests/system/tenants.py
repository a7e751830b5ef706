"""A tenant of the threat model: writes pods, their owners and PodGroups in one namespace, and nothing else."""

import ssl
from collections.abc import Mapping, Sequence

from tests.system.api import Api, ApiError, Object
from tests.system.bed import Bed
from tests.system.identities import User
from tests.system.waiting import eventually

TEAM = "team-a"
"""Namespace of the tenant, and name of their queue."""
RBAC = "rbac.authorization.k8s.io"
WRITES = ["create", "get", "list", "update", "patch", "delete"]


def settle(api: Api) -> None:
    """Create the tenant's namespace and rights, and wait until pods can be created there."""
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}})
    rules = [
        _rule("", ["pods", "pods/status", "pods/ephemeralcontainers", "replicationcontrollers"], WRITES),
        _rule("batch", ["jobs", "cronjobs"], WRITES),
        _rule("apps", ["deployments", "replicasets", "statefulsets", "daemonsets"], WRITES),
        _rule("scheduling.run.ai", ["podgroups"], WRITES),
        _rule("scheduling.k8s.io", ["podgroups"], WRITES),
    ]
    name = {"name": "tenant", "namespace": TEAM}
    api.apply({"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": name, "rules": rules})
    reference = {"apiGroup": RBAC, "kind": "Role", "name": "tenant"}
    binding = {"apiVersion": f"{RBAC}/v1", "kind": "RoleBinding", "metadata": name, "roleRef": reference}
    api.apply(binding | {"subjects": [subject(User.TENANT)]})
    account = f"/api/v1/namespaces/{TEAM}/serviceaccounts/default"
    eventually(lambda: api.find(account), within_s=20, what="the namespace has its service account")


def allow(  # noqa: PLR0913 - a right is no less than this
    api: Api, name: str, to: Object, *, group: str, resource: str, verbs: list[str], names: Sequence[str] = ()
) -> None:
    """Grant a subject a cluster-wide right under a name for `revoke`; an earlier right of that name is replaced."""
    rule = _rule(group, [resource], verbs) | ({"resourceNames": list(names)} if names else {})
    api.apply({"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": [rule]})
    reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": name}
    binding = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name}}
    api.apply(binding | {"roleRef": reference, "subjects": [to]})


def revoke(api: Api, name: str) -> None:
    """Revoke the right granted under that name."""
    api.delete(f"/apis/{RBAC}/v1/clusterrolebindings/{name}")
    api.delete(f"/apis/{RBAC}/v1/clusterroles/{name}")


def subject(user: User) -> Object:
    """Return a user as the subject of a right."""
    return {"apiGroup": RBAC, "kind": "User", "name": user.value[0]}


def accounts(namespace: str = TEAM) -> Object:
    """Return every service account of a namespace as the subject of a right."""
    return {"apiGroup": RBAC, "kind": "Group", "name": f"system:serviceaccounts:{namespace}"}


def refusal(api: Api, item: Object) -> str:
    """Try to create an object; return the API server's refusal, or nothing when it was created."""
    try:
        api.create(item)
    except ApiError as refused:
        return str(refused)
    return ""


def refused_patch(api: Api, path: str, body: Mapping[str, object]) -> str:
    """Try to change an object; return the API server's refusal, or nothing when it was changed."""
    try:
        api.patch(path, dict(body))
    except ApiError as refused:
        return str(refused)
    return ""


def of_controller(bed: Bed, api: Api, account: str) -> Api:
    """Return a client of one of Kubernetes' own controllers."""
    accounts_path = f"/api/v1/namespaces/kube-system/serviceaccounts/{account}"
    api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": "kube-system"}})
    asked: Object = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = api.call("POST", f"{accounts_path}/token", body=asked)["status"]["token"]
    return Api(bed.url, token=token, verify=ssl.create_default_context(cafile=bed.ca))


def _rule(group: str, resources: list[str], verbs: list[str]) -> Object:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs}
