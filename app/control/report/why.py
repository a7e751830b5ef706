"""Explains the state of a pod or a PodGroup, also of a deleted one: one sentence, and the decisions about it.

Answers about existing objects come from the cache and the last plan; for deleted objects, only decisions remain.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from heapq import nsmallest
from itertools import islice
from operator import attrgetter
from typing import Protocol

from app.cluster.state.cache import ClusterCache
from app.control.cycle.planning import Planning
from app.control.groups.pod_grouper import PodGrouper
from app.control.journal.decisions import Decisions
from app.control.report import messages
from app.control.report.pod_state import KnownPod, known
from app.model.explanation import ClaimNeed, Explanation, Leaver, Member, Outcome, PodState, Subject, Unknown, Workload
from app.model.names import NATIVE_API, GroupKey
from app.model.pod import Pod
from app.model.podgroup import GroupSpec, PodGroup
from app.model.reason import Refusal
from app.scheduling.explain.queue_summary import stand_of

DECISIONS_SHOWN = 10
MEMBERS_SHOWN = 20
LEAVERS_SHOWN = 20
CLAIMS_SHOWN = 10

UNSTARTED = {PodState.AWAITING, PodState.PROMISED}
"""States of pods that have a place and may have a reason why they cannot use it yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """An existing PodGroup, and its pods with their states."""

    key: GroupKey
    spec: GroupSpec | None
    formed: PodGroup | None
    """None when none of its pods holds a place or may get one."""
    pods: tuple[KnownPod, ...]
    refusal: Refusal | None

    @property
    def name(self) -> str:
        """The name for users: for a pod that is its own group the name of the pod, not its uid."""
        first = self.pods[0].pod if self.pods else None
        return self.key.name if first is None or first.names_group else first.name

    @property
    def counts(self) -> Counter[str]:
        """The number of pods in each state."""
        return Counter(each.state.value for each in self.pods)


class AsksForNodes(Protocol):
    """Requests nodes from a cluster autoscaler."""

    def shown(self, key: GroupKey) -> str:
        """Return one sentence on the request for a group; empty when no autoscaler is used or needed."""
        ...


class Explainer:
    """Answers one question at a time from the current state; changes nothing."""

    def __init__(  # noqa: PLR0913 # collaborators come in through the constructor
        self,
        cache: ClusterCache,
        planning: Planning,
        decisions: Decisions,
        *,
        grouper: PodGrouper,
        autoscaler: AsksForNodes,
        profiles: Collection[str],
    ) -> None:
        """`profiles` are the scheduler names of the pods that Leeboard schedules."""
        self._cache = cache
        self._grouper = grouper
        self._autoscaler = autoscaler
        self._planning = planning
        self._decisions = decisions
        self._profiles = profiles

    def explain(self, namespace: str, name: str, subject: Subject | None = None) -> Explanation | Unknown:
        """Explain the pod or PodGroup of this name: pods before PodGroups, existing objects before deleted ones."""
        # 1. a pod of ours 2. a PodGroup 3. a workload 4. a deleted pod or PodGroup 5. a pod of another scheduler
        pod, keys = self._pod(namespace, name), (GroupKey(namespace, name), GroupKey(namespace, name, NATIVE_API))
        pods_too, groups_too = subject in {None, Subject.POD}, subject in {None, Subject.POD_GROUP}
        if pods_too and pod is not None and pod.managed:
            return self._explained_pod(pod)
        if groups_too and (found := list(filter(self._is_known, keys))):
            return self._explained_group(found[0])
        if subject in {None, Subject.WORKLOAD} and (workload := self._grouper.workload(namespace, name)) is not None:
            return self._explained_workload(namespace, name, workload)
        gone = self._gone_pod(namespace, name) if pods_too else None
        if gone is None and groups_too:
            decisions = next(filter(None, [self._decisions.of_group(key, DECISIONS_SHOWN) for key in keys]), ())
            gone = messages.gone_group(namespace, name, decisions) if decisions else None
        if gone is not None:
            return gone
        if pods_too and pod is not None:
            return messages.of_another_scheduler(pod, self._profiles)
        return messages.unknown(namespace, name, subject)

    def _is_known(self, key: GroupKey) -> bool:
        return self._cache.groups.specs.get(key) is not None or bool(self._cache.groups.pods(key))

    def _pod(self, namespace: str, name: str) -> Pod | None:
        named = [pod for pod in self._cache.pods.all() if pod.name == name and pod.namespace == namespace]
        # A pod that was created again under its name is the one that is meant.
        return min(named, key=lambda pod: pod.deleting, default=None)

    def _gone_pod(self, namespace: str, name: str) -> Explanation | None:
        last = self._decisions.last_of_pod(namespace, name)
        if last is None:
            return None
        return messages.gone_pod(namespace, name, last, self._decisions.of_pod(last.group, name, DECISIONS_SHOWN))

    # Existing objects -------------------------------------------------------------------------------------------------

    def _explained_pod(self, pod: Pod) -> Explanation:
        group = self._group(pod.group)
        stands = next(each for each in group.pods if each.pod.uid == pod.uid)
        last = self._decisions.last_of_pod(pod.namespace, pod.name)
        why = messages.why_pod(stands, last, group.refusal, group.spec)
        return self._explained(
            group,
            Explanation(
                subject=Subject.POD,
                namespace=pod.namespace,
                name=pod.name,
                uid=pod.uid,
                state=stands.state,
                why=why,
                node=stands.node,
                since=self._runs_since(stands, group),
                waits_for=tuple(self._leavers([stands])),
                decisions=tuple(self._decisions.of_pod(pod.group, pod.name, DECISIONS_SHOWN)),
            ),
        )

    def _explained_workload(self, namespace: str, name: str, workload: Workload) -> Explanation:
        """Explain the PodGroup of a workload; of several, a waiting one; of none, why there is none."""
        waiting = self._cache.groups.waiting()
        if workload.groups:
            told = self._explained_group(min(workload.groups, key=lambda key: (key not in waiting, key)))
            return replace(told, workload_groups=len(workload.groups))
        return messages.without_pods(namespace, name, workload, self._profiles)

    def _explained_group(self, key: GroupKey) -> Explanation:
        group = self._group(key)
        counts, nodes = group.counts, {each.node for each in group.pods if each.state is PodState.BOUND}
        finished, owed = self._cache.groups.progress.bound(key), group.formed.owed if group.formed is not None else 0
        state = messages.state_of(counts, group.spec, finished=finished, owed=owed)
        placed = (each.refusal for each in group.pods if each.state in UNSTARTED and each.refusal is not None)
        refusal = group.refusal or next(placed, None)
        why = messages.why_group(state, refusal, group.spec, counts=counts, nodes=len(nodes))
        return self._explained(
            group,
            Explanation(
                subject=Subject.POD_GROUP,
                namespace=key.namespace,
                name=group.name,
                uid=group.spec.uid if group.spec is not None else "",
                state=state,
                why=why,
                since=group.formed.started_at if group.formed is not None else None,
                counts=counts,
                members=tuple(_members(group.pods)),
                waits_for=tuple(self._leavers(group.pods)),
                decisions=tuple(self._decisions.of_group(key, DECISIONS_SHOWN)),
            ),
        )

    def _explained(self, group: _Group, told: Explanation) -> Explanation:
        """Add the fields that answers about PodGroups and about pods have in common."""
        snapshot, on = self._cache.snapshot().apart(), self._cache.groups.terms.of(group.key)
        queue = on.queue if on is not None else group.spec.queue if group.spec is not None else None
        claims = tuple(self._claims(told, group))
        return replace(
            told,
            why=messages.with_claims(told.why, claims),
            claims=claims,
            pod_group=group.name,
            queue=queue,
            stand=stand_of(snapshot, queue) if queue is not None else None,
            priority=on.priority if on is not None else None,
            preemptible=on.preemptible if on is not None else None,
            min_member=_min_member(group),
            position=self._planning.position(snapshot, group.key),
            autoscaler=self._autoscaler.shown(group.key),
        )

    def _claims(self, told: Explanation, group: _Group) -> Iterator[ClaimNeed]:
        """Yield the claims of the pod in question, or the first ones of the PodGroup; of several pods each once."""
        pods = (each.pod for each in group.pods if told.subject is not Subject.POD or each.pod.uid == told.uid)
        needs = (need for pod in pods for need in self._cache.claims.needs(pod))
        return islice(dict.fromkeys(islice(needs, CLAIMS_SHOWN * MEMBERS_SHOWN)), CLAIMS_SHOWN)

    def _group(self, key: GroupKey) -> _Group:
        waiting, refusals = self._cache.groups.waiting().get(key), self._planning.refusals_to_tell
        formed = waiting or self._cache.groups.running().get(key)
        stalled, awaited = self._planning.attempts.stalled(), self._planning.attempts.awaited(key)
        refusal = refusals.get(key) or (waiting.refusal if waiting is not None else None) or stalled.get(key)
        pods = sorted(self._cache.groups.pods(key), key=lambda pod: (pod.created_at, len(pod.name), pod.name))
        return _Group(
            key=key,
            spec=self._cache.groups.specs.get(key),
            formed=formed,
            pods=tuple(known(self._cache, refusals, pod, stalled=stalled, awaited=awaited) for pod in pods),
            refusal=refusal,
        )

    def _runs_since(self, stands: KnownPod, group: _Group) -> float | None:
        if stands.state is not PodState.BOUND:
            return None
        if len(group.pods) == 1:
            return group.formed.started_at if group.formed is not None else None
        # Of a gang, only the start of its first pod is known; of a single member, its decision.
        decisions = self._decisions.of_pod(group.key, stands.pod.name, DECISIONS_SHOWN)
        return next((one.at for one in decisions if one.outcome is Outcome.STARTED), None)

    def _leavers(self, pods: Iterable[KnownPod]) -> Iterator[Leaver]:
        """Yield the pods that are being deleted on the nodes where room for these pods is reserved, by name."""
        nodes = {each.node for each in pods if each.state is PodState.AWAITING}
        if not nodes:
            return
        since = self._decisions.evicted_at()
        leaving = (pod for pod in self._cache.pods.all() if pod.deleting and pod.node in nodes)
        for pod in nsmallest(LEAVERS_SHOWN, leaving, key=attrgetter("namespace", "name")):
            if pod.node is not None:
                yield Leaver(namespace=pod.namespace, name=pod.name, node=pod.node, since=since.get(pod.uid))


def _members(pods: Iterable[KnownPod]) -> Iterator[Member]:
    for each in islice(pods, MEMBERS_SHOWN):
        yield Member(each.pod.name, each.state, each.node)


def _min_member(group: _Group) -> int | None:
    if group.spec is not None:
        return group.spec.min_member
    return group.formed.min_member if group.formed is not None else None
