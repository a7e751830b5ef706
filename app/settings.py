"""All settings, frozen, from `LEEBOARD_*` environment variables. An invalid value is reported with its variable."""

import socket
from collections.abc import Mapping
from enum import StrEnum
from ipaddress import ip_address
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict


class PlacementStrategy(StrEnum):
    """Whether pods fill one node after the other, or are spread evenly (KAI's `placementStrategy`)."""

    BINPACK = "binpack"
    SPREAD = "spread"


class Packing(StrEnum):
    """How `binpack` chooses the node of a pod."""

    EXPECTED_USE = "expected-use"
    """The node whose free GPUs stay most useful for typical pods of the cluster."""
    BEST_FIT = "best-fit"
    """The node with the least free GPUs, or the least free CPU for a pod without GPUs (KAI's rule)."""


class Disruption(StrEnum):
    """The ways in which a plan may end running pods, by KAI's names of its actions."""

    CONSOLIDATE = "consolidate"
    RECLAIM = "reclaim"
    PREEMPT = "preempt"
    EVICT_STALE = "stalegangeviction"


class ResolveMethod(StrEnum):
    """Whose reclaim min-runtime protects a victim (KAI's `reclaimResolveMethod`)."""

    LCA = "lca"
    """The min-runtime of the victim's ancestor just below the lowest common ancestor of its queue and the reclaimer's.
    """
    QUEUE = "queue"
    """The min-runtime of the victim's own queue, or of the nearest ancestor that sets one."""


class Preset(StrEnum):
    """The source of defaults for unset settings."""

    LEEBOARD = "leeboard"
    KAI = "kai"


KAI_DEFAULTS: Mapping[str, object] = {
    "packing": Packing.BEST_FIT,
    "borrow_last": False,
    "ageing_s": None,
    "preempt_min_runtime_s": 0.0,
    "reclaim_min_runtime_s": 0.0,
    "consolidate_min_runtime_s": 0.0,
    "patience_s": 0.0,
}
"""The defaults of the preset `kai`."""


class Autoscaling(StrEnum):
    """How a cluster autoscaler learns of held pods, which it cannot see."""

    OFF = "off"
    PROVISIONING_REQUEST = "provisioning-request"
    SCALING_PODS = "scaling-pods"


class Settings(BaseSettings):
    """One frozen value. It is read once at start."""

    model_config = SettingsConfigDict(
        env_prefix="LEEBOARD_", frozen=True, extra="ignore", allow_inf_nan=False, use_attribute_docstrings=True
    )

    kubeconfig: str | None = None
    """Path of a kubeconfig. Without it the service account of the pod is used."""
    profiles: Annotated[frozenset[str], NoDecode] = frozenset({"kai-scheduler"})
    """Scheduler names whose pods are managed; comma-separated in the environment."""
    preset: Preset = Preset.LEEBOARD
    """The defaults of settings that are not set: `leeboard` or `kai`. With `kai`, plans are those of KAI Scheduler. A
    setting that is set always wins.
    """
    placement: PlacementStrategy = PlacementStrategy.BINPACK
    """Whether pods fill one node after the other (`binpack`) or spread evenly over all nodes (`spread`)."""
    packing: Packing = Packing.EXPECTED_USE
    """How `binpack` chooses a node: by what typical pods could still use of it (`expected-use`), or the fullest
    (`best-fit`).
    """

    webhook_host: str = "127.0.0.1"
    """Address of the extender's webhooks."""
    webhook_port: int = Field(default=8888, ge=0, le=65535)
    """Port of the extender's webhooks. Only the kube-scheduler beside Leeboard calls them. 0 takes a free port."""
    operations_host: str = "127.0.0.1"
    """Address of health, metrics and the read API."""
    operations_port: int = Field(default=8080, ge=0, le=65535)
    """Port of health, metrics and the read API. 0 takes a free port."""
    anonymous_reads: bool = False
    """Whether metrics, the read API and the view show everything without a token. False: they require a token of the
    cluster, and show names in a namespace only to users that may list pods there.
    """
    view_host: str = "127.0.0.1"
    """Address of the view: the page, the state of the cluster and the stream of its changes."""
    view_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of the view, which a process beside this one serves. It passes on the rest of the read API. Unset: no view.
    0 takes a free port.
    """
    probe_host: str = "127.0.0.1"
    """Address of the probe port."""
    probe_port: int | None = Field(default=None, ge=0, le=65535)
    """Port that serves only health, in a thread of its own, so that load on other ports does not delay it. Unset: only
    the operations port serves health. 0 takes a free port.
    """

    webhook_tls_dir: str | None = Field(default=None, validate_default=True)
    """Folder with `tls.crt`, `tls.key` and `ca.crt`. With it the extender's webhooks use TLS, and clients need a
    certificate that this CA has signed. Required where `webhook_host` is not loopback.
    """

    admission_host: str = "127.0.0.1"
    """Address of the admission webhooks."""
    admission_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of the admission webhooks for pods, queues and PodGroups, over TLS. Unset: no admission. 0 takes a free
    port.
    """
    admission_tls_dir: str | None = None
    """Folder with `tls.crt` and `tls.key` that another tool maintains, such as cert-manager. Unset: Leeboard creates
    and rotates its own certificates.
    """
    aggregated_host: str = "127.0.0.1"
    """Address of the aggregated API."""
    aggregated_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of the aggregated API `view.leeboard.dev/v1`, over TLS: the read API through the API server, which says who
    asks. Only the API server's front proxy may connect. Its certificate is that of the admission webhooks. Unset: no
    aggregated API. 0 takes a free port.
    """
    certificate_secret: str = Field(default="", pattern=r"^$|^[^/]+/[^/]+$", validate_default=True)
    """`namespace/name` of the Secret through which replicas share the CA of their certificates."""
    certificate_names: Annotated[frozenset[str], NoDecode] = frozenset({"localhost", "127.0.0.1"})
    """Names and addresses by which the API server calls the admission webhooks and the aggregated API,
    comma-separated.
    """
    certificate_rotation_s: float = Field(default=30 * 24 * 3600.0, gt=0)
    """A new serving certificate is created after this time. A certificate is valid three times as long, and at least a
    day.
    """
    ca_rotation_s: float = Field(default=5 * 365 * 24 * 3600.0, gt=0)
    """A new CA is created after this time. The previous CA stays trusted until the next rotation."""
    webhook_configuration: str = ""
    """Name of the MutatingWebhookConfiguration and ValidatingWebhookConfiguration whose caBundle Leeboard maintains.
    Empty: another tool maintains it.
    """
    markers: Annotated[frozenset[str], NoDecode] = frozenset()
    """Extended resources that admission adds to managed pods, comma-separated, as kube-scheduler's configuration names
    them. With `leeboard.dev/ask`, kube-scheduler asks Leeboard only about pods with this resource. With
    `leeboard.dev/bind`, Leeboard binds only pods with this resource. Empty: kube-scheduler asks about all of its
    pods, and Leeboard binds all of them.
    """
    gpu_runtime_class: str = ""
    """RuntimeClass that admission sets on managed pods that request GPUs or parts of GPUs and name no RuntimeClass.
    Empty: admission sets none.
    """

    scheduler_lease: str = Field(default="", pattern=r"^$|^[^/]+/[^/]+$")
    """`namespace/name` of the leader election Lease of the kube-scheduler beside Leeboard. This replica is active while
    the holder of the Lease is on the same host. Empty: this is the only replica.
    """
    hostname: str = Field(default_factory=socket.gethostname)
    """Prefix of the Lease holder's identity when the holder is the kube-scheduler beside Leeboard."""

    actions: Annotated[frozenset[Disruption], NoDecode] = frozenset(Disruption)
    """The actions that may end running pods, comma-separated: `consolidate`, `reclaim`, `preempt`, `stalegangeviction`.
    Empty: no pod is evicted.
    """
    stale_grace_s: float = Field(default=60.0, ge=0)
    """How long a gang may run with fewer pods than its minimum before its other pods are evicted (KAI's default). For
    the same time, but at most ten minutes, room is kept for its missing pods, as far as the fair share of its queue
    allows.
    """
    preempt_min_runtime_s: float = Field(default=10.0, ge=0)
    """How long a running pod is safe from preemption in its own queue, where no queue sets another value."""
    reclaim_min_runtime_s: float = Field(default=10.0, ge=0)
    """How long a running pod is safe from reclaim by other queues, where no queue sets another value."""
    consolidate_min_runtime_s: float = Field(default=10.0, ge=0)
    """How long a running pod is safe from consolidation, which moves pods to make room on their node."""
    reclaim_resolve_method: ResolveMethod = ResolveMethod.LCA
    """Whose reclaim min-runtime protects a victim. `queue`: that of the victim's own queue. `lca`: that of the victim's
    ancestor just below the lowest common ancestor with the reclaimer's queue.
    """
    borrow_last: bool = True
    """Whether PodGroups within the fair share of their queue start before PodGroups that borrow. No queue then borrows
    what another queue is owed, because it would be reclaimed at once. False: only KAI's order decides.
    """
    patience_s: float = Field(default=300.0, ge=0)
    """The longest wait of a PodGroup for what its queue is owed beyond its deserved share. Running pods that have
    worked longer than the PodGroup has waited (in GPU-seconds) are safe until then. A queue below its deserved share
    does not wait to reclaim. Where pods only move, the longest wait is 288 times as long, for consolidation in every
    queue. 0: pods are evicted at once.
    """
    ageing_s: float | None = Field(default=120.0, gt=0)
    """From this age on, nodes are kept free for the oldest PodGroup that finds no room and that the fair share of its
    queue allows. So small pods do not starve a large gang. Younger pods of its queue may use only what it leaves of
    that share. Queues below their deserved share may use these nodes, and so may pods whose activeDeadlineSeconds
    ends them in time. Idle time of kept nodes is paid back before nodes are kept for the next PodGroup: 2 % of the
    cluster in the long run. Empty: never.
    """
    fair_share_k: float = Field(default=0.0, ge=0, le=1000)
    """How strongly past usage lowers a queue's part of the surplus (KAI's `kValue`). 0: not at all."""
    usage_half_life_s: float = Field(default=7 * 24 * 3600.0, ge=60, le=10 * 365 * 24 * 3600)
    """After this time past usage of a queue counts half (KAI's `halfLifePeriod`). From a minute to ten years."""
    usage_interval_s: float = Field(default=300.0, ge=10, le=24 * 3600)
    """How often fair shares are updated with past usage, and past usage is written to the status of the queues. A
    restart loses at most the usage of one interval.
    """
    eviction_ttl_s: float = Field(default=600.0, gt=0)
    """How long room is held for pods that wait for evicted pods to end. After this time they are planned again."""

    promise_ttl_s: float = Field(default=60.0, gt=0)
    """How long a reservation waits for kube-scheduler's call before other pods may use the room."""
    answered_ttl_s: float = Field(default=300.0, gt=0)
    """How long a reservation holds after filter has answered. kube-scheduler may provision volumes before it calls
    bind.
    """
    gang_barrier_s: float = Field(default=45.0, gt=0)
    """How long the bind call of a gang member waits for the other members. Must be below the httpTimeout of the bind
    entry in kube-scheduler's configuration (60 s).
    """
    filter_patience_s: float = Field(default=1.0, ge=0)
    """How long a filter call waits for a plan in progress."""
    status_interval_s: float = Field(default=1.0, gt=0)
    """The shortest time between two status writes of one Queue or PodGroup."""

    pod_grouping: bool = True
    """Whether pods are grouped by their owners (a Job, a RayCluster). False: only by PodGroups that the pods name."""

    kube_scheduler_groups: bool = False
    """Whether kube-scheduler has the feature gate GenericWorkload. It then schedules the pods of a native PodGroup
    together, and writes its status. False: to kube-scheduler they are single pods."""

    workload_defaults: str = ""
    """Defaults for kinds of workloads whose owners set no values, as a JSON list of `{"typeName", "group",
    "priorityName", "preemptibility"}` (the `types` of KAI's ConfigMap). Empty: KAI's defaults, such as inference for
    a Deployment.
    """
    owners_project: bool = True
    """Whether the label `project` of a pod's owner names its queue where no queue label does (KAI's rule). False: only
    the label of the pod itself does. Owners carry this label for other purposes too, so its values are not
    validated.
    """

    autoscaling: Autoscaling = Autoscaling.OFF
    """How a cluster autoscaler learns of held pods that quotas allow and no node has room for: by a ProvisioningRequest
    for each PodGroup (`provisioning-request`), by scaling pods that request the same room (`scaling-pods`), or not
    at all (`off`).
    """
    autoscaling_class: str = Field(
        default="best-effort-atomic-scale-up.autoscaling.x-k8s.io", min_length=1, max_length=253
    )
    """Provisioning class of the ProvisioningRequests. cluster-autoscaler also supports
    `check-capacity.autoscaling.x-k8s.io`, GKE `queued-provisioning.gke.io`.
    """
    autoscaling_after_s: float = Field(default=30.0, ge=0)
    """How long a PodGroup must have found no room before nodes are requested for it."""
    autoscaling_namespace: str = Field(default="kai-scale-adjust", min_length=1, max_length=63)
    """Namespace of the scaling pods (KAI's name)."""

    gpu_sharing: bool = True
    """Whether pods may request parts of GPUs (by `gpu-fraction` and `gpu-memory`). False: such pods are refused."""
    reservation_namespace: str = Field(default="kai-resource-reservation", min_length=1, max_length=63)
    """Namespace of the reservation pods. Each holds a whole GPU for pods that share it. Only Leeboard may create pods
    there.
    """
    reservation_image: str = Field(default="registry.k8s.io/pause:3.10", min_length=1)
    """Image of the reservation pods. It must run until it is stopped."""
    reservation_priority_class: str = "leeboard-reservation"
    """PriorityClass of the reservation pods. It must be above the classes of users. Otherwise a reservation pod could
    be preempted while other pods share its GPU.
    """
    reservation_grace_s: float = Field(default=60.0, gt=0)
    """How long a shared GPU without pods stays reserved, unless its last pod was seen to end. Another replica may have
    bound a pod to it. A pod that has lost its reservation there is planned again.
    """
    device_ttl_s: float = Field(default=40.0, gt=0)
    """How long a pod waits until the node has allocated a GPU to share (KAI's default). After this time it is planned
    again.
    """
    agent_ttl_s: float = Field(default=600.0, gt=0)
    """How long the last report of a node's agent is trusted. After this time no further GPU of the node is opened for
    sharing.
    """
    context_overhead_mib: int = Field(default=0, ge=0, le=1 << 20)
    """Memory that is set aside on a shared GPU for each pod in addition to its request: the size of a CUDA context."""
    overuse_tolerance_mib: int = Field(default=1024, ge=0)
    """How much more memory than reserved may be in use on a GPU before it takes no new work, and before a pod is
    reported to use more than it requested.
    """
    evict_overuse_after_s: float | None = Field(default=None, gt=0)
    """A pod that uses more memory of a shared GPU than it requested is evicted after this time. Unset: never."""

    audit_interval_s: float = Field(default=300.0, ge=0)
    """How often the objects seen by watches are compared with those in the API server, and repaired. 0: never."""

    record_dir: str | None = None
    """Folder for recordings, which `leeboard replay` reads: what reached the service, and what it did. Unset: none."""
    record_mib: int = Field(default=512, ge=2)
    """The most that recordings may take on disk, in MiB. A recording ends at half of this; older ones are removed."""

    rights_interval_s: float = Field(default=60.0, ge=0.5)
    """How often Leeboard checks with the API server whether its service account has all required rights."""

    @model_validator(mode="before")
    @classmethod
    def _take_the_presets_defaults(cls, given: Mapping[str, object]) -> Mapping[str, object]:
        return {**KAI_DEFAULTS, **given} if given.get("preset") == Preset.KAI else given

    @field_validator("profiles", "actions", "certificate_names", "markers", mode="before")
    @classmethod
    def _split_on_commas(cls, value: object) -> object:
        return frozenset(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("ageing_s", mode="before")
    @classmethod
    def _take_empty_as_never(cls, value: object) -> object:
        return None if value == "" else value

    @field_validator("profiles")
    @classmethod
    def _name_somebody(cls, value: frozenset[str]) -> frozenset[str]:
        if not value:
            raise PydanticCustomError("nobody", "name at least one scheduler, or no pod would be managed")
        return value

    @field_validator("webhook_tls_dir")
    @classmethod
    def _guard_what_others_reach(cls, value: str | None, known: ValidationInfo) -> str | None:
        # A client that reaches the verbs can bind pods. HAMi's open port allowed this to every pod in the cluster.
        host = known.data.get("webhook_host", "127.0.0.1")
        if value is None and not _is_loopback(host):
            sentence = "name a folder with certificates, since LEEBOARD_WEBHOOK_HOST {host} is not loopback"
            raise PydanticCustomError("unguarded", sentence, {"host": host})
        return value

    @field_validator("certificate_secret")
    @classmethod
    def _have_a_certificate(cls, value: str, known: ValidationInfo) -> str:
        served = [name for name in ("admission", "aggregated") if known.data.get(f"{name}_port") is not None]
        if not value and served and not known.data.get("admission_tls_dir"):
            sentence = (
                "name a Secret as namespace/name, or set LEEBOARD_ADMISSION_TLS_DIR: admission and the aggregated API"
                " are served over TLS"
            )
            raise PydanticCustomError("no_certificate", sentence)
        return value


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
