"""The rendered chart, and its policies in force on a real API server."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count

from tests.deploy import rendering
from tests.system.api import Api, ApiError, Object, collection_of
from tests.system.controlplane import build
from tests.system.features import HAS_MUTATING_POLICIES
from tests.system.waiting import eventually

NAMESPACE = "leeboard"
ADMISSION = "admissionregistration.k8s.io/v1"
POLICIES = "templates/policies/*"
"""Files of the chart to which `objects` may be limited."""

_sentinels = count()


def objects(  # noqa: PLR0913 - every argument is one value of the chart that tests turn
    *,
    form: str = "own-scheduler",
    profile: str = "kai-compatible",
    policies: str = "auto",
    values: Mapping[str, str] | None = None,
    kubernetes: str = build.KUBERNETES_VERSION,
    only: str | None = None,
) -> list[Object]:
    """Render the chart as Helm would for a cluster of that version; `values` are further `--set` arguments."""
    own = {"security.profile": profile, "admission.policies": policies}
    arguments = [f"--set={key}={value}" for key, value in (own | dict(values or {})).items()]
    if only:
        arguments.append(f"--show-only={only}")
    try:
        return rendering.objects(rendering.rendered(*arguments, kubernetes=kubernetes, form=form))
    except rendering.ChartError as refused:
        # Helm's message for "these files render to nothing", which is a valid result here.
        if only and "could not find template" in str(refused):
            return []
        raise


@contextmanager
def policies_in_force(
    api: Api,
    *,
    form: str = "own-scheduler",
    profile: str = "kai-compatible",
    policies: str = "auto",
    values: Mapping[str, str] | None = None,
) -> Iterator[Sequence[Object]]:
    """Apply the chart's policies, wait until the API server applies them, and remove them again."""
    rules = objects(form=form, profile=profile, policies=policies, values=values, only=POLICIES)
    try:
        for rule in rules:
            api.apply(rule)
        await_policies(api)
        yield rules
    finally:
        for rule in rules:
            api.delete(f"{collection_of(rule)}/{rule['metadata']['name']}")
        await_policies(api)


def await_policies(api: Api) -> None:
    """Wait until the API server applies every policy written or deleted before.

    It reads policies, then bindings, in the order of their writes: when one written now is in force, the earlier ones
    are.
    """
    name = f"sentinel-{next(_sentinels)}"
    kinds = ("Validating", "Mutating") if HAS_MUTATING_POLICIES else ("Validating",)
    rules = [rule for kind in kinds for rule in _sentinel(kind, name)]
    for rule in rules:
        api.create(rule)
    eventually(lambda: _is_heeded(api, name), within_s=30.0, what="policies are in force")
    for rule in rules:
        api.delete(f"{collection_of(rule)}/{name}")


def _sentinel(kind: str, name: str) -> list[Object]:
    """Build a policy that marks the ConfigMap of its name, or refuses it once it is marked where policies can mark."""
    resources = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    spec: Object = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [resources]},
        "matchConditions": [{"name": "mine", "expression": f'object.metadata.name == "{name}"'}],
    }
    if kind == "Validating":
        unmarked = 'object.?data[?"marked"].orValue("") != "true"'
        spec["validations"] = [{"expression": unmarked if HAS_MUTATING_POLICIES else "false", "message": name}]
        binding: Object = {"policyName": name, "validationActions": ["Deny"]}
    else:
        marking = 'Object{data: {"marked": "true"}}'
        spec["reinvocationPolicy"] = "Never"
        spec["mutations"] = [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": marking}}]
        binding = {"policyName": name}
    head = {"apiVersion": ADMISSION, "metadata": {"name": name}}
    return [
        head | {"kind": f"{kind}AdmissionPolicy", "spec": spec},
        head | {"kind": f"{kind}AdmissionPolicyBinding", "spec": binding},
    ]


def _is_heeded(api: Api, name: str) -> bool:
    probe = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}}
    try:
        api.call("POST", collection_of(probe), body=probe, query={"dryRun": "All"})
    except ApiError as refused:
        return name in str(refused)
    return False
