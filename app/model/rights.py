"""Every right that Leeboard uses, once: /readyz, `leeboard doctor` and the test of the shipped roles read this table.

What asks whether a right is granted is `control.rights`; which of them an installation needs follows from its settings.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """One verb on one resource, as a rule of a Role grants it."""

    group: str
    """Empty for the core group."""
    resource: str
    """With its subresource: `pods/eviction`."""
    verb: str
    without: str
    """What stops working when it is not granted."""
    namespace: str = ""
    """Empty: in all namespaces, which a ClusterRole grants."""
    name: str = ""
    """The one object it is about; empty: all of them."""
    optional: bool = False
    """Only some pods need it: without it Leeboard is ready."""
    path: str = ""
    """A URL instead of a resource, such as /metrics."""

    def __repr__(self) -> str:
        return f"<Right {self.subject}>"

    @property
    def subject(self) -> str:
        """Say what may be done, in the words of a Role."""
        if self.path:
            return f"{self.verb} {self.path}"
        name = f" {self.name}" if self.name else ""
        where = f", namespace {self.namespace}" if self.namespace else ""
        return f'{self.verb} {self.resource}{name} (apiGroup "{self.group}"{where})'

    @property
    def sentence(self) -> str:
        """Say that it is missing, and what stops working."""
        return f"may not {self.subject}: {self.without}"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """The user that a token belongs to, as the API server names them."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


NO_BUDGETS = "nobody is spared for the sake of a PodDisruptionBudget"
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
"""What it takes to ask whether we have the others; clusters that are not hardened grant it to everybody."""

ALWAYS: tuple[Right, ...] = (
    ASKING,
    *_of("", "nodes", ("list", "watch"), NOTHING_DECIDED),
    *_of("", "pods", ("list", "watch"), NOTHING_DECIDED),
    *_of("scheduling.k8s.io", "priorityclasses", ("list", "watch"), NOTHING_DECIDED),
    *_of(KAI, "queues", ("list", "watch"), NOTHING_DECIDED),
    *_of(KAI, "podgroups", ("list", "watch"), NOTHING_DECIDED),
    *_of("kai.scheduler", "topologies", ("list", "watch"), "PodGroups with a topology wait", optional=True),
    *_of("leeboard.dev", "gpunodes", ("list", "watch"), "pods that ask for a part of a GPU wait", optional=True),
    *_of("", "pods", ("get",), "a write whose outcome is unknown is never settled, and its gang waits"),
    *_of("", "pods/binding", ("create",), "no pod gets its node"),
    *_of("", "pods/status", ("patch",), "parked pods are not woken when their turn comes, and nobody is evicted"),
    *_of("", "pods/eviction", ("create",), "nobody is evicted, so nothing is reclaimed, preempted or consolidated"),
    *_of("", "pods", ("delete",), "pods that a PodDisruptionBudget guards are never evicted, whatever the quotas say"),
    *_of("policy", "poddisruptionbudgets", ("list",), NO_BUDGETS, optional=True),
    *_of(KAI, "queues/status", ("patch",), "queues do not show what they hold, and a restart forgets past usage"),
    *_of(KAI, "podgroups/status", ("patch",), "PodGroups do not show why they wait"),
    *_of("events.k8s.io", "events", ("create",), "nobody reads in an event why a pod waits or was evicted"),
)
"""What every installation needs."""

ADMISSION: tuple[Right, ...] = (*_of("", "pods", ("patch",), "held pods are never released"),)
"""What is needed where pods are held at admission."""


GROUPING: tuple[Right, ...] = (
    *_of(KAI, "podgroups", ("create", "patch"), "nobody sees the PodGroups that pods get by what owns them"),
)
"""What is needed where pods are grouped by what owns them, beside the owners themselves."""


CALLERS: tuple[Right, ...] = (
    *_of("authentication.k8s.io", "tokenreviews", ("create",), "metrics and the read API answer nobody"),
    *_of("authorization.k8s.io", "subjectaccessreviews", ("create",), "metrics and the read API answer nobody"),
)
"""What is needed where those who read metrics and the read API have to say who they are."""


def of_owners(resources: Iterable[tuple[str, str]]) -> tuple[Right, ...]:
    """Return what it takes to read the owners of pods, by API group and plural.

    Nobody has all of these kinds, so that none of these rights is counted on: where one is missing, the way from a pod
    to its owners ends (KAI's rule).
    """
    return tuple(
        Right(group=group, resource=plural, verb=verb, without=f"pods are grouped as if no {plural} owned them")
        for group, plural in resources
        for verb in ("get", "list", "watch")
    )


def of_sharing(namespace: str) -> tuple[Right, ...]:
    """Return what it takes to give out parts of GPUs, beside admission, without which nobody gets one."""
    without = "no GPU can be reserved for those who share it, so whoever asks for a part of one waits"
    return (Right(group="", resource="pods", verb="create", without=without, namespace=namespace),)


def of_provisioning_requests() -> tuple[Right, ...]:
    """Return what it takes to ask an autoscaler for nodes by ProvisioningRequests."""
    without = "the cluster autoscaler is asked for no nodes"
    stays = "what was asked of the cluster autoscaler is not taken back, so it may add nodes for nobody"
    requests = "provisioningrequests"
    return (
        *_of("autoscaling.x-k8s.io", requests, ("list", "watch", "create"), without),
        *_of("autoscaling.x-k8s.io", requests, ("delete",), stays),
        *_of("", "podtemplates", ("create",), without),
        *_of("", "podtemplates", ("get", "delete"), stays),
    )


def of_scaling_pods(namespace: str) -> tuple[Right, ...]:
    """Return what it takes to ask an autoscaler for nodes by pods that stand for others, beside what all need."""
    without = "no pod stands for those that are held, so the cluster autoscaler adds no nodes for them"
    return (Right(group="", resource="pods", verb="create", without=without, namespace=namespace),)


def of_lease(namespace: str, name: str) -> tuple[Right, ...]:
    """Return what it takes to see which kube-scheduler leads."""
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
    """Return what it takes to share a CA with the other replicas."""
    without = "replicas cannot share a CA, so admission has no certificate that the API server trusts"
    return tuple(
        Right(group="", resource="secrets", verb=verb, without=without, namespace=namespace, name=name)
        for verb in ("get", "update")
    )


def of_webhook_configurations(name: str) -> tuple[Right, ...]:
    """Return what it takes to keep the caBundle of our own webhook configurations right."""
    without = "the API server stops trusting our admission when the CA changes or the caBundle is lost"
    return tuple(
        Right(group=ADMISSION_GROUP, resource=resource, verb=verb, without=without, name=name)
        for resource in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
        for verb in ("get", "patch")
    )
