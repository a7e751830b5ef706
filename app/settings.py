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


class Disruption(StrEnum):
    """The ways in which a plan may end running pods, by KAI's names of its actions."""

    CONSOLIDATE = "consolidate"
    RECLAIM = "reclaim"
    PREEMPT = "preempt"
    EVICT_STALE = "stalegangeviction"


class ResolveMethod(StrEnum):
    """Whose reclaim min-runtime protects a victim (KAI's `reclaimResolveMethod`)."""

    LCA = "lca"
    """That of the victim's ancestor just below the lowest common ancestor of its queue and the reclaimer's."""
    QUEUE = "queue"
    """That of the victim's own queue, or of the nearest ancestor that sets one."""


class Preset(StrEnum):
    """The source of defaults for unset settings."""

    LEEBOARD = "leeboard"
    KAI = "kai"


KAI_DEFAULTS: Mapping[str, object] = {
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
    """Path of a kubeconfig; without one the pod's service account is used."""
    profiles: Annotated[frozenset[str], NoDecode] = frozenset({"kai-scheduler"})
    """Scheduler names whose pods are managed; comma-separated in the environment."""
    preset: Preset = Preset.LEEBOARD
    """Whose defaults hold for settings that are not set: `leeboard`, or `kai`, with which plans are those of
    KAI-Scheduler. A setting that is set always wins."""
    placement: PlacementStrategy = PlacementStrategy.BINPACK
    """Whether nodes are filled one after the other (`binpack`) or all evenly (`spread`)."""

    webhook_host: str = "127.0.0.1"
    """Where the extender's verbs are served."""
    webhook_port: int = Field(default=8888, ge=0, le=65535)
    """The extender's verbs: loopback, for nobody but the kube-scheduler beside us. 0 takes a free port."""
    operations_host: str = "127.0.0.1"
    """Where health, metrics and the read API are served."""
    operations_port: int = Field(default=8080, ge=0, le=65535)
    """Health, metrics and the read API. 0 takes a free port."""
    anonymous_reads: bool = False
    """Whether metrics and the read API show everything to everybody. False: they ask for a token of the cluster, and
    name what is in a namespace only to those who may list pods there."""
    probe_host: str = "127.0.0.1"
    """Where probes are served."""
    probe_port: int | None = Field(default=None, ge=0, le=65535)
    """Health alone, on a port and a thread of its own, whatever the other ports suffer. Unset: only the operations port
    tells it. 0 takes a free port."""

    webhook_tls_dir: str | None = Field(default=None, validate_default=True)
    """Folder with `tls.crt`, `tls.key` and `ca.crt`: the extender's verbs are then served over TLS, to clients whose
    certificate that CA has signed. Required where `webhook_host` is not loopback."""

    admission_host: str = "127.0.0.1"
    """Where admission is served."""
    admission_port: int | None = Field(default=None, ge=0, le=65535)
    """Admission of pods, queues and PodGroups, over TLS. Unset: none is served. 0 takes a free port."""
    admission_tls_dir: str | None = None
    """Folder with `tls.crt` and `tls.key` that somebody else keeps, such as cert-manager. Unset: Leeboard makes and
    rotates certificates of its own."""
    certificate_secret: str = Field(default="", pattern=r"^$|^[^/]+/[^/]+$", validate_default=True)
    """`namespace/name` of the Secret in which replicas share the CA of the certificates they make."""
    certificate_names: Annotated[frozenset[str], NoDecode] = frozenset({"localhost", "127.0.0.1"})
    """Names and addresses by which the API server calls admission, comma-separated."""
    certificate_rotation_s: float = Field(default=30 * 24 * 3600.0, gt=0)
    """After so long a new serving certificate is made; each is valid three times as long, and a day at least."""
    ca_rotation_s: float = Field(default=5 * 365 * 24 * 3600.0, gt=0)
    """After so long a new CA is made; the one before it stays trusted until the next."""
    webhook_configuration: str = ""
    """Name of the MutatingWebhookConfiguration and ValidatingWebhookConfiguration whose caBundle is kept right. Empty:
    somebody else does that."""
    markers: Annotated[frozenset[str], NoDecode] = frozenset()
    """Extended resources that admission adds to managed pods, comma-separated, as kube-scheduler's configuration names
    them: `leeboard.dev/ask` where it asks us about such pods and no others, `leeboard.dev/bind` where it has us bind
    such pods and no others. Empty: it asks us about all pods of its own, and has us bind them."""
    gpu_runtime_class: str = ""
    """RuntimeClass that admission gives managed pods which ask for GPUs, or parts of them, and name none. Empty: no
    RuntimeClass."""

    scheduler_lease: str = Field(default="", pattern=r"^$|^[^/]+/[^/]+$")
    """`namespace/name` of the Lease that the kube-scheduler beside us competes for: this replica is active while the
    one that holds it is on our host. Empty: this is the only replica."""
    hostname: str = Field(default_factory=socket.gethostname)
    """How the holder's identity begins when it is the kube-scheduler beside us."""

    actions: Annotated[frozenset[Disruption], NoDecode] = frozenset(Disruption)
    """What may end pods that run, comma-separated: `consolidate`, `reclaim`, `preempt`, `stalegangeviction`. Empty:
    nobody is ever evicted."""
    stale_grace_s: float = Field(default=60.0, ge=0)
    """How long a gang may run with fewer pods than its minimum before the rest is evicted (KAI's default). For as long,
    but ten minutes at most, room is kept for its missing pods, as far as its queue's fair share allows that."""
    preempt_min_runtime_s: float = Field(default=10.0, ge=0)
    """For how long a running pod is safe from preemption in its own queue, where no queue says otherwise."""
    reclaim_min_runtime_s: float = Field(default=10.0, ge=0)
    """For how long a running pod is safe from being reclaimed by other queues, where no queue says otherwise."""
    consolidate_min_runtime_s: float = Field(default=10.0, ge=0)
    """For how long a running pod is safe from being moved to make room on its node."""
    reclaim_resolve_method: ResolveMethod = ResolveMethod.LCA
    """Which queue's reclaim min-runtime protects a victim: `lca` or `queue`."""
    borrow_last: bool = True
    """Whether PodGroups that stay within their queue's fair share start before those that borrow, and nobody borrows
    what another queue is owed: it would be reclaimed at once. False: by KAI's order alone."""
    patience_s: float = Field(default=300.0, ge=0)
    """For how long a PodGroup waits at most for what its queue is owed beyond its deserved share, before running pods
    leave for it that have worked for longer than it has waited (GPU-seconds are compared). A queue below its deserved
    share does not wait. 0: pods leave at once."""
    ageing_s: float | None = Field(default=120.0, gt=0)
    """From this age on nodes are kept free for the oldest PodGroup that finds no room and that its queue's fair share
    allows, so that small pods do not starve a large gang; younger pods of its queue leave it what is left of that
    share. Queues below what they deserve may use these nodes, and pods whose activeDeadlineSeconds ends them in time.
    What stands idle for one PodGroup is paid back before nodes are kept for the next: 2 % of the cluster in the long
    run. Empty: never."""
    fair_share_k: float = Field(default=0.0, ge=0, le=1000)
    """How strongly past usage lowers a queue's part of what is left over (KAI's `kValue`); 0: not at all."""
    usage_half_life_s: float = Field(default=7 * 24 * 3600.0, ge=60, le=10 * 365 * 24 * 3600)
    """After so long what a queue has used counts half (KAI's `halfLifePeriod`), from a minute to ten years."""
    usage_interval_s: float = Field(default=300.0, ge=10, le=24 * 3600)
    """How often past usage is brought up to date in fair shares, and written to the status of every queue that has
    any: a restart forgets no more than that."""
    eviction_ttl_s: float = Field(default=600.0, gt=0)
    """How long room is held for those who wait until evicted pods have left it; then they are planned anew."""

    promise_ttl_s: float = Field(default=60.0, gt=0)
    """How long a promise waits for kube-scheduler to ask before the space is given to others."""
    answered_ttl_s: float = Field(default=300.0, gt=0)
    """How long a promise holds after filter has answered it: kube-scheduler may have volumes to provision before it
    calls bind."""
    gang_barrier_s: float = Field(default=45.0, gt=0)
    """How long a member's bind waits for the rest of its gang; below the bind entry's httpTimeout (60 s)."""
    filter_patience_s: float = Field(default=1.0, ge=0)
    """How long a filter call waits for a plan that is being computed."""
    status_interval_s: float = Field(default=1.0, gt=0)
    """The least time between two status writes of one Queue or PodGroup."""

    pod_grouping: bool = True
    """Whether pods are grouped by what owns them (a Job, a RayCluster). False: only by PodGroups that they name."""

    workload_defaults: str = ""
    """What kinds of workloads get whose owners say nothing, as a JSON list of `{"typeName", "group", "priorityName",
    "preemptibility"}` (the `types` of KAI's ConfigMap). Empty: KAI's own, such as inference for a Deployment."""
    owners_project: bool = True
    """Whether the label `project` of a pod's owner names its queue where no queue label does (KAI's rule). False: only
    the pod's own does. Owners have that label for other ends, too, so that nobody checks who writes it there."""

    autoscaling: Autoscaling = Autoscaling.OFF
    """How a cluster autoscaler learns of held pods that quotas would let start and no node has room for: by a
    ProvisioningRequest for each PodGroup (`provisioning-request`), by pods that stand for them (`scaling-pods`), or not
    at all (`off`)."""
    autoscaling_class: str = Field(
        default="best-effort-atomic-scale-up.autoscaling.x-k8s.io", min_length=1, max_length=253
    )
    """What is asked of it by a ProvisioningRequest: cluster-autoscaler also knows
    `check-capacity.autoscaling.x-k8s.io`, GKE `queued-provisioning.gke.io`."""
    autoscaling_after_s: float = Field(default=30.0, ge=0)
    """How long there must have been no room before it is asked for."""
    autoscaling_namespace: str = Field(default="kai-scale-adjust", min_length=1, max_length=63)
    """Where the pods are that stand for others (KAI's name)."""

    gpu_sharing: bool = True
    """Whether pods may ask for parts of GPUs (by `gpu-fraction` and `gpu-memory`). False: they are refused."""
    reservation_namespace: str = Field(default="kai-resource-reservation", min_length=1, max_length=63)
    """Namespace of the pods that hold a whole GPU each, for others to share. Nobody else may create any there."""
    reservation_image: str = Field(default="registry.k8s.io/pause:3.10", min_length=1)
    """What these pods run: anything that waits for ever."""
    reservation_priority_class: str = "leeboard-reservation"
    """Their PriorityClass; above those of users, or their GPU could be taken from under the pods that share it."""
    reservation_grace_s: float = Field(default=60.0, gt=0)
    """For how long a GPU that nobody has a part of stays reserved, unless its last pod was seen to leave: another
    replica may have bound a pod to it, and whoever lost a promise there asks again."""
    device_ttl_s: float = Field(default=40.0, gt=0)
    """How long a pod waits until the node has given it a GPU to share (KAI's default); then it is planned anew."""
    agent_ttl_s: float = Field(default=600.0, gt=0)
    """For how long after its last report the agent of a node is trusted: then no device is opened there for sharing."""
    context_overhead_mib: int = Field(default=0, ge=0, le=1 << 20)
    """Memory that is set aside on a shared GPU for each pod beside what it asks for: what a CUDA context takes."""
    overuse_tolerance_mib: int = Field(default=1024, ge=0)
    """How much more memory than was promised may be in use on a GPU before it takes no new work, and before a pod is
    said to use more than it asked for."""
    evict_overuse_after_s: float | None = Field(default=None, gt=0)
    """After so long a pod is evicted that uses more memory of a shared GPU than it asked for. Unset: never."""

    audit_interval_s: float = Field(default=300.0, ge=0)
    """How often what the watches have shown is compared with what is stored, and repaired. 0: never."""

    rights_interval_s: float = Field(default=60.0, ge=0.5)
    """How often we ask the API server whether our service account may do all that we need."""

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
        if not value and known.data.get("admission_port") is not None and not known.data.get("admission_tls_dir"):
            sentence = (
                "name a Secret as namespace/name, or set LEEBOARD_ADMISSION_TLS_DIR: admission is served over TLS"
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
