"""Writes bindings: once per pod, a gang together, and never again before the outcome of the last try is known."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from app.cluster.decode.pods import POD_GROUP_ANNOTATION
from app.cluster.gpus.shares import marks_of
from app.cluster.ledger.reservations import ReservationState
from app.cluster.state.cache import ClusterCache
from app.control.leadership.leadership import Leadership
from app.control.writers.barrier import GangBarrier
from app.control.writers.bind_outcomes import BOUND, GONE, NOT_KNOWN, BindOutcomes
from app.control.writers.coalescer import WriteCoalescer
from app.control.writers.unwritten import unwritten
from app.model.marks import PREEMPTIBLE_ANNOTATION, QUEUE_ANNOTATION
from app.model.names import GroupKey, NodeName, PodUid
from app.model.question import BindQuestion
from app.model.retry import RetryPolicy, no_sooner_than_asked
from app.model.seam import (
    Cluster,
    ConflictError,
    ForbiddenError,
    KubeError,
    NotFoundError,
    OutcomeUnknownError,
    PodRef,
    RejectedError,
    UnavailableError,
)
from app.telemetry import BindOutcome, Metrics

log = structlog.get_logger()

WRITERS = 64
"""Bindings in flight at once. The client has more connections, so no binding waits for a connection after the last
check that this replica is active.
"""

BURST_EVERY_S = 0.02
"""Bindings that arrive within this time are written together. 3,000 single pods then cost a fifth less CPU, summed over
all programs. kube-scheduler continues meanwhile.
"""

UNDONE = RetryPolicy(first_s=0.5, pauses_until_given_up=5)
"""The pauses between the tries of a binding that a read has proved undone. After the last try, the API server answers
but does not carry out this binding, for example because a webhook fails. The node is then free for other pods, and
the pod backs off.
"""

REQUEST_LASTS_S = 60.0
"""The API server ends each request within this time (its `--request-timeout`). A write without an answer may still bind
a pod that a read shows unbound. Until then no other pod may get the node.
"""

FORBIDDEN = RetryPolicy(first_s=0.5, pauses_until_given_up=4)
"""An API server that has just started forbids everything until it has read its own roles. A gang that is half bound
must not be given up for that.
"""

NO_GPU = "the GPU that the pod will share is no longer ready; kube-scheduler will try again"


class Dissolves(Protocol):
    """Ends the attempt of a gang that cannot be bound."""

    def dissolve(self, key: GroupKey, error: str) -> None:
        """Drop the reservations of a gang and let the gang back off."""
        ...


@dataclass(slots=True)
class _Tries:
    """The tries of one binding. Only `Binder._try` and its callees change them."""

    undone_pauses: Iterator[float] = field(default_factory=UNDONE.pauses)
    forbidden_pauses: Iterator[float] = field(default_factory=FORBIDDEN.pauses)
    may_be_under_way: bool = False
    """Whether a write had no answer, so that the API server may still carry it out."""


class Binder:
    """Keeps one bind in flight per pod; a repeated question gets the answer of the first."""

    def __init__(  # noqa: PLR0913, PLR0917 # collaborators come in through the constructor
        self,
        cache: ClusterCache,
        cluster: Cluster,
        leadership: Leadership,
        barrier: GangBarrier,
        metrics: Metrics,
        gangs: Dissolves,
        *,
        patience_s: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`gangs` ends the attempt of a gang that did not assemble in time or may not be bound."""
        self._cache = cache
        self._cluster = cluster
        self._leadership = leadership
        self._barrier = barrier
        self._metrics = metrics
        self._patience_s = patience_s
        self._gangs = gangs
        self._sleep = sleep
        self._outcomes = BindOutcomes(cache, cluster, metrics, sleep=sleep)
        self._bursts = WriteCoalescer(BURST_EVERY_S)
        self._turns = asyncio.Semaphore(WRITERS)
        self._in_flight: dict[PodUid, tuple[NodeName, asyncio.Task[str]]] = {}

    async def bind(self, question: BindQuestion) -> str:
        """Bind the pod to its reserved node; return `BOUND` or the error for kube-scheduler."""
        uid = question.pod.uid
        if uid not in self._in_flight:
            answer = self._answer_known(question)
            if answer is not None:
                return answer
            task = asyncio.create_task(self._carry_out(question), name=f"bind {question.pod.name}")
            self._in_flight[uid] = (question.node, task)
            task.add_done_callback(lambda _: self._in_flight.pop(uid, None))
        node, task = self._in_flight[uid]
        if node != question.node:
            return f"the pod is already being bound to node {node}"
        # kube-scheduler may give up and ask again: the write goes on, and the next question gets its answer.
        return await asyncio.shield(task)

    def _answer_known(self, question: BindQuestion) -> str | None:
        """Answer what needs no write: a pod that is bound, is unknown, or has another node reserved."""
        pod = self._cache.pods.get(question.pod.uid)
        if pod is None or (pod.namespace, pod.name) != (question.pod.namespace, question.pod.name):
            return "Leeboard does not know the pod yet; kube-scheduler will try again"
        if pod.node is not None:
            return BOUND if pod.node == question.node else f"the pod is already bound to node {pod.node}"
        if pod.deleting:
            return "the pod is being deleted"
        if not pod.managed:
            return None
        return self._answer_unpromised(pod.uid, question.node)

    def _answer_unpromised(self, uid: PodUid, node: NodeName) -> str | None:
        held = self._cache.reservations.get(uid)
        if held is None or held.node != node:
            return "Leeboard no longer reserves this node for the pod; kube-scheduler will try again"
        if held.state is ReservationState.AWAITING:
            return "other pods still have to leave the room that is reserved for the pod; kube-scheduler will try again"
        return NO_GPU if self._cache.gpus.not_ready(uid) else None

    async def _carry_out(self, question: BindQuestion) -> str:
        pod = self._cache.pods.get(question.pod.uid)
        if pod is None or not pod.managed:
            return await self._write(question)
        refused = await self._wait_for_gang(pod.group, pod.uid, question.node)
        return refused or await self._write(question)

    async def _wait_for_gang(self, key: GroupKey, uid: PodUid, node: NodeName) -> str:
        try:
            return await self._barrier.stand(key, uid, node, within_s=self._patience_s)
        except TimeoutError:
            held = self._cache.reservations.get(uid)
            if held is not None and held.state is ReservationState.BINDING:
                return ""  # The gang was completed just before the time-out: the others count on this member.
            error = "kube-scheduler did not ask in time to bind all pods of the gang"
            self._metrics.binds[BindOutcome.GANG_INCOMPLETE].inc()
            self._gangs.dissolve(key, error)
            return error

    async def _write(self, question: BindQuestion) -> str:
        """Write until the outcome is certain, then drop the reservation unless the pod is on its node, or may be."""
        # Looked up once. A pod that becomes non-preemptible during the tries starts on the terms of its reservation.
        tries, marks = _Tries(), self._marks(question.pod.uid)
        answer: str | None = None
        while answer is None:
            answer = await self._try(question, marks, tries)
        self._metrics.binds[BindOutcome.BOUND if answer == BOUND else BindOutcome.REFUSED].inc()
        if answer != BOUND:
            log.warning("bind failed", pod=f"{question.pod.namespace}/{question.pod.name}", error=answer)
        if answer not in {BOUND, NOT_KNOWN}:
            self._give_up(question.pod.uid)
        return answer

    def _marks(self, uid: PodUid) -> Mapping[str, str]:
        """Return the annotations that keep the terms of the start unchanged; they are written with the node."""
        pod = self._cache.pods.get(uid)
        if pod is None or not pod.managed:
            return {}
        on = self._cache.groups.terms.of(pod.group)
        found: dict[str, str] = {}
        if on is not None:
            found |= {QUEUE_ANNOTATION: on.queue, PREEMPTIBLE_ANNOTATION: "true" if on.preemptible else "false"}
        if pod.names_group and not pod.group.api:
            # KAI's pods have this annotation as well. After a restart the pod is in this group, whatever happens to its
            # owners. A native PodGroup needs none: nobody can change the name in the spec of the pod.
            found[POD_GROUP_ANNOTATION] = pod.group.name
        return found

    def _devices(self, uid: PodUid) -> Mapping[str, str]:
        """Return the annotations for the GPUs that the pod shares at this moment; they are written with the node.

        One atomic write ensures that no bound pod sees no GPU, or all GPUs.
        """
        pod, gpus = self._cache.pods.get(uid), self._cache.gpus.of_pod(uid)
        return marks_of(pod.sharing, gpus) if pod is not None and pod.sharing is not None and gpus else {}

    def _obstacle(self, uid: PodUid) -> str:
        """Return why the binding must not be written now; "" if it may."""
        if self._leadership.failure():
            return "this replica of Leeboard no longer decides; kube-scheduler will try again"
        pod = self._cache.pods.get(uid)
        if pod is None:
            return GONE
        # Otherwise the binding would be tried for as long as a finalizer keeps the pod.
        if pod.deleting:
            return "the pod is being deleted"
        return NO_GPU if self._cache.gpus.not_ready(uid) else ""

    async def _try(self, question: BindQuestion, marks: Mapping[str, str], tries: _Tries) -> str | None:
        """Write once, unless there is an obstacle; None if the write was not done and should be tried again."""
        try:
            answer = await self._in_turn(question.pod, question.node, marks)
        except NotFoundError:
            return GONE
        except ForbiddenError as error:
            self._cache.promises.note_failed_bind(question.pod.uid, _undone(error))
            return await self._wait(question, error, tries, tries.forbidden_pauses)
        except RejectedError as error:
            return await self._refuse(question, error, tries)
        except (ConflictError, OutcomeUnknownError, UnavailableError) as error:
            tries.may_be_under_way |= isinstance(error, OutcomeUnknownError)
            self._cache.promises.note_failed_bind(question.pod.uid, _undone(error))
            known = await self._outcomes.find_out(question.pod, question.node)
            # A successful read proves that the API server answers. So only its refusals are counted, and no outage.
            return await self._wait(question, error, tries, tries.undone_pauses) if known is None else known
        if answer in {BOUND, GONE}:
            return answer
        known = await self._settled(question, tries)
        return answer if known is None else known

    async def _in_turn(self, pod: PodRef, node: NodeName, marks: Mapping[str, str]) -> str:
        """Write when a writer is free, unless there is an obstacle by then; raises `KubeError`."""
        await self._bursts.wait()
        async with self._turns:
            # Checked last: the state may have changed during the wait, or while the process was stopped.
            obstacle = self._obstacle(pod.uid)
            if not obstacle:
                await self._leadership.while_sure(self._cluster.bind(pod, node, {**marks, **self._devices(pod.uid)}))
            return obstacle or BOUND

    async def _wait(
        self, question: BindQuestion, error: KubeError, tries: _Tries, pauses: Iterator[float]
    ) -> str | None:
        """Wait before the next try; refuse the binding after the last one."""
        pause_s = next(pauses, None)
        if pause_s is None:
            return await self._refuse(question, error, tries)
        await self._sleep(no_sooner_than_asked(pause_s, error))
        return None

    async def _refuse(self, question: BindQuestion, error: KubeError, tries: _Tries) -> str:
        """Let the group back off, unless a write without an answer has bound the pod after all."""
        known = await self._settled(question, tries)
        if known is not None:
            return known
        answer = _undone(error)
        self._set_back(question.pod.uid, answer)
        return answer

    async def _settled(self, question: BindQuestion, tries: _Tries) -> str | None:
        """Wait until no unanswered write can be carried out; return the pod's state, None if it is unbound."""
        if not tries.may_be_under_way:
            return None
        await self._sleep(REQUEST_LASTS_S)
        return await self._outcomes.find_out(question.pod, question.node)

    def _give_up(self, uid: PodUid) -> None:
        pod = self._cache.pods.get(uid)
        if pod is not None and pod.managed and pod.node is None:
            self._cache.promises.drop(uid)

    def _set_back(self, uid: PodUid, error: str) -> None:
        pod = self._cache.pods.get(uid)
        if pod is not None and pod.managed:
            self._gangs.dissolve(pod.group, error)


def _undone(error: KubeError) -> str:
    return unwritten("the binding", error)
