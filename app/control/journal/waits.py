"""Words the wait of pods whose room is reserved until it is free."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from app.cluster.state.cache import ClusterCache
from app.model.names import GroupKey, NodeName, PodUid
from app.model.reason import Reason, Refusal
from app.model.sentence import NAMES_SHOWN, Name, Names, say


@dataclass(frozen=True, slots=True)
class Wait:
    """Pods of one group that start together once all of their room is free, and the victims that must leave it."""

    group: GroupKey
    pods: tuple[PodUid, ...]
    nodes: frozenset[NodeName]
    victims: tuple[PodUid, ...]
    freed: frozenset[NodeName]
    """`nodes` and the nodes of all victims: a victim on another node frees quota of a queue."""
    since: float
    began: str
    """The time of day, in RFC 3339."""
    relief: int
    """The capacity generation of the cache when the wait began: a higher one means that other room may be free."""


def for_victims(wait: Wait, cache: ClusterCache) -> Refusal:
    """Return the refusal that names the victims which are still there."""
    where = _where(wait)
    details: dict[str, int | str] = {"node": min(wait.nodes), "nodes": len(wait.nodes), "since": wait.began}
    known = [pod for uid in wait.victims if (pod := cache.pods.get(uid)) is not None]
    there = [pod for pod in known if pod.node is not None]
    if there:
        # A pod that only lost its reservation runs nowhere and stays pending: it does not block the room.
        victims = len(wait.victims) - len(known) + len(there)
        cause = say(
            "{which} to leave for it {have} not ended yet ({names})",
            which="The pod that has" if victims == 1 else f"{len(there)} of {victims} pods that have",
            have="has" if len(there) == 1 else "have",
            names=Names(tuple(Name(pod.namespace, pod.name) for pod in there)),
        )
        details |= {"leaving": len(there), "victims": victims}
    else:
        cause = say("Pods that are being deleted have not ended yet")
    sentence = say(
        "{cause}; the room on {where} is reserved for it since {began}.", where=where, began=wait.began, cause=cause
    )
    return Refusal(reason=Reason.WAITING_FOR_VICTIMS, sentence=sentence, details=details)


def for_devices(wait: Wait, obstacle: str) -> Refusal:
    """Return since when a GPU is being prepared for sharing, and the obstacle, "" if none is known."""
    is_one = len(wait.pods) == 1
    sentence = say(
        "{gpus} {are} not ready yet to be shared on {where}{obstacle}; it has waited since {began}.",
        gpus="A GPU" if is_one else "GPUs",
        where=_where(wait),
        are="is" if is_one else "are",
        obstacle=say(": {obstacle}", obstacle=obstacle) if obstacle else "",
        began=wait.began,
    )
    return Refusal(
        reason=Reason.WAITING_FOR_DEVICES,
        sentence=sentence,
        details={"node": min(wait.nodes), "since": wait.began},
    )


def _where(wait: Wait) -> str:
    return f"node{'s' * (len(wait.nodes) > 1)} {_listed(wait.nodes)}"


def _listed(names: AbstractSet[str]) -> str:
    known = sorted(names)
    more = len(known) - NAMES_SHOWN
    return ", ".join(known[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
