"""Keeps one reservation pod for every shared GPU: it holds the whole device, so that Leeboard can assign parts.

`cluster.upkeep` computes the needed writes from the cache alone, so that the result is the same after a restart;
`reservation_pods` writes them. A reservation pod is not deleted while a binding with an unknown outcome may need it.
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
from app.telemetry import EvictionCause

log = structlog.get_logger()

LOOK_AGAIN_S = 5.0
"""How often unsettled GPUs are reviewed although nothing has changed: a write may have failed."""

IN_THE_WAY_S = 10.0
"""How long a reservation pod without users may keep a GPU that other pods wait for. The last write of a former active
replica may have created it after the next replica had decided otherwise. This is shorter than the grace period of a
reservation pod that blocks no other pod, and long enough to see the bindings of the former replica.
"""

AT_ONCE = 16
"""Reservation pods of one shared GPU at most, whatever an agent reports: each takes a GPU, and no node has more."""

UNTIL_AGREED = "until they agree, no pod gets a whole GPU there or a part of this one"


class SharedGpus:
    """The work on shared GPUs that is under way. Only the event loop calls this class."""

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
        self._known: dict[NodeName, dict[str, None]] = {}
        """The shared GPUs that have an entry in the fields below, by node."""
        self._wanted: set[Place] = set()
        """The shared GPUs that may be opened: the room for the pods that wait for them is free."""
        self._unheld_since: dict[Place, float] = {}
        self._had_pods: set[Place] = set()
        self._contested: set[Place] = set()
        self._closed: dict[Place, None] = {}
        self._annotated: set[PodUid] = set()
        self._swept = False
        """Whether the reservation pods that ended before this replica became active were deleted."""
        self._knows_all = False
        """Whether every shared GPU was reviewed since this replica became active: `_had_pods` is then complete."""
        self._look_again_at = clock()

    def prepare(self, uids: Collection[PodUid]) -> bool:
        """Prepare the shared GPUs of these pods, whose room is free; return whether all are ready."""
        unready = [place for uid in uids for place in self._cache.gpus.not_ready(uid)]
        for place in unready:
            if place in self._wanted:
                continue
            self._wanted.add(place)
            node, name = place
            gpu = self._cache.gpus.find(node, name)
            if gpu is not None:
                self._look_after(node, gpu)
        return not unready

    def obstacle(self, uids: Collection[PodUid]) -> str:
        """Return what keeps the shared GPUs of these pods from being ready, "" when it is not known."""
        places = [place for uid in uids for place in self._cache.gpus.not_ready(uid)]
        return next(filter(None, (self._refused(place) or self._pods.obstacle(place) for place in places)), "")

    def _refused(self, place: Place) -> str:
        """Return the reason of kube-scheduler for not placing a reservation pod."""
        gpu = self._cache.gpus.find(*place)
        # Read from the cache: a new reason of kube-scheduler does not change the GPU record.
        pods = [self._cache.pods.get(pod.uid) for pod in gpu.reservations] if gpu is not None else []
        pod = next((pod for pod in pods if pod is not None and pod.said.because), None)
        if pod is None:
            return ""
        name = Name(pod.namespace, pod.name, "in Leeboard's namespace")
        return say("its reservation pod {name} finds no place: {said}", name=name, said=pod.said.because)

    def review(self) -> list[PodUid]:
        """Review all changes, and at intervals every shared GPU that is not settled.

        Return the pods whose reservation is void: it is no longer certain which GPU they would get.
        """
        gpus = self._cache.gpus
        self._cache.gpu_books.age(self._clock() - self._settings.agent_ttl_s)
        changes = gpus.drain_changes()
        names = dict.fromkeys(changes.nodes)
        if self._clock() >= self._look_again_at:
            self._look_again_at = self._clock() + LOOK_AGAIN_S
            names |= dict.fromkeys(gpus.unsettled_nodes() if self._knows_all else gpus.sharing_nodes())
            self._knows_all = True
            self._tidy()
        if not (names or changes.vanished or self._contested):
            return []
        for pod in changes.vanished:
            place = node_of(pod) or NOWHERE[0], pod.reserves
            if place in self._closed and not self._is_reserved(place):
                # The reservation pod is gone, and a new one of its name may exist.
                self._reopen(place)
            self._pods.bury(pod, place, pause_s=LOOK_AGAIN_S)
        for name in names:
            for gpu in gpus.shared(name):
                self._look_after(name, gpu)
            self._forget_gone(name)
        return worthless(self._cache, names, contested={node for node, _ in self._contested})

    def stand_down(self) -> None:
        """Forget the work under way: another replica decides."""
        self._wanted.clear()
        self._unheld_since.clear()
        self._had_pods.clear()
        self._annotated.clear()
        # The active replica deletes the reservation pods that end meanwhile.
        self._cache.gpus.reservations.drop_vanished()
        self._swept = self._knows_all = False
        self._pods.recall()
        for place in [place for place in self._closed if not self._pods.is_under_way(place)]:
            self._reopen(place)

    async def run(self) -> None:
        """Write until cancelled."""
        await self._pods.run()

    # Looking ----------------------------------------------------------------------------------------------------------

    def _look_after(self, node: NodeName, gpu: SharedGpu) -> None:
        place = node, gpu.name
        self._known.setdefault(node, {})[gpu.name] = None
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
        """Whether a shared GPU without users is no longer needed."""
        if place in self._had_pods:
            return True
        grace_s = self._settings.reservation_grace_s
        if self._is_in_the_way(place[0], gpu):
            grace_s = min(grace_s, IN_THE_WAY_S)
        return self._clock() - self._unheld_since.get(place, self._clock()) >= grace_s

    def _is_in_the_way(self, node: NodeName, gpu: SharedGpu) -> bool:
        """Whether it holds a GPU while pods wait for another one of the node whose reservation pod is not placed."""
        if all(pod.node is None for pod in gpu.reservations):
            return False
        held = (each for each in self._cache.gpus.shared(node) if each.holders)
        # `upkeep` judges shared GPUs with running pods and without reservation pods.
        waited_for = (each for each in held if each.reservations or not each.is_bound)
        return any(all(pod.node is None for pod in each.reservations) for each in waited_for)

    def _dismiss(self, need: Dismiss) -> None:
        pod = self._cache.pods.get(need.pod)
        if pod is not None and not self._leadership.failure():
            name = f"{pod.namespace}/{pod.name}"
            message = say("Pod {name} {message}", name=name, message=need.message)
            self._evictor.dismiss(need.pod, cause=EvictionCause.DEVICE_LOST, message=message)

    def _order(self, place: Place, need: Reserve | Free) -> None:
        if isinstance(need, Free) and not self._is_held(place):
            # From now on no pod may be assigned to it: at the time of the write, a pod would run on an unreserved
            # device.
            self._closed[place] = None
            self._cache.gpu_books.close(*place)
        self._pods.order(place, need)

    def _annotate(self, place: Place, gpu: SharedGpu) -> None:
        if gpu.state is not GpuState.READY or len(gpu.reservations) != 1 or not gpu.holders:
            return
        pod = gpu.reservations[0]
        if pod.device_uuids != (gpu.uuid,) and pod.uid not in self._annotated:
            self._annotated.add(pod.uid)
            self._pods.order(place, Annotate(pod, gpu.uuid))

    # Calls of the writers ---------------------------------------------------------------------------------------------

    def is_due(self, place: Place, write: Write) -> bool:
        """Whether a queued write is still wanted: the state that it was queued for may have changed meanwhile."""
        match write:
            case Reserve(node, name):
                gpu = self._cache.gpus.find(node, name)
                return gpu is not None and write in needs(gpu, self._circumstances(place, gpu))
            case Free() if place in self._closed and self._is_held(place):
                self._reopen(place)  # A pod turned out to be bound to it.
                return False
            case _:
                return True

    def note_failed(self, place: Place, error: KubeError) -> None:
        """Review the subject of a failed write again."""
        # Ended reservation pods may remain: the next review lists them again.
        self._swept = self._swept and place != NOWHERE
        # If the outcome is unknown, no pod gets a part of the GPU until the watch shows whether its pod was deleted.
        if place in self._closed and not isinstance(error, OutcomeUnknownError):
            self._reopen(place)
        # The failed write may have been the annotation.
        gpu = self._cache.gpus.find(*place)
        self._annotated.difference_update(pod.uid for pod in (gpu.reservations if gpu is not None else ()))

    def _is_held(self, place: Place) -> bool:
        gpu = self._cache.gpus.find(*place)
        return gpu is not None and bool(gpu.holders)

    def _is_reserved(self, place: Place) -> bool:
        gpu = self._cache.gpus.find(*place)
        return gpu is not None and bool(gpu.reservations)

    def _reopen(self, place: Place) -> None:
        self._closed.pop(place, None)
        self._cache.gpu_books.reopen(*place)

    # Forgetting -------------------------------------------------------------------------------------------------------

    def _tidy(self) -> None:
        if not self._swept:
            self._swept = True
            self._pods.order(NOWHERE, Sweep())
        self._annotated = {uid for uid in self._annotated if self._cache.gpus.reservations.get(uid) is not None}

    def _forget_gone(self, node: NodeName) -> None:
        known, there = self._known.get(node, {}), {gpu.name for gpu in self._cache.gpus.shared(node)}
        for name in [name for name in known if name not in there]:
            place = node, name
            del known[name]
            for places in (self._wanted, self._had_pods, self._contested):
                places.discard(place)
            self._unheld_since.pop(place, None)
            self._pods.forget(place)
            if place in self._closed:
                self._reopen(place)
        if not known:
            self._known.pop(node, None)
