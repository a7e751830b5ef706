"""The read API's JSON: camelCase, integers with the unit in the name, null where there is no limit."""

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from app.model.explanation import QueueStand, Why
from app.model.pod import claims_of, once_milli
from app.model.podgroup import PodGroup
from app.model.queue import Entitlement, Queue
from app.model.reason import PHRASES, Refusal
from app.model.resources import GPU_MILLI, UNLIMITED, Resources
from app.model.sentence import EVERYTHING, Reader, told

CONTINUE = "The value of the parameter `continue` that asks for the next page; absent on the last page."


class Answer(BaseModel):
    """The base class of all answers."""

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


class WeightsAnswer(Answer):
    """A queue's weights for the surplus of each resource, relative to its siblings; a weight of 1 is 1,000,000."""

    cpu: int
    memory: int
    gpu: int

    @classmethod
    def of(cls, queue: Queue) -> Self:
        """Show the weights of this queue."""
        return cls(
            cpu=queue.cpu_milli.over_quota_weight_micro,
            memory=queue.memory_bytes.over_quota_weight_micro,
            gpu=queue.gpu_milli.over_quota_weight_micro,
        )


class QueueAnswer(Answer):
    """One queue's use of the cluster now."""

    name: str
    parent: str | None
    display_name: str | None
    priority: int
    deserved: AmountsAnswer
    limit: AmountsAnswer
    over_quota_weight_micro: WeightsAnswer
    fair_share: AmountsAnswer | None
    """None when the queue takes no part in the division; `problem` says why."""
    allocated: AmountsAnswer
    allocated_non_preemptible: AmountsAnswer
    requested: AmountsAnswer
    waiting_pod_groups: int
    """In this queue and in the queues below it."""
    problem: str | None
    claimed_gpu_milli: int = 0
    """The part of the GPUs in `allocated` that ResourceClaims hold."""

    @classmethod
    def of(cls, stand: QueueStand) -> Self:
        """Show this queue."""
        queue = stand.queue
        return cls(
            name=queue.name,
            parent=queue.parent,
            display_name=queue.display_name or None,
            priority=queue.priority,
            deserved=entitled(queue, "deserved"),
            limit=entitled(queue, "limit"),
            over_quota_weight_micro=WeightsAnswer.of(queue),
            fair_share=AmountsAnswer.of(stand.fair_share) if stand.fair_share is not None else None,
            allocated=AmountsAnswer.of(stand.allocated),
            allocated_non_preemptible=AmountsAnswer.of(stand.allocated_non_preemptible),
            requested=AmountsAnswer.of(stand.requested),
            waiting_pod_groups=stand.waiting,
            problem=queue.problem or None,
            claimed_gpu_milli=stand.claimed_milli,
        )


class QueueList(Object):
    """Every queue, sorted by name."""

    kind: Literal["QueueList"] = "QueueList"
    items: tuple[QueueAnswer, ...]
    next_page: str | None = Field(default=None, serialization_alias="continue", description=CONTINUE)


class WhyAnswer(Answer):
    """Why a pod or a PodGroup waits."""

    reason: str
    sentence: str
    details: Mapping[str, int | str]

    @classmethod
    def of(cls, refusal: Refusal | None, reader: Reader = EVERYTHING) -> Self | None:
        """Show a reader this refusal; None when there is no refusal."""
        return None if refusal is None else cls.told(refusal, reader)

    @classmethod
    def told(cls, why: Refusal | Why, reader: Reader = EVERYTHING) -> Self:
        """Show a reader the reason for a state."""
        details = {key: told(each, reader) if isinstance(each, str) else each for key, each in why.details.items()}
        return cls(reason=str(why.reason), sentence=told(why.sentence, reader), details=details)


class PodGroupAnswer(Answer):
    """One PodGroup with pending pods. A pod without a PodGroup appears as a PodGroup with the pod's name."""

    namespace: str
    """Empty when the reader may not see the namespace; `name` then says how many GPUs the PodGroup requests."""
    name: str
    queue: str | None
    """None when the reader may not see it."""
    priority: int
    preemptible: bool
    min_member: int
    pending_pods: int
    active_pods: int
    succeeded_pods: int
    why: WhyAnswer | None

    @classmethod
    def of(cls, group: PodGroup, refusal: Refusal | None, reader: Reader = EVERYTHING) -> Self:
        """Show a reader this PodGroup."""
        seen = reader.sees(group.key.namespace)
        return cls(
            namespace=group.key.namespace if seen else "",
            name=group.name if seen else elsewhere(_requested_milli(group)),
            queue=group.queue if seen else None,
            priority=group.priority,
            preemptible=group.preemptible,
            min_member=group.min_member,
            pending_pods=len(group.pending),
            active_pods=group.active,
            succeeded_pods=sum(group.succeeded.values()),
            why=WhyAnswer.of(refusal, reader) if seen else _word(refusal),
        )


class PodGroupList(Object):
    """The PodGroups that wait; pages of them are in no particular order."""

    kind: Literal["PodGroupList"] = "PodGroupList"
    items: tuple[PodGroupAnswer, ...]
    incomplete: str | None = None
    """Why the list may be incomplete; absent when the list is complete."""
    next_page: str | None = Field(default=None, serialization_alias="continue", description=CONTINUE)


class PodAnswer(Object):
    """One pod, and why it waits."""

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
    """A problem document of RFC 9457."""

    type: str
    title: str
    status: int
    detail: str


def entitled(queue: Queue, what: Literal["deserved", "limit"]) -> AmountsAnswer:
    """Show the amounts that a queue's owner wrote for each resource."""

    def of(entitlement: Entitlement) -> int | None:
        return _limited(entitlement.deserved if what == "deserved" else entitlement.limit)

    return AmountsAnswer(
        cpu_milli=of(queue.cpu_milli), memory_bytes=of(queue.memory_bytes), gpu_milli=of(queue.gpu_milli)
    )


def elsewhere(gpu_milli: int) -> str:
    """Return the text that replaces the name of a pod or PodGroup in a namespace that the reader may not see."""
    amount = f"{gpu_milli / 1000:g} {'GPU' if gpu_milli == GPU_MILLI else 'GPUs'}" if gpu_milli else "no GPU"
    return f"another namespace, {amount}"


def _requested_milli(group: PodGroup) -> int:
    """Return the GPUs of the pending pods, in milli-GPUs.

    A fraction by memory counts as a whole GPU, because its device is not known yet.
    """
    return sum(pod.charge(0).gpu_milli for pod in group.pending) + once_milli(claims_of(group.pending))


def _word(refusal: Refusal | None) -> WhyAnswer | None:
    """Show only the reason, because the sentence and the details may name the queue."""
    if refusal is None:
        return None
    phrase = PHRASES[refusal.reason]
    return WhyAnswer(reason=refusal.reason.value, sentence=f"{phrase[:1].upper()}{phrase[1:]}.", details={})


def _limited(amount: int) -> int | None:
    return None if amount >= UNLIMITED else amount
