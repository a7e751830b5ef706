"""Every right that Leeboard uses, in one table. /readyz, `leeboard doctor` and the test of the shipped roles read it.

`control.rights` checks whether a right is granted. The settings of an installation decide which rights it needs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from app.model.names import NATIVE_API


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """One verb on one resource, as a rule of a Role grants it."""

    group: str
    """Empty for the core group."""
    resource: str
    """Including its subresource: `pods/eviction`."""
    verb: str
    without: str
    """What stops working without this right."""
    namespace: str = ""
    """Empty means all namespaces, which a ClusterRole grants."""
    name: str = ""
    """The name of one object; empty means all objects."""
    optional: bool = False
    """Only some pods need it. Leeboard is ready without it."""
    path: str = ""
    """A URL path instead of a resource, such as /metrics."""

    def __repr__(self) -> str:
        return f"<Right {self.subject}>"

    @property
    def subject(self) -> str:
        """The permitted action, in the words of a Role."""
        if self.path:
            return f"{self.verb} {self.path}"
        name = f" {self.name}" if self.name else ""
        where = f", namespace {self.namespace}" if self.namespace else ""
        return f'{self.verb} {self.resource}{name} (apiGroup "{self.group}"{where})'

    @property
    def sentence(self) -> str:
        """A sentence that the right is missing, and what stops working."""
        return f"may not {self.subject}: {self.without}"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user, as the API server names it."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


NO_BUDGETS = "PodDisruptionBudgets are not considered when victims are chosen"
NOTHING_DECIDED = "nothing is decided"

KAI = "scheduling.run.ai"
ADMISSION_GROUP = "admissionregistration.k8s.io"


def _of(group: str, resource: str, verbs: Iterable[str], without: str, *, optional: bool = False) -> Iterator[Right]:
    for verb in verbs:
        yield Right(group=group, resource=resource, verb=verb, without=without, optional=optional)


ASKING = Right(
    group="authorization.k8s.io",
    resource="selfsubjectaccessreviews",
    verb="create",
    without="it is not known which rights are missing",
)
"""The right to ask whether the others are granted. Clusters without special hardening grant it to every user."""

ALWAYS: tuple[Right, ...] = (
    ASKING,
    *_of("", "nodes", ("list", "watch"), NOTHING_DECIDED),
    *_of("", "pods", ("list", "watch"), NOTHING_DECIDED),
    *_of(NATIVE_API, "priorityclasses", ("list", "watch"), NOTHING_DECIDED),
    *_of(KAI, "queues", ("list", "watch"), NOTHING_DECIDED),
    *_of(KAI, "podgroups", ("list", "watch"), NOTHING_DECIDED),
    *_of(NATIVE_API, "podgroups", ("list", "watch"), "pods that name a native PodGroup wait", optional=True),
    *_of("kai.scheduler", "topologies", ("list", "watch"), "PodGroups with a topology wait", optional=True),
    *_of("leeboard.dev", "gpunodes", ("list", "watch"), "pods that request a part of a GPU wait", optional=True),
    *(
        right
        for kind in ("deviceclasses", "resourceslices", "devicetaintrules", "resourceclaims")
        for right in _of("resource.k8s.io", kind, ("list", "watch"), "pods with ResourceClaims wait", optional=True)
    ),
    *_of("", "pods", ("get",), "the outcome of a write without an answer stays unknown, and its gang waits"),
    *_of("", "pods/binding", ("create",), "no pod gets its node"),
    *_of(
        "", "pods/status", ("patch",), "pods that wait are not tried again when their turn comes, and no pod is evicted"
    ),
    *_of("", "pods/eviction", ("create",), "no pod is evicted, so nothing is reclaimed, preempted or consolidated"),
    *_of(
        "",
        "pods",
        ("delete",),
        "pods that a PodDisruptionBudget protects are never evicted, even when quotas require it",
    ),
    *_of("policy", "poddisruptionbudgets", ("list",), NO_BUDGETS, optional=True),
    *_of(KAI, "queues/status", ("patch",), "queues do not show what they hold, and a restart forgets past usage"),
    *_of(KAI, "podgroups/status", ("patch",), "PodGroups do not show why they wait"),
    *_of(NATIVE_API, "podgroups/status", ("patch",), "native PodGroups do not show why they wait", optional=True),
    *_of("events.k8s.io", "events", ("create",), "no event says why a pod waits or was evicted"),
)
"""The rights that every installation needs."""

ADMISSION: tuple[Right, ...] = (*_of("", "pods", ("patch",), "pods that admission holds never start"),)
"""The rights for holding pods at admission."""


GROUPING: tuple[Right, ...] = (
    *_of(
        KAI,
        "podgroups",
        ("create", "patch"),
        "no PodGroup objects are written for pods that are grouped by their owners",
    ),
)
"""The rights for grouping pods by their owners, in addition to reading the owners."""


CALLERS: tuple[Right, ...] = (
    *_of("authentication.k8s.io", "tokenreviews", ("create",), "metrics and the read API refuse every request"),
    *_of("authorization.k8s.io", "subjectaccessreviews", ("create",), "metrics and the read API refuse every request"),
)
"""The rights for authenticating the readers of metrics and the read API."""


def of_owners(resources: Iterable[tuple[str, str]]) -> tuple[Right, ...]:
    """Return the rights to read the owners of pods, by API group and plural.

    No cluster has all of these kinds, so none of these rights is required. Without one, the search for a pod's owners
    ends at that kind (KAI's rule).
    """
    return tuple(
        Right(group=group, resource=plural, verb=verb, without=f"pods are grouped as if no {plural} owned them")
        for group, plural in resources
        for verb in ("get", "list", "watch")
    )


def of_sharing(namespace: str) -> tuple[Right, ...]:
    """Return the rights to share GPUs, in addition to those of admission, which sharing requires."""
    without = "no GPU can be reserved for sharing, so pods that request a part of a GPU wait"
    return (Right(group="", resource="pods", verb="create", without=without, namespace=namespace),)


def of_provisioning_requests() -> tuple[Right, ...]:
    """Return the rights to request nodes from an autoscaler by ProvisioningRequests."""
    without = "no nodes are requested from the cluster autoscaler"
    stays = "requests to the cluster autoscaler are not withdrawn, so it may add nodes that no pod needs"
    requests = "provisioningrequests"
    return (
        *_of("autoscaling.x-k8s.io", requests, ("list", "watch", "create"), without),
        *_of("autoscaling.x-k8s.io", requests, ("delete",), stays),
        *_of("", "podtemplates", ("create",), without),
        *_of("", "podtemplates", ("get", "delete"), stays),
    )


def of_scaling_pods(namespace: str) -> tuple[Right, ...]:
    """Return the rights to request nodes from an autoscaler by scaling pods, in addition to the common rights."""
    without = "no scaling pods are created, so the cluster autoscaler adds no nodes for held pods"
    return (Right(group="", resource="pods", verb="create", without=without, namespace=namespace),)


def of_lease(namespace: str, name: str) -> tuple[Right, ...]:
    """Return the rights to see which kube-scheduler leads."""
    without = "no replica knows whether it is the one that decides"
    return (
        Right(
            group="coordination.k8s.io",
            resource="leases",
            verb="get",
            without=without,
            namespace=namespace,
            name=name,
        ),
    )


def of_secret(namespace: str, name: str) -> tuple[Right, ...]:
    """Return the rights to share a CA with the other replicas."""
    without = "replicas cannot share a CA, so admission has no certificate that the API server trusts"
    return tuple(
        Right(group="", resource="secrets", verb=verb, without=without, namespace=namespace, name=name)
        for verb in ("get", "update")
    )


def of_front_proxy() -> tuple[Right, ...]:
    """Return the right to know the API server's front proxy, in addition to those for readers."""
    without = "the aggregated API refuses every request, because the API server's front proxy is not known"
    return (
        Right(
            group="",
            resource="configmaps",
            verb="get",
            without=without,
            namespace="kube-system",
            name="extension-apiserver-authentication",
        ),
    )


def of_api_service(name: str) -> tuple[Right, ...]:
    """Return the rights to maintain the caBundle of Leeboard's APIService."""
    without = "the API server stops trusting the aggregated API when the CA changes or the caBundle is lost"
    group, resource = "apiregistration.k8s.io", "apiservices"
    return tuple(
        Right(group=group, resource=resource, verb=verb, without=without, name=name) for verb in ("get", "patch")
    )


def of_webhook_configurations(name: str) -> tuple[Right, ...]:
    """Return the rights to maintain the caBundle of Leeboard's webhook configurations."""
    without = "the API server stops trusting the admission webhooks when the CA changes or the caBundle is lost"
    return tuple(
        Right(group=ADMISSION_GROUP, resource=resource, verb=verb, without=without, name=name)
        for resource in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
        for verb in ("get", "patch")
    )
