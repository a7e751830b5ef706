"""The read API's JSON: camelCase, integers with the unit in the name, null where there is no limit."""

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from app.model.decision import Share
from app.model.names import QueueName
from app.model.podgroup import PodGroup
from app.model.reason import Refusal
from app.model.resources import UNLIMITED, Resources


class Answer(BaseModel):
    """What all of them share."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)


class Object(Answer):
    """The root of an answer."""

    api_version: Literal["leeboard.dev/v1alpha1"] = "leeboard.dev/v1alpha1"


class AmountsAnswer(Answer):
    """Amounts of the resources that queues divide; null means unlimited."""

    cpu_milli: int | None
    memory_bytes: int | None
    gpu_milli: int | None

    @classmethod
    def of(cls, amounts: Resources) -> Self:
        """Show these amounts."""
        return cls(
            cpu_milli=_limited(amounts.cpu_milli),
            memory_bytes=_limited(amounts.memory_bytes),
            gpu_milli=_limited(amounts.gpu_milli),
        )


class QueueAnswer(Answer):
    """One queue's part of the cluster now."""

    name: str
    deserved: AmountsAnswer
    fair_share: AmountsAnswer
    allocated: AmountsAnswer
    allocated_non_preemptible: AmountsAnswer
    requested: AmountsAnswer

    @classmethod
    def of(cls, name: QueueName, share: Share) -> Self:
        """Show this queue."""
        return cls(
            name=name,
            deserved=AmountsAnswer.of(share.deserved),
            fair_share=AmountsAnswer.of(share.fair_share),
            allocated=AmountsAnswer.of(share.allocated),
            allocated_non_preemptible=AmountsAnswer.of(share.allocated_non_preemptible),
            requested=AmountsAnswer.of(share.requested),
        )


class QueueList(Object):
    """Every queue, by name."""

    kind: Literal["QueueList"] = "QueueList"
    items: tuple[QueueAnswer, ...]

    @classmethod
    def of(cls, queues: Mapping[QueueName, Share]) -> Self:
        """Show these queues in the order of their names."""
        return cls(items=tuple(QueueAnswer.of(name, queues[name]) for name in sorted(queues)))


class WhyAnswer(Answer):
    """Why something waits."""

    reason: str
    sentence: str
    details: Mapping[str, int | str]

    @classmethod
    def of(cls, refusal: Refusal | None) -> Self | None:
        """Show this refusal; None when nothing was decided against it."""
        if refusal is None:
            return None
        return cls(reason=refusal.reason.value, sentence=refusal.sentence, details=refusal.details)


class PodGroupAnswer(Answer):
    """One PodGroup with pending pods; a pod alone is one, named by its uid."""

    namespace: str
    name: str
    queue: str
    priority: int
    preemptible: bool
    min_member: int
    pending_pods: int
    active_pods: int
    succeeded_pods: int
    why: WhyAnswer | None

    @classmethod
    def of(cls, group: PodGroup, refusal: Refusal | None) -> Self:
        """Show this PodGroup."""
        return cls(
            namespace=group.key.namespace,
            name=group.key.name,
            queue=group.queue,
            priority=group.priority,
            preemptible=group.preemptible,
            min_member=group.min_member,
            pending_pods=len(group.pending),
            active_pods=group.active,
            succeeded_pods=sum(group.succeeded.values()),
            why=WhyAnswer.of(refusal),
        )


class PodGroupList(Object):
    """The PodGroups that wait, in the order in which they were given."""

    kind: Literal["PodGroupList"] = "PodGroupList"
    items: tuple[PodGroupAnswer, ...]


class PodAnswer(Object):
    """What is known of one pod, and why it waits if it does."""

    kind: Literal["PodState"] = "PodState"
    namespace: str
    name: str
    uid: str
    queue: str
    pod_group: str
    managed: bool
    state: str
    node: str | None
    why: WhyAnswer | None
    problem: str | None


class Problem(BaseModel):
    """RFC 9457: what went wrong."""

    type: str
    title: str
    status: int
    detail: str


def _limited(amount: int) -> int | None:
    return None if amount >= UNLIMITED else amount
