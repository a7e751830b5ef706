"""Says why groups do not start although they have places, or get them again, and are not waiting groups."""

from collections.abc import Mapping
from itertools import chain

from app.cluster.state.cache import ClusterCache
from app.control.cycle.preemptions import PendingPreemptions
from app.control.journal.backoff import Backoff, Setback
from app.model.names import GroupKey
from app.model.reason import Reason, Refusal
from app.model.sentence import capital, say


def stalled(cache: ClusterCache, preemptions: PendingPreemptions, backoff: Backoff) -> Mapping[GroupKey, Refusal]:
    """Return the groups whose room is being freed, or whose last bind or attempt failed, each with its reason.

    A failed attempt is reported until more pods of the group are bound than at the failure, or all its pods have a
    node.
    """
    waiting, found = cache.groups.waiting(), dict(preemptions.refusals())
    setbacks = (
        (key, setback.error) for key, setback in backoff.setbacks().items() if not _is_over(cache, key, setback)
    )
    for key, error in chain(cache.reservations.failing(), setbacks):
        if key not in found and key not in waiting:
            sentence = say("{error}; Leeboard is trying again.", error=capital(error))
            found[key] = Refusal(reason=Reason.BACKING_OFF, sentence=sentence)
    return found


def _is_over(cache: ClusterCache, key: GroupKey, setback: Setback) -> bool:
    pods = cache.groups.pods(key)
    return cache.groups.progress.bound(key) > setback.bound or all(pod.node is not None for pod in pods)
