"""Sees to it that every shared GPU has a reservation pod: it holds the whole device, so that parts can be given out.

What is needed is worked out by `cluster.upkeep` from the cache alone, so that it comes out the same after a restart;
`reservation_pods` writes it. Nothing is removed that may still be needed by a binding whose outcome nobody knows.
"""

from collections.abc import Callable, Collection

import structlog

from app.cluster.gpus.parts import node_of
from app.cluster.gpus.shared_gpus import GpuState, SharedGpu
from app.cluster.gpus.upkeep import Circumstances, Dismiss, Free, Reserve, needs
from app.cluster.state.cache import ClusterCache
from app.control.gpus.reservation_pods import NOWHERE, Annotate, Place, ReservationPods, Sweep, Tell, Write
from app.control.gpus.worthless_promises import worthless
from app.control.leadership.leadership import Leadership
from app.control.writers.evictor import Evictor
from app.model.names import NodeName, PodUid
from app.model.seam import Cluster, KubeError, OutcomeUnknownError
from app.model.sentence import Name, say
from app.settings import Settings

log = structlog.get_logger()

LOOK_AGAIN_S = 5.0
"""How often what is not as it should be is looked at although nothing has changed: a write may have failed."""

IN_THE_WAY_S = 10.0
"""For how long a reservation pod that nobody has a part of may keep the GPU for which others wait: what a replica wrote
last may have come about when another had decided anew. Shorter than the grace of one that is in nobody's way, and long
enough to see whom that replica has bound."""

AT_ONCE = 16
"""How many reservation pods one shared GPU may have, whatever an agent says: each takes a GPU, and no node has more."""

UNTIL_AGREED = "until they agree, no pod gets a whole GPU there or a part of this one"


class SharedGpus:
    """What is being done about the shared GPUs. Only the event loop calls in here."""

    def __init__(  # noqa: PLR0913 # collaborators come in through the constructor
        self,
        cache: ClusterCache,
        cluster: Cluster,
        leadership: Leadership,
        evictor: Evictor,
        settings: Settings,
        *,
        clock: Callable[[], float],
    ) -> None:
        """`clock` is monotonic."""
        self._cache = cache
        self._leadership = leadership
        self._evictor = evictor
        self._settings = settings
        self._clock = clock
        self._pods = ReservationPods(cache, cluster, leadership, settings, self, clock=clock)
        self._known: dict[NodeName, set[str]] = {}
        """The shared GPUs of which anything below is remembered, by node."""
        self._wanted: set[Place] = set()
        """Those that may be opened: the room for who waits for them is there."""
        self._unheld_since: dict[Place, float] = {}
        self._had_pods: set[Place] = set()
        self._contested: set[Place] = set()
        self._closed: set[Place] = set()
        self._annotated: set[PodUid] = set()
        self._swept = False
        """Whether those were removed that had ended before we began to decide."""
        self._knows_all = False
        """Whether every shared GPU has been looked at since we decide: which of them had pods is remembered."""
        self._look_again_at = clock()

    def prepare(self, uids: Collection[PodUid]) -> bool:
        """Have the GPUs made ready that these pods are to share, whose room is there; return whether all are."""
        unready = [place for uid in uids for place in self._cache.gpus.not_ready(uid)]
        for node, name in set(unready) - self._wanted:
            self._wanted.add((node, name))
            gpu = self._cache.gpus.find(node, name)
            if gpu is not None:
                self._look_after(node, gpu)
        return not unready

    def obstacle(self, uids: Collection[PodUid]) -> str:
        """Return what keeps the GPUs from being ready that these pods are to share, "" when nobody has said so."""
        places = [place for uid in uids for place in self._cache.gpus.not_ready(uid)]
        return next(filter(None, (self._refused(place) or self._pods.obstacle(place) for place in places)), "")

    def _refused(self, place: Place) -> str:
        """Return what kube-scheduler says of a reservation pod that it does not place."""
        gpu = self._cache.gpus.find(*place)
        # As the cache knows them: what kube-scheduler says of a pod is no change of its GPU.
        pods = [self._cache.pods.get(pod.uid) for pod in gpu.reservations] if gpu is not None else []
        pod = next((pod for pod in pods if pod is not None and pod.said.because), None)
        if pod is None:
            return ""
        name = Name(pod.namespace, pod.name, "in Leeboard's namespace")
        return say("its reservation pod {name} finds no place: {said}", name=name, said=pod.said.because)

    def review(self) -> list[PodUid]:
        """See to what has changed, and now and then to everything that is not as it should be.

        Return the pods whose promise is worth nothing, since it is not certain any more which GPU they would get.
        """
        gpus = self._cache.gpus
        self._cache.gpu_books.age(self._clock() - self._settings.agent_ttl_s)
        changes = gpus.drain_changes()
        names = set(changes.nodes)
        if self._clock() >= self._look_again_at:
            self._look_again_at = self._clock() + LOOK_AGAIN_S
            names.update(gpus.unsettled_nodes() if self._knows_all else gpus.sharing_nodes())
            self._knows_all = True
            self._tidy()
        for pod in changes.vanished:
            place = node_of(pod) or NOWHERE[0], pod.reserves
            if place in self._closed and not self._is_reserved(place):
                # It is gone, and somebody may have been given a new one of its name.
                self._reopen(place)
            self._pods.bury(pod, place, pause_s=LOOK_AGAIN_S)
        for name in names:
            for gpu in gpus.shared(name):
                self._look_after(name, gpu)
            self._forget_gone(name)
        return worthless(self._cache, names, contested={node for node, _ in self._contested})

    def stand_down(self) -> None:
        """Forget what we were about: another replica decides."""
        self._wanted.clear()
        self._unheld_since.clear()
        self._had_pods.clear()
        self._annotated.clear()
        # Those that end meanwhile are for the other one to remove.
        self._cache.gpus.reservations.drop_vanished()
        self._swept = self._knows_all = False
        self._pods.recall()
        for place in [place for place in self._closed if not self._pods.is_under_way(place)]:
            self._reopen(place)

    async def run(self) -> None:
        """Write for ever."""
        await self._pods.run()

    # Looking ----------------------------------------------------------------------------------------------------------

    def _look_after(self, node: NodeName, gpu: SharedGpu) -> None:
        place = node, gpu.name
        self._known.setdefault(node, set()).add(gpu.name)
        self._note(place, gpu)
        is_busy = self._pods.is_busy(place)
        for need in () if gpu.is_settled else needs(gpu, self._circumstances(place, gpu)):
            if isinstance(need, Dismiss):
                self._dismiss(need)
            elif not is_busy and (isinstance(need, Free) or len(gpu.reservations) < AT_ONCE):
                self._order(place, need)
        if not is_busy:
            self._annotate(place, gpu)

    def _note(self, place: Place, gpu: SharedGpu) -> None:
        if gpu.holders:
            self._unheld_since.pop(place, None)
        else:
            self._unheld_since.setdefault(place, self._clock())
        if gpu.is_bound:
            self._had_pods.add(place)
            self._wanted.discard(place)
        if gpu.state is GpuState.READY:
            self._pods.note_ready(place)
        if gpu.state is GpuState.CONTESTED and place not in self._contested:
            self._contested.add(place)
            log.warning("shared GPU is contested", node=place[0], gpu=gpu.uuid, group=gpu.name, cause=gpu.reason)
            self._pods.order(NOWHERE, Tell(place[0], f"shared GPU {gpu.uuid}: {gpu.reason}; {UNTIL_AGREED}"))
        elif gpu.state is not GpuState.CONTESTED and place in self._contested:
            self._contested.discard(place)
            log.info("shared GPU is no longer contested", node=place[0], gpu=gpu.uuid, group=gpu.name)

    def _circumstances(self, place: Place, gpu: SharedGpu) -> Circumstances:
        node, gpus = place[0], self._cache.gpus
        return Circumstances(
            node=node,
            agent=gpus.agents.reliable(node),
            parts=tuple(gpus.parts.on(node)),
            is_wanted=place in self._wanted,
            is_over=not gpu.holders and self._is_over(place, gpu),
        )

    def _is_over(self, place: Place, gpu: SharedGpu) -> bool:
        """Whether a shared GPU that nobody has a part of is needed no more."""
        if place in self._had_pods:
            return True
        grace_s = self._settings.reservation_grace_s
        if self._is_in_the_way(place[0], gpu):
            grace_s = min(grace_s, IN_THE_WAY_S)
        return self._clock() - self._unheld_since.get(place, self._clock()) >= grace_s

    def _is_in_the_way(self, node: NodeName, gpu: SharedGpu) -> bool:
        """Whether it has a GPU of its node while pods wait for another one whose reservation pod has no place yet."""
        if all(pod.node is None for pod in gpu.reservations):
            return False
        held = (each for each in self._cache.gpus.shared(node) if each.holders)
        # Those on which pods run, and which nothing reserves, are for `upkeep` to judge.
        waited_for = (each for each in held if each.reservations or not each.is_bound)
        return any(all(pod.node is None for pod in each.reservations) for each in waited_for)

    def _dismiss(self, need: Dismiss) -> None:
        pod = self._cache.pods.get(need.pod)
        if pod is not None and not self._leadership.failure():
            name = f"{pod.namespace}/{pod.name}"
            message = say("Pod {name} {message}", name=name, message=need.message)
            self._evictor.dismiss(need.pod, cause="devicelost", message=message)

    def _order(self, place: Place, need: Reserve | Free) -> None:
        if isinstance(need, Free) and not self._is_held(place):
            # From now on nobody may come on it: by the time of the write somebody would run on a device of nobody.
            self._closed.add(place)
            self._cache.gpu_books.close(*place)
        self._pods.order(place, need)

    def _annotate(self, place: Place, gpu: SharedGpu) -> None:
        if gpu.state is not GpuState.READY or len(gpu.reservations) != 1 or not gpu.holders:
            return
        pod = gpu.reservations[0]
        if pod.device_uuids != (gpu.uuid,) and pod.uid not in self._annotated:
            self._annotated.add(pod.uid)
            self._pods.order(place, Annotate(pod, gpu.uuid))

    # What the writers ask and tell ------------------------------------------------------------------------------------

    def is_due(self, place: Place, write: Write) -> bool:
        """Whether a write is still wanted: what it was ordered for may have come about while it waited for its turn."""
        match write:
            case Reserve(node, name):
                gpu = self._cache.gpus.find(node, name)
                return gpu is not None and write in needs(gpu, self._circumstances(place, gpu))
            case Free() if place in self._closed and self._is_held(place):
                self._reopen(place)  # A pod has turned out to be bound to it.
                return False
            case _:
                return True

    def note_failed(self, place: Place, error: KubeError) -> None:
        """Look again at what a write that failed was about."""
        # What may be left over is looked for anew.
        self._swept = self._swept and place != NOWHERE
        # Of what may have been removed nobody gets a part until the watch shows whether it has been.
        if place in self._closed and not isinstance(error, OutcomeUnknownError):
            self._reopen(place)
        # It may have been the annotation.
        gpu = self._cache.gpus.find(*place)
        self._annotated.difference_update(pod.uid for pod in (gpu.reservations if gpu is not None else ()))

    def _is_held(self, place: Place) -> bool:
        gpu = self._cache.gpus.find(*place)
        return gpu is not None and bool(gpu.holders)

    def _is_reserved(self, place: Place) -> bool:
        gpu = self._cache.gpus.find(*place)
        return gpu is not None and bool(gpu.reservations)

    def _reopen(self, place: Place) -> None:
        self._closed.discard(place)
        self._cache.gpu_books.reopen(*place)

    # Forgetting -------------------------------------------------------------------------------------------------------

    def _tidy(self) -> None:
        if not self._swept:
            self._swept = True
            self._pods.order(NOWHERE, Sweep())
        self._annotated = {uid for uid in self._annotated if self._cache.gpus.reservations.get(uid) is not None}

    def _forget_gone(self, node: NodeName) -> None:
        gone = self._known.get(node, set()) - {gpu.name for gpu in self._cache.gpus.shared(node)}
        for place in [(node, name) for name in gone]:
            for places in (self._wanted, self._had_pods, self._contested):
                places.discard(place)
            self._unheld_since.pop(place, None)
            self._pods.forget(place)
            if place in self._closed:
                self._reopen(place)
        if gone:
            self._known[node] -= gone
            if not self._known[node]:
                del self._known[node]
