"""The read API's JSON of explanations: the state of a pod or PodGroup, its reason, and the decisions about it."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, Self

from app.model.explanation import (
    ClaimNeed,
    DecidedPod,
    Decision,
    Explanation,
    Leaver,
    Member,
    Position,
    QueueStand,
    Subject,
)
from app.model.sentence import EVERYTHING, Reader, told
from app.web.answers import AmountsAnswer, Answer, Object, WhyAnswer, entitled

Kind = Literal["PodExplanation", "PodGroupExplanation", "WorkloadExplanation"]

KINDS: Mapping[Subject, Kind] = {
    Subject.POD: "PodExplanation",
    Subject.POD_GROUP: "PodGroupExplanation",
    Subject.WORKLOAD: "WorkloadExplanation",
}


class QueueNumbers(Answer):
    """The numbers of a queue that matter to pods waiting in it."""

    deserved: AmountsAnswer
    limit: AmountsAnswer
    fair_share: AmountsAnswer | None
    """None when the queue takes no part in the division, or when there are too many queues to divide for one question.
    """
    allocated: AmountsAnswer
    requested: AmountsAnswer
    waiting_pod_groups: int
    problem: str | None

    @classmethod
    def of(cls, stand: QueueStand) -> Self:
        """Show this queue."""
        return cls(
            deserved=entitled(stand.queue, "deserved"),
            limit=entitled(stand.queue, "limit"),
            fair_share=AmountsAnswer.of(stand.fair_share) if stand.fair_share is not None else None,
            allocated=AmountsAnswer.of(stand.allocated),
            requested=AmountsAnswer.of(stand.requested),
            waiting_pod_groups=stand.waiting,
            problem=stand.queue.problem or None,
        )


class PositionAnswer(Answer):
    """How many PodGroups have an earlier turn now."""

    ahead_in_queue: int
    first_ahead: tuple[str, ...]
    """The first of these; by name when the reader may see it."""
    ahead: int
    """In all queues together."""
    at_least: bool
    """True when counting `ahead` stopped early."""

    @classmethod
    def of(cls, position: Position, reader: Reader = EVERYTHING) -> Self:
        """Show a reader this position."""
        return cls(
            ahead_in_queue=position.ahead_in_queue,
            first_ahead=tuple(one.name if reader.sees(one.namespace) else one.otherwise for one in position.first),
            ahead=position.ahead,
            at_least=position.is_least,
        )


class MemberAnswer(Answer):
    """A pod of a PodGroup."""

    name: str
    state: str
    node: str | None

    @classmethod
    def of(cls, member: Member) -> Self:
        """Show this pod."""
        return cls(name=member.name, state=member.state.value, node=member.node)


class LeaverAnswer(Answer):
    """A pod that still uses resources that another pod waits for."""

    namespace: str
    """Empty, like the name, when the reader may not see it."""
    name: str
    node: str
    since: datetime | None
    """None when Leeboard did not evict the pod, or has not sent the eviction yet."""

    @classmethod
    def of(cls, leaver: Leaver, reader: Reader = EVERYTHING) -> Self:
        """Show a reader this pod."""
        seen = reader.sees(leaver.namespace)
        namespace, name = (leaver.namespace, leaver.name) if seen else ("", "")
        return cls(namespace=namespace, name=name, node=leaver.node, since=_time(leaver.since))


class SeatAnswer(Answer):
    """A pod in a decision."""

    name: str
    uid: str
    node: str | None

    @classmethod
    def of(cls, seat: DecidedPod) -> Self:
        """Show this pod."""
        return cls(name=seat.name, uid=seat.uid, node=seat.node)


PODS_SHOWN = 20
"""The most pods shown for one decision."""


class DecisionAnswer(Answer):
    """One past decision."""

    at: datetime
    generation: int
    """The generation of the snapshot of this decision. It restarts with the service."""
    outcome: str
    cause: str
    sentence: str
    on_behalf_of: str | None
    """The PodGroup or pod that benefits, as namespace and name."""
    pods: tuple[SeatAnswer, ...]
    """The first `PODS_SHOWN` of them."""
    pod_count: int

    @classmethod
    def of(cls, decision: Decision, reader: Reader = EVERYTHING) -> Self:
        """Show a reader this decision."""
        beneficiary = decision.beneficiary
        return cls(
            at=datetime.fromtimestamp(decision.at, UTC),
            generation=decision.generation,
            outcome=decision.outcome.value,
            cause=decision.cause,
            sentence=told(decision.sentence, reader),
            on_behalf_of=beneficiary.to(reader) if beneficiary is not None else None,
            pods=tuple(map(SeatAnswer.of, decision.pods[:PODS_SHOWN])),
            pod_count=len(decision.pods),
        )


class ClaimNeedAnswer(Answer):
    """What a ResourceClaim of a pod asks for."""

    name: str
    device_classes: tuple[str, ...]
    gpu_milli: int
    """What its queue pays for it."""
    node: str | None
    """The node of its devices; null while it is not allocated."""
    shared: bool
    """Other pods may use it, too."""
    problem: str | None

    @classmethod
    def of(cls, need: ClaimNeed) -> Self:
        """Show this claim."""
        return cls(
            name=need.name,
            device_classes=need.classes,
            gpu_milli=need.gpu_milli,
            node=need.node,
            shared=need.is_shared,
            problem=need.problem or None,
        )


class ExplanationAnswer(Object):
    """The current explanation of a pod or a PodGroup. A field that does not apply is null."""

    kind: Kind
    namespace: str
    name: str
    uid: str | None
    state: str
    why: WhyAnswer
    pod_group: str | None
    queue: str | None
    queue_numbers: QueueNumbers | None
    """None when the queue does not exist."""
    priority: int | None
    preemptible: bool | None
    min_member: int | None
    node: str | None
    since: datetime | None
    """When it started to run."""
    position: PositionAnswer | None
    """None when it has no turn: it does not wait, or it could not start even on free resources."""
    pods_by_state: Mapping[str, int]
    members: tuple[MemberAnswer, ...]
    """The first pods of the PodGroup."""
    waits_for: tuple[LeaverAnswer, ...]
    """Pods that still use resources reserved for it."""
    autoscaler: str | None
    """What a cluster autoscaler was asked to add for it, and the autoscaler's answer."""
    workload_pod_groups: int | None
    """The number of PodGroups of the workload in question, including this one."""
    decisions: tuple[DecisionAnswer, ...]
    """Newest first."""
    claims: tuple[ClaimNeedAnswer, ...] = ()
    """The ResourceClaims of the pod, or the first ones of the PodGroup."""

    @classmethod
    def of(cls, found: Explanation, reader: Reader = EVERYTHING) -> Self:
        """Show this explanation to a reader who may see its namespace."""
        return cls(
            kind=KINDS[found.subject],
            namespace=found.namespace,
            name=found.name,
            uid=found.uid or None,
            state=found.state,
            why=WhyAnswer.told(found.why, reader),
            pod_group=found.pod_group or None,
            queue=found.queue,
            queue_numbers=QueueNumbers.of(found.stand) if found.stand is not None else None,
            priority=found.priority,
            preemptible=found.preemptible,
            min_member=found.min_member,
            node=found.node,
            since=_time(found.since),
            position=PositionAnswer.of(found.position, reader) if found.position is not None else None,
            pods_by_state=dict(sorted(found.counts.items())),
            members=tuple(map(MemberAnswer.of, found.members)),
            waits_for=tuple(LeaverAnswer.of(each, reader) for each in found.waits_for),
            autoscaler=found.autoscaler or None,
            workload_pod_groups=found.workload_groups or None,
            decisions=tuple(DecisionAnswer.of(each, reader) for each in found.decisions),
            claims=tuple(map(ClaimNeedAnswer.of, found.claims)),
        )


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
