"""Leeboard's counters for operators, in their own registry."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector


class Verb(StrEnum):
    """The extender's webhooks."""

    FILTER = "filter"
    PRIORITIZE = "prioritize"
    PREEMPT = "preempt"
    BIND = "bind"


class CallOutcome(StrEnum):
    """The result of one webhook call."""

    FITS = "fits"
    REFUSED = "refused"
    FAILED = "failed"
    SCORED = "scored"
    PREEMPTED = "preempted"
    BOUND = "bound"
    NOT_BOUND = "not_bound"
    BAD_REQUEST = "bad_request"
    ERROR = "error"


class Review(StrEnum):
    """The admission webhooks."""

    MUTATE = "mutate"
    VALIDATE = "validate"


class ReviewOutcome(StrEnum):
    """The result of one review."""

    UNCHANGED = "unchanged"
    CHANGED = "changed"
    DENIED = "denied"
    UNDECIDED = "undecided"
    BAD_REQUEST = "bad_request"
    ERROR = "error"


class PlanOutcome(StrEnum):
    """The result of one plan."""

    APPLIED = "applied"
    STALE = "stale"
    ERROR = "error"


class BindOutcome(StrEnum):
    """The result of one Binding write, or of the wait for it."""

    BOUND = "bound"
    GANG_INCOMPLETE = "gang_incomplete"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Drift(StrEnum):
    """How a stored object differed from what its watch had shown."""

    MISSED = "missed"
    STALE = "stale"
    GONE = "gone"


class Step(StrEnum):
    """The step in which processing of a watched object failed."""

    READ = "read"
    LEARN = "learn"
    APPLY = "apply"


class EvictionCause(StrEnum):
    """Why Leeboard evicts a pod: an action of a plan, or a fault of the pod or its GPU."""

    CONSOLIDATE = "consolidate"
    RECLAIM = "reclaim"
    PREEMPT = "preempt"
    EVICT_STALE = "stalegangeviction"
    OVERUSE = "overuse"
    DEVICE_LOST = "devicelost"


class Renewal(StrEnum):
    """What was created or read again."""

    SERVING = "serving"
    CA = "ca"


Kind = TypeVar("Kind", bound=StrEnum)


class CertificateMetrics:
    """The metrics of the certificates of this process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._renewals = Counter(
            "leeboard_certificate_renewals", "Certificates that were created or loaded.", ("kind",), registry=registry
        )
        self._expires = Gauge(
            "leeboard_certificate_expires_seconds",
            "When the serving certificate expires, in Unix time.",
            ("listener",),
            registry=registry,
        )
        self._problems = Gauge(
            "leeboard_certificate_problems",
            "Problems that keep a certificate from being renewed or trusted.",
            ("of",),
            registry=registry,
        )

    def renewed(self, kind: Renewal) -> None:
        """Count one new certificate."""
        self._renewals.labels(kind).inc()

    def expires(self, listener: str, at: float) -> None:
        """Set when the certificate of a listener expires, in Unix time."""
        self._expires.labels(listener).set(at)

    def problems(self, of: str, count: int) -> None:
        """Set the number of problems with the certificate of a listener, or with `ca-bundle`."""
        self._problems.labels(of).set(count)


class Metrics:
    """Every metric that is counted at an event. Values that can be read from state are collected at each scrape."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.webhooks = _webhooks(registry)
        self.reviews = _reviews(registry)
        self.plans = _outcomes(registry, "leeboard_plans", "Plans by outcome.", PlanOutcome)
        self.binds = _outcomes(
            registry, "leeboard_binds", "Binds that kube-scheduler delegated to Leeboard, by outcome.", BindOutcome
        )
        self.plan_duration = Histogram(
            "leeboard_plan_duration_seconds",
            "How long one plan took to compute.",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=registry,
        )
        self.plans_unfinished = _counter(
            registry, "leeboard_plans_unfinished", "Plans whose search for victims reached its budget."
        )
        self.budgets_overridden = _counter(
            registry, "leeboard_disruption_budgets_overridden", "Pods evicted against a PodDisruptionBudget."
        )
        self.evictions_failed = _counter(
            registry, "leeboard_evictions_failed", "Evictions given up after several tries."
        )
        self.promises_expired = _counter(
            registry, "leeboard_promises_expired", "Reservations that expired before kube-scheduler used them."
        )
        self.wakes = _counter(registry, "leeboard_wakes", "Parked pods that were woken because their turn came.")
        self.releases = _counter(
            registry, "leeboard_releases", "Held pods whose gate was removed because their turn came."
        )
        self.stalls = _counter(registry, "leeboard_loop_stalls", "Times the event loop was blocked for too long.")
        self.log_lines_dropped = _counter(
            registry, "leeboard_log_lines_dropped", "Log lines dropped because the output was too slow."
        )
        self.overuses = _counter(
            registry,
            "leeboard_gpu_memory_overuses",
            "Times a pod was reported to use more GPU memory than it requested.",
        )
        self.overusing_pods = Gauge(
            "leeboard_gpu_memory_overusing_pods",
            "Pods that use more GPU memory than they requested.",
            registry=registry,
        )
        self._pods_evicted = Counter(
            "leeboard_pods_evicted", "Pods evicted, by the action that chose them.", ("action",), registry=registry
        )
        for cause in EvictionCause:
            # A series that begins with its first event hides this event from rate().
            self._pods_evicted.labels(cause)
        self._pod_start_latency = Histogram(
            "leeboard_pod_start_latency_seconds",
            "How long pods waited from their creation until they were bound, by queue.",
            ("queue",),
            buckets=(1, 2.5, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600),
            registry=registry,
        )
        self._last_plan = Gauge(
            "leeboard_last_plan_timestamp_seconds",
            "When the active replica last had all waiting pods decided, in Unix time; 0 before the first time.",
            registry=registry,
        )
        self._watch_lost = Counter(
            "leeboard_watch_lost", "Watches that broke or stopped delivering events.", ("resource",), registry=registry
        )
        self._invalid_objects = Gauge(
            "leeboard_invalid_objects", "Objects that are invalid or cannot be used.", ("resource",), registry=registry
        )
        self._drift = Counter(
            "leeboard_audit_drift",
            "Objects that differed from what their watch had shown, and were repaired.",
            ("resource", "drift"),
            registry=registry,
        )
        self._objects_failed = Counter(
            "leeboard_objects_failed",
            "Failures of Leeboard's own code on a watched object, by step.",
            ("resource", "step"),
            registry=registry,
        )
        self.certificates = CertificateMetrics(registry)

    def planned(self, at: float) -> None:
        """Note that a turn of planning has succeeded, in Unix time."""
        self._last_plan.set(at)

    def start_latency(self, queue: str) -> Histogram:
        """Return the series of the pods of this queue."""
        return self._pod_start_latency.labels(queue)

    def pod_evicted(self, action: str) -> None:
        """Count one evicted pod."""
        self._pods_evicted.labels(action).inc()

    def watch_lost(self, resource: str) -> None:
        """Count one broken watch of this kind."""
        self._watch_lost.labels(resource).inc()

    def invalid_objects(self, resource: str, count: int) -> None:
        """Set how many objects of this kind cannot be used now."""
        self._invalid_objects.labels(resource).set(count)

    def drifted(self, resource: str, drift: Drift) -> None:
        """Count one object of this kind that the audit has repaired."""
        self._drift.labels(resource, drift).inc()

    def object_failed(self, resource: str, step: Step) -> None:
        """Count one object of this kind on which Leeboard's code has failed."""
        self._objects_failed.labels(resource, step).inc()


_ALWAYS = (CallOutcome.BAD_REQUEST, CallOutcome.ERROR)
OUTCOMES: Mapping[Verb, tuple[CallOutcome, ...]] = {
    Verb.FILTER: (CallOutcome.FITS, CallOutcome.REFUSED, CallOutcome.FAILED, *_ALWAYS),
    Verb.PRIORITIZE: (CallOutcome.SCORED, *_ALWAYS),
    Verb.PREEMPT: (CallOutcome.PREEMPTED, CallOutcome.REFUSED, *_ALWAYS),
    Verb.BIND: (CallOutcome.BOUND, CallOutcome.NOT_BOUND, *_ALWAYS),
}


def _webhooks(registry: CollectorRegistry) -> Mapping[tuple[Verb, CallOutcome], Histogram]:
    family = Histogram(
        "leeboard_webhook_duration_seconds",
        "How long kube-scheduler waited for Leeboard.",
        ("verb", "outcome"),
        buckets=(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 2.5, 10, 60),
        registry=registry,
    )
    return {(verb, outcome): family.labels(verb, outcome) for verb in Verb for outcome in OUTCOMES[verb]}


def _reviews(registry: CollectorRegistry) -> Mapping[tuple[Review, ReviewOutcome], Counter]:
    documentation = "Admission reviews by outcome."
    family = Counter("leeboard_admission_reviews", documentation, ("verb", "outcome"), registry=registry)
    return {(verb, outcome): family.labels(verb, outcome) for verb in Review for outcome in ReviewOutcome}


def _outcomes(registry: CollectorRegistry, name: str, documentation: str, kinds: type[Kind]) -> Mapping[Kind, Counter]:
    family = Counter(name, documentation, ("outcome",), registry=registry)
    return {kind: family.labels(kind) for kind in kinds}


def _counter(registry: CollectorRegistry, name: str, documentation: str) -> Counter:
    return Counter(name, documentation, registry=registry)
