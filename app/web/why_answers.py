"""The read API's JSON of why: how a pod or a PodGroup stands, for what reason, and what was decided about it."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, Self

from app.model.explanation import DecidedPod, Decision, Explanation, Leaver, Member, Position, QueueStand, Subject
from app.model.sentence import EVERYTHING, Reader, told
from app.web.answers import AmountsAnswer, Answer, Object, WhyAnswer, entitled

Kind = Literal["PodExplanation", "PodGroupExplanation", "WorkloadExplanation"]

KINDS: Mapping[Subject, Kind] = {
    Subject.POD: "PodExplanation",
    Subject.POD_GROUP: "PodGroupExplanation",
    Subject.WORKLOAD: "WorkloadExplanation",
}


class QueueNumbers(Answer):
    """What of the queue matters to who waits in it."""

    deserved: AmountsAnswer
    limit: AmountsAnswer
    fair_share: AmountsAnswer | None
    """None when the queue takes part in nothing, or there are too many queues to divide for one question."""
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
    """How many PodGroups have their turn earlier, as things are now."""

    ahead_in_queue: int
    first_ahead: tuple[str, ...]
    """The first of these, by name where the reader may know it."""
    ahead: int
    """In all queues together."""
    at_least: bool
    """`ahead` was not counted to its end."""

    @classmethod
    def of(cls, position: Position, reader: Reader = EVERYTHING) -> Self:
        """Show a reader this place."""
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
    """A pod that is still in the room that somebody waits for."""

    namespace: str
    """Empty, as the name, where the reader may not know it."""
    name: str
    node: str
    since: datetime | None
    """None when it was not Leeboard who told it to leave, or it has yet to be told."""

    @classmethod
    def of(cls, leaver: Leaver, reader: Reader = EVERYTHING) -> Self:
        """Show a reader this pod."""
        seen = reader.sees(leaver.namespace)
        namespace, name = (leaver.namespace, leaver.name) if seen else ("", "")
        return cls(namespace=namespace, name=name, node=leaver.node, since=_time(leaver.since))


class SeatAnswer(Answer):
    """A pod that a decision was about."""

    name: str
    uid: str
    node: str | None

    @classmethod
    def of(cls, seat: DecidedPod) -> Self:
        """Show this pod."""
        return cls(name=seat.name, uid=seat.uid, node=seat.node)


PODS_SHOWN = 20
"""Of one decision."""


class DecisionAnswer(Answer):
    """What was decided once."""

    at: datetime
    generation: int
    """Of the snapshot that it was decided on; it begins anew when the service does."""
    outcome: str
    cause: str
    sentence: str
    on_behalf_of: str | None
    """For which PodGroup or pod, as namespace and name."""
    pods: tuple[SeatAnswer, ...]
    """The first of them."""
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


class ExplanationAnswer(Object):
    """One current answer about a pod or a PodGroup; null is what does not apply to it."""

    kind: Kind
    namespace: str
    name: str
    uid: str | None
    state: str
    why: WhyAnswer
    pod_group: str | None
    queue: str | None
    queue_numbers: QueueNumbers | None
    """None when there is no such queue."""
    priority: int | None
    preemptible: bool | None
    min_member: int | None
    node: str | None
    since: datetime | None
    """Since when it runs."""
    position: PositionAnswer | None
    """None when it has no turn: it does not wait, or could not start whatever is free."""
    pods_by_state: Mapping[str, int]
    members: tuple[MemberAnswer, ...]
    """The first of a PodGroup's pods."""
    waits_for: tuple[LeaverAnswer, ...]
    """Pods that are still in the room that is held for it."""
    autoscaler: str | None
    """What a cluster autoscaler was asked for it, and has said."""
    workload_pod_groups: int | None
    """How many PodGroups the workload has that was asked about: this one, and others."""
    decisions: tuple[DecisionAnswer, ...]
    """The newest first."""

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
        )


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
