"""Finds void reservations: it is no longer certain which GPU their pods would get."""

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet

from app.cluster.ledger.reservations import ReservationState
from app.cluster.state.cache import ClusterCache
from app.model.names import NodeName, PodUid


def worthless(cache: ClusterCache, nodes: Iterable[NodeName], *, contested: AbstractSet[NodeName]) -> list[PodUid]:
    """Return the pods with void reservations: sharers of GPUs on `nodes`, and pods with whole GPUs on `contested`."""
    sharers = [uid for name in nodes for uid in cache.gpus.parts.holders_on(name) if _is_worthless(cache, uid)]
    return [*sharers, *_of_whole_gpus(cache, contested)]


def _is_worthless(cache: ClusterCache, uid: PodUid) -> bool:
    held = cache.reservations.get(uid)
    return held is not None and held.state is ReservationState.PROMISED and bool(cache.gpus.not_ready(uid))


def _of_whole_gpus(cache: ClusterCache, contested: AbstractSet[NodeName]) -> Iterator[PodUid]:
    """Yield the pods with reservations of whole GPUs on these nodes: they might get a GPU on which other pods run."""
    for held in cache.reservations if contested else ():
        is_promised = held.node in contested and held.state is ReservationState.PROMISED
        pod = cache.pods.get(held.pod) if is_promised else None
        if pod is not None and pod.request.gpu_milli:
            yield held.pod
