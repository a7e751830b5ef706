"""Writes bindings: once a pod, together a gang, and never again before the outcome of the last try is known."""

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
"""Bindings in flight at once: fewer than the client has connections for, so that none waits for one after its last
look at whether we are still active."""

BURST_EVERY_S = 0.02
"""Bindings that come sooner after each other are written together: 3,000 lone pods then cost a fifth less CPU, that of
all programs summed up. kube-scheduler goes on meanwhile."""

UNDONE = RetryPolicy(first_s=0.5, pauses_until_given_up=5)
"""Between the tries of a binding that a read has proved undone. After these the API server answers, but does not carry
out this binding: a webhook fails. The node is for other pods then, and the pod backs off."""

REQUEST_LASTS_S = 60.0
"""Within this time the API server ends each request (its `--request-timeout`). A write that nobody has answered may
still bind a pod that a read shows unbound, and until then no other pod may get the node."""

FORBIDDEN = RetryPolicy(first_s=0.5, pauses_until_given_up=4)
"""An API server that has just started forbids everything until it has read its own roles: a gang of which half is
written must not be given up for that."""

NO_GPU = "the GPU that the pod was to share is not ready any more; it will be asked for again"


class Dissolves(Protocol):
    """Ends the attempt of a gang that cannot be bound."""

    def dissolve(self, key: GroupKey, error: str) -> None:
        """Give up the promises of a gang and let it back off."""
        ...


@dataclass(slots=True)
class _Tries:
    """The tries of one binding. Changed by `Binder._try` and what it calls."""

    undone_pauses: Iterator[float] = field(default_factory=UNDONE.pauses)
    forbidden_pauses: Iterator[float] = field(default_factory=FORBIDDEN.pauses)
    may_be_under_way: bool = False
    """Whether a write had no answer, so that the API server may still carry it out."""


class Binder:
    """One bind in flight a pod; a repeated question gets the answer of the first."""

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
        """`gangs` ends the attempt of a gang that could not be brought together or may not be bound."""
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
        """Bind the pod to the node it was promised; return `BOUND` or what kube-scheduler is told."""
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
            return f"the pod is being bound to {node}"
        # kube-scheduler may give up and ask again: the write goes on, and the next question gets its answer.
        return await asyncio.shield(task)

    def _answer_known(self, question: BindQuestion) -> str | None:
        """Answer what needs no write: a pod that is bound, unknown, or promised another node."""
        pod = self._cache.pods.get(question.pod.uid)
        if pod is None or (pod.namespace, pod.name) != (question.pod.namespace, question.pod.name):
            return "the pod is not known here; it will be asked for again"
        if pod.node is not None:
            return BOUND if pod.node == question.node else f"the pod is already bound to {pod.node}"
        if pod.deleting:
            return "the pod is being deleted"
        if not pod.managed:
            return None
        return self._answer_unpromised(pod.uid, question.node)

    def _answer_unpromised(self, uid: PodUid, node: NodeName) -> str | None:
        held = self._cache.reservations.get(uid)
        if held is None or held.node != node:
            return "this node is no longer reserved for the pod; it will be asked for again"
        if held.state is ReservationState.AWAITING:
            return "the room for the pod is still being freed; it will be asked for again"
        return NO_GPU if self._cache.gpus.not_ready(uid) else None

    async def _carry_out(self, question: BindQuestion) -> str:
        pod = self._cache.pods.get(question.pod.uid)
        if pod is None or not pod.managed:
            return await self._write(question)
        refused = await self._wait_for_gang(pod.group, pod.uid, question.node)
        return refused or await self._write(question)

    async def _wait_for_gang(self, key: GroupKey, uid: PodUid, node: NodeName) -> str:
        try:
            async with asyncio.timeout(self._patience_s):
                return await self._barrier.stand(key, uid, node)
        except TimeoutError:
            held = self._cache.reservations.get(uid)
            if held is not None and held.state is ReservationState.BINDING:
                return ""  # The gate opened in the moment in which patience ended: the others count on this member.
            error = "the gang did not come together in time"
            self._metrics.binds[BindOutcome.GANG_INCOMPLETE].inc()
            self._gangs.dissolve(key, error)
            return error

    async def _write(self, question: BindQuestion) -> str:
        """Write until the outcome is sure, then give up the promise unless the pod is on its node, or may be."""
        # Looked up once: who is made firm while it is tried again starts on the terms that it was promised the node on.
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
        """Return what is annotated with the node: the terms of its start, which nobody shall change later."""
        pod = self._cache.pods.get(uid)
        if pod is None or not pod.managed:
            return {}
        on = self._cache.groups.terms.of(pod.group)
        found: dict[str, str] = {}
        if on is not None:
            found |= {QUEUE_ANNOTATION: on.queue, PREEMPTIBLE_ANNOTATION: "true" if on.preemptible else "false"}
        if pod.names_group:
            # As KAI's pods carry it; and after a restart it is in this group, whatever has become of its owners.
            found[POD_GROUP_ANNOTATION] = pod.group.name
        return found

    def _devices(self, uid: PodUid) -> Mapping[str, str]:
        """Return what is annotated with the node of the GPUs that the pod shares, as they are at this moment.

        In one atomic write, so that no pod is bound that would see none, or all of them.
        """
        pod, gpus = self._cache.pods.get(uid), self._cache.gpus.of_pod(uid)
        return marks_of(pod.sharing, gpus) if pod is not None and pod.sharing is not None and gpus else {}

    def _obstacle(self, uid: PodUid) -> str:
        """Return why not to write now, "" when nothing speaks against it."""
        if self._leadership.failure():
            return "this replica is no longer active"
        pod = self._cache.pods.get(uid)
        if pod is None:
            return GONE
        # It would be tried for as long as a finalizer holds the pod.
        if pod.deleting:
            return "the pod is being deleted"
        return NO_GPU if self._cache.gpus.not_ready(uid) else ""

    async def _try(self, question: BindQuestion, marks: Mapping[str, str], tries: _Tries) -> str | None:
        """Write once, unless something speaks against it; None when it was not done and is to be tried again."""
        try:
            answer = await self._in_turn(question.pod, question.node, marks)
        except NotFoundError:
            return GONE
        except ForbiddenError as error:
            self._cache.promises.note_failed_bind(question.pod.uid, _refused(error))
            return await self._wait(question, error, tries, tries.forbidden_pauses)
        except RejectedError as error:
            return await self._refuse(question, error, tries)
        except (ConflictError, OutcomeUnknownError, UnavailableError) as error:
            tries.may_be_under_way |= isinstance(error, OutcomeUnknownError)
            self._cache.promises.note_failed_bind(question.pod.uid, _refused(error))
            known = await self._outcomes.find_out(question.pod, question.node)
            # A read that succeeds proves that the API server answers, so only its refusals are counted, and no outage.
            return await self._wait(question, error, tries, tries.undone_pauses) if known is None else known
        if answer in {BOUND, GONE}:
            return answer
        known = await self._settled(question, tries)
        return answer if known is None else known

    async def _in_turn(self, pod: PodRef, node: NodeName, marks: Mapping[str, str]) -> str:
        """Write when it is its turn, unless something speaks against it by then; raises `KubeError`."""
        await self._bursts.wait()
        async with self._turns:
            # Asked last: whoever has waited, for its turn or because we were stopped, may no longer be right.
            obstacle = self._obstacle(pod.uid)
            if not obstacle:
                await self._leadership.while_sure(self._cluster.bind(pod, node, {**marks, **self._devices(pod.uid)}))
            return obstacle or BOUND

    async def _wait(
        self, question: BindQuestion, error: KubeError, tries: _Tries, pauses: Iterator[float]
    ) -> str | None:
        """Wait before the next try; refuse the binding when there were enough."""
        pause_s = next(pauses, None)
        if pause_s is None:
            return await self._refuse(question, error, tries)
        await self._sleep(no_sooner_than_asked(pause_s, error))
        return None

    async def _refuse(self, question: BindQuestion, error: KubeError, tries: _Tries) -> str:
        """Have the group back off, unless a write without an answer has bound the pod after all."""
        known = await self._settled(question, tries)
        if known is not None:
            return known
        answer = _refused(error)
        self._set_back(question.pod.uid, answer)
        return answer

    async def _settled(self, question: BindQuestion, tries: _Tries) -> str | None:
        """Wait until no write without an answer can be carried out; return what became of the pod, None if nothing."""
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


def _refused(error: KubeError) -> str:
    return f"the API server refuses the binding: {error}"
