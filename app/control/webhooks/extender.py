"""Answers kube-scheduler from decisions already made, makes small decisions at once, and reserves what it answers.

The cases of filter, in their order:
    1. a what-if (no uid): the fit is answered from the snapshot, nothing is reserved
    2. a pod that the watch has not shown yet: wait a moment for the pod, else refuse it
    3. a pod that is not managed: all offered nodes
    4. a pod that is bound already: its node
    5. a pod whose room is still being freed: refused, and woken when the room is free
    6. a pod with a reservation: its node; if not offered, another offered node; else make kube-scheduler offer it
    7. a pod without a reservation: decided now, or after a plan; or refused, and woken when it gets a reservation
"""

import asyncio
from collections.abc import Mapping
from typing import TypeVar

import structlog

from app.cluster import decode
from app.cluster.ledger.reservations import Reservation, ReservationState
from app.cluster.state.cache import ClusterCache
from app.control.cycle.group_cycles import GroupCycles
from app.control.cycle.planning import Planning
from app.control.cycle.policy_settings import policy_of
from app.control.cycle.releases import ALWAYS_COMPLETE_BELOW
from app.control.cycle.waker import Waker
from app.control.gpus.sharing_rules import rules_of
from app.control.groups.arrivals import Arrivals
from app.control.leadership.readiness import Readiness
from app.control.writers.binder import Binder
from app.model.names import NodeName, PodUid
from app.model.pod import Pod
from app.model.question import BindQuestion, Failed, FilterAnswer, Fits, PodQuestion, Refused, Scores
from app.model.reason import UNREADY, Reason, Refusal
from app.model.seam import RawObject
from app.scheduling.placement import effort, fit
from app.scheduling.planner import planner
from app.settings import Settings

log = structlog.get_logger()

V = TypeVar("V")

TAKEOVER_S = 3.0
"""How long a question is delayed while this replica is not active; less than the extender entry's httpTimeout (5 s)."""

WATCH_LAG_S = 0.25
"""How long filter waits for a pod that the watch has not shown yet."""


class Extender:
    """The four webhooks, without the wire format."""

    def __init__(  # noqa: PLR0913, PLR0917 # collaborators come in through the constructor
        self,
        cache: ClusterCache,
        readiness: Readiness,
        arrivals: Arrivals,
        planning: Planning,
        waker: Waker,
        binder: Binder,
        cycles: GroupCycles,
        settings: Settings,
    ) -> None:
        """Hold the collaborators, which hold all state."""
        self._cache = cache
        self._readiness = readiness
        self._arrivals = arrivals
        self._planning = planning
        self._waker = waker
        self._binder = binder
        self._cycles = cycles
        self._settings = settings
        self._policy = policy_of(settings)
        self._rules = rules_of(settings)

    async def filter(self, question: PodQuestion) -> FilterAnswer:
        """Answer which of the offered nodes the pod may use: exactly one, once the pod is decided."""
        answer = self.filter_at_once(question)
        return await self._filter_later(question) if answer is None else answer

    def filter_at_once(self, question: PodQuestion) -> FilterAnswer | None:
        """Answer as `filter` does; None if that takes waiting: to become active, for the pod, or for a plan."""
        if question.uid is not None and self._readiness.leadership.failure():
            return None
        unready = self._unready()
        if unready:
            return Failed(unready)
        if question.uid is None:
            return self._answer_what_if(question)
        pod = self._arrivals.known(question.uid)
        if pod is None:
            return None
        if not pod.managed or pod.node is not None:
            return _unmanaged_or_bound(pod, question)
        return self._decide_at_once(pod.uid, question)

    async def _filter_later(self, question: PodQuestion) -> FilterAnswer:
        if question.uid is None:
            return self._answer_what_if(question)
        # kube-scheduler asks as soon as it leads; Leeboard learns of that a moment later. An error would make the
        # pod back off.
        await self._readiness.leadership.settled(within_s=TAKEOVER_S)
        unready = self._unready()
        if unready:
            return Failed(unready)
        pod = await self._arrivals.pod(question.uid, within_s=WATCH_LAG_S)
        if pod is None and self._managed(question.pod) is not None:
            self._waker.park(question.uid)
            return Refused(Reason.DECIDING)
        if pod is None:
            return Fits(question.offered)
        if not pod.managed or pod.node is not None:
            return _unmanaged_or_bound(pod, question)
        self._note_question(pod.uid, question)
        if self._lacks_decision(pod.uid, question):
            await self._decide(pod.uid)
        return self._answer_decided(pod.uid, question)

    def prioritize(self, question: PodQuestion) -> Scores:
        """Score the offered nodes 0..10; all are 0 for an unmanaged pod, so that kube-scheduler's own scores count."""
        pod = None if self._unready() else self._managed(question.pod)
        if pod is None or not self._planning.effort.can_look_at(pod):
            return dict.fromkeys(question.offered, 0)
        snapshot = self._cache.snapshot()
        index = snapshot.nodes.index
        # To read single elements of an array takes twice as long for 5,000 names.
        scores = planner.scores(snapshot, pod, question.offered, self._policy).tolist()
        return {name: scores[index[name]] if name in index else 0 for name in question.offered}

    def preempt(self, pod: RawObject, candidates: Mapping[NodeName, V]) -> Mapping[NodeName, V]:
        """Return what kube-scheduler may preempt: nothing for a managed pod, as only our plan chooses its victims."""
        return candidates if self._managed(pod) is None else {}

    async def bind(self, question: BindQuestion) -> str:
        """Bind the pod, a gang as a whole; return "" or the reason why not."""
        return self._unready() or await self._binder.bind(question)

    def _unready(self) -> str:
        """Return why no question can be answered now, "" if all can; /readyz and the log tell the cause."""
        return UNREADY if self._readiness.failure() else ""

    # A pod that is ours --------------------------------------------------------------------------------------------

    def _decide_at_once(self, uid: PodUid, question: PodQuestion) -> FilterAnswer | None:
        if self._lacks_decision(uid, question) and not self._planning.can_decide_now():
            return None
        self._note_question(uid, question)
        if self._lacks_decision(uid, question):
            if not self._planning.can_decide_now():
                return None  # The end of an attempt has changed what there is to decide.
            self._planning.plan_now()
        return self._answer_decided(uid, question)

    def _lacks_decision(self, uid: PodUid, question: PodQuestion) -> bool:
        held = self._cache.reservations.get(uid)
        return held is None or (self._planning.is_taking_over and _may_move(held, question))

    def _note_question(self, uid: PodUid, question: PodQuestion) -> None:
        self._waker.forget(uid)
        self._end_attempt(uid)
        self._learn_what_is_refused(uid, question)

    def _answer_decided(self, uid: PodUid, question: PodQuestion) -> FilterAnswer:
        held = self._cache.reservations.get(uid)
        answer = self._answer_promised(held, question) if held else Refused(self._planning.reason(uid))
        if isinstance(answer, Refused):
            self._waker.park(uid)
        return answer

    async def _decide(self, uid: PodUid) -> None:
        """Have the pod considered in the current state, within the patience of filter."""
        if self._planning.can_decide_now():
            self._planning.plan_now()
            return
        try:
            async with asyncio.timeout(self._settings.filter_patience_s):
                await self._planning.consider(uid)
        except TimeoutError:
            self._planning.poke()

    def _answer_promised(self, held: Reservation, question: PodQuestion) -> FilterAnswer:
        self._cache.reservations.note_asked(held.pod)
        if held.state is ReservationState.AWAITING:
            return Refused(self._planning.reason(held.pod))
        if held.state is ReservationState.BINDING or held.node in question.offered:
            self._stand_by(held.pod)
            return _only(held.node, question.offered)
        return Refused(Reason.DECIDING) if self._is_asked_by_domain(held.pod) else self._move(held, question)

    def _move(self, held: Reservation, question: PodQuestion) -> FilterAnswer:
        """Move the reservation to an offered node, else find out whether kube-scheduler refuses the reserved node."""
        pod = self._cache.pods.get(held.pod)
        if pod is None:
            return Refused(Reason.DECIDING)
        node = None if self._cycles.include(pod) else self._elsewhere(pod, held, question)
        if node is not None:
            self._cache.promises.move(pod.uid, node, expires_at=self._planning.answered_expiry())
            self._cache.reservations.note_asked(pod.uid)
            self._stand_by(pod.uid)
            return Fits((node,))
        if self._lags(question):
            # kube-scheduler cannot have seen the reserved node either. It looks at the pod again by itself when it
            # does. If its watch pauses for long, that may take longer than a reservation lasts.
            self._extend(held)
            return Refused(Reason.DECIDING)
        nominated = decode.nominated_node(question.pod)
        if nominated != held.node and question.offered == (nominated,):
            # The pod was nominated for this node before. kube-scheduler looks at all other nodes next, and asks again.
            return Refused(Reason.DECIDING)
        if nominated == held.node or len(question.offered) < ALWAYS_COMPLETE_BELOW:
            return self._learn_refusal(held)
        # The list may be a sample. A nominated node is looked at whatever the sample contains.
        self._waker.nominate(pod.uid)
        return Refused(Reason.DECIDING)

    def _is_asked_by_domain(self, uid: PodUid) -> bool:
        """Whether kube-scheduler offers a pod one topology domain after the other, of which one has the reserved node.

        It chooses a domain only after it has asked about every pod of the group in each domain.
        """
        pod = self._cache.pods.get(uid)
        return pod is not None and self._cycles.include(pod) and bool(self._cache.groups.constraints(pod))

    def _lags(self, question: PodQuestion) -> bool:
        """Whether kube-scheduler offers nodes that are gone: it may then not know newer nodes yet either.

        Its watch of nodes may pause for half a minute and more after an outage of the API server (client-go).
        """
        index = self._cache.snapshots.table().index
        return not all(map(index.__contains__, question.offered))

    def _elsewhere(self, pod: Pod, held: Reservation, question: PodQuestion) -> NodeName | None:
        if held.devices:
            return None  # A GPU was prepared for the pod on that node.
        if self._planning.keeps_room_from(pod.group):
            return None  # Free room may be kept for others; the plan that chose its node knew that.
        constraints = tuple(self._cache.groups.constraints(pod))
        if not self._planning.effort.can_look_at(pod, constraints):
            return None  # It is planned again beside the event loop if its node is refused.
        places = self._cache.snapshots.places_without(pod, held.node)
        # A sample may have no node without GPUs. A pod is nominated only once for that cause.
        is_sample = len(question.offered) >= ALWAYS_COMPLETE_BELOW
        spares_gpus = is_sample and decode.nominated_node(question.pod) != held.node
        return planner.move_one(
            places, pod, held.node, question.offered, self._policy, constraints=constraints, spares_gpus=spares_gpus
        )

    def _learn_refusal(self, held: Reservation) -> FilterAnswer:
        self._cache.findings.refuse_node(held.pod, held.node)
        self._planning.attempts.give_up(held.pod)
        return Refused(Reason.REFUSED_BY_SCHEDULER)

    def _learn_what_is_refused(self, uid: PodUid, question: PodQuestion) -> None:
        """Learn from a complete list of offered nodes which others kube-scheduler refuses for causes we cannot see.

        Only nodes where we see room count: a full node is missing from the list because it is full.
        """
        self._cache.findings.accept(uid)
        self._cache.findings.note_asked(uid)
        pod = self._cache.pods.get(uid)
        only_nominated = len(question.offered) == 1 and decode.nominated_node(question.pod) == question.offered[0]
        if pod is None or only_nominated or self._is_asked_by_domain(uid):
            return
        if len(question.offered) >= ALWAYS_COMPLETE_BELOW:
            # A sample says nothing about missing nodes, but the nodes that it contains are accepted.
            if refused := self._cache.findings.refused(uid):
                self._cache.findings.refuse_only(uid, refused.difference(question.offered))
            return
        if self._lags(question):
            return
        table = self._cache.snapshots.table()
        if effort.of_constraints((pod.constraint,), table, times=1) > effort.MOST_AT_ONCE:
            return  # Each refused node is learned when it is reserved and not offered.
        if table.index.keys() <= set(question.offered):
            self._cache.findings.refuse_only(uid, frozenset())
            return
        with_room = fit.eligible(pod.constraint, table) & fit.room(pod.request.amounts, self._cache.snapshots.free())
        missing = with_room & ~table.mask(question.offered)
        self._cache.findings.refuse_only(uid, frozenset(table.nodes[column].name for column in missing.nonzero()[0]))

    def _end_attempt(self, uid: PodUid) -> None:
        """Note that kube-scheduler asks again, so has not bound the pod; after a failed attempt the group backs off."""
        pod, held = self._cache.pods.get(uid), self._cache.reservations.get(uid)
        if pod is None or held is None or held.state is not ReservationState.ANSWERED:
            return
        self._cache.reservations.asked_again(uid)
        if pod.said.attempt_failed:
            log.warning("bind failed", pod=f"{pod.namespace}/{pod.name}", error=pod.said.attempt_failed)
            self._planning.attempts.dissolve(
                pod.group, f"kube-scheduler could not bind pod {pod.name}: {pod.said.attempt_failed}"
            )

    def _stand_by(self, uid: PodUid) -> None:
        """Extend a reservation that is answered now; if kube-scheduler binds the pod, no other pod gets the place."""
        pod, held = self._cache.pods.get(uid), self._cache.reservations.get(uid)
        if pod is None or held is None or held.is_written:
            return
        keep = self._cache.reservations.answered if pod.binds_elsewhere else self._cache.reservations.extend
        keep(uid, self._planning.answered_expiry())

    def _extend(self, held: Reservation) -> None:
        if held.state is ReservationState.PROMISED:
            self._cache.reservations.extend(held.pod, self._planning.answered_expiry())

    # A pod that is only asked about --------------------------------------------------------------------------------

    def _answer_what_if(self, question: PodQuestion) -> FilterAnswer:
        pod = self._managed(question.pod)
        if pod is None:
            return Fits(question.offered)
        if not self._planning.effort.can_look_at(pod):
            return Refused(Reason.DECIDING)
        snapshot, group = self._cache.snapshot(), self._cache.groups.alone(pod)
        fitting = planner.fitting(snapshot, group, pod, self._policy)
        if isinstance(fitting, Refusal):
            return Refused(fitting.reason)
        index, fits = snapshot.nodes.index, fitting.tolist()
        names = tuple(name for name in question.offered if name in index and fits[index[name]])
        return Fits(names) if names else Refused(Reason.NO_NODE_FITS)

    def _managed(self, raw: RawObject) -> Pod | None:
        """Return the pod of a question; None if it is not managed."""
        profiles = self._settings.profiles
        if not decode.names_profile(raw, profiles):
            return None
        pod = decode.asked_pod(raw, profiles=profiles, rules=self._rules)
        return pod if pod.managed else None


def _may_move(held: Reservation, question: PodQuestion) -> bool:
    """Whether a reservation moves to one of the offered nodes if there is room."""
    return (
        held.state not in {ReservationState.AWAITING, ReservationState.BINDING}
        and not held.devices
        and held.node not in question.offered
    )


def _unmanaged_or_bound(pod: Pod, question: PodQuestion) -> FilterAnswer:
    return _only(pod.node, question.offered) if pod.managed and pod.node is not None else Fits(question.offered)


def _only(node: NodeName, offered: tuple[NodeName, ...]) -> FilterAnswer:
    return Fits((node,)) if node in offered else Refused(Reason.DECIDING)
