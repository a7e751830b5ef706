"""Words what pods wait for whose room is held until it is free."""

from collections.abc import Iterable
from dataclasses import dataclass

from app.cluster.state.cache import ClusterCache
from app.model.names import GroupKey, NodeName, PodUid
from app.model.reason import Reason, Refusal
from app.model.sentence import NAMES_SHOWN, Name, Names, say


@dataclass(frozen=True, slots=True)
class Wait:
    """Pods of one group that start together once all of their room is free, and the victims that have to leave it."""

    group: GroupKey
    pods: tuple[PodUid, ...]
    nodes: frozenset[NodeName]
    victims: frozenset[PodUid]
    freed: frozenset[NodeName]
    """The nodes that somebody has to leave, and those above: who leaves another makes room in a queue."""
    since: float
    began: str
    """The time of day, in RFC 3339."""
    relief: int
    """What the cache counted when it began: more than that, and there may be free room elsewhere."""


def for_victims(wait: Wait, cache: ClusterCache) -> Refusal:
    """Say who is still in the room."""
    where = _where(wait)
    details: dict[str, int | str] = {"node": min(wait.nodes), "nodes": len(wait.nodes), "since": wait.began}
    known = [pod for uid in wait.victims if (pod := cache.pods.get(uid)) is not None]
    there = [pod for pod in known if pod.node is not None]
    if there:
        # Who only lost a promise runs nowhere, and goes on waiting: it is not in the way.
        victims = len(wait.victims) - len(known) + len(there)
        cause = say(
            "{which} told to leave for it {are} still there ({names})",
            which="the pod that was" if victims == 1 else f"{len(there)} of {victims} pods that were",
            are="is" if len(there) == 1 else "are",
            names=Names(tuple(Name(pod.namespace, pod.name) for pod in there)),
        )
        details |= {"leaving": len(there), "victims": victims}
    else:
        cause = say("pods that are being deleted anyway are still there")
    sentence = say(
        "Its room on {where} has been held for it since {began}; {cause}.", where=where, began=wait.began, cause=cause
    )
    return Refusal(reason=Reason.WAITING_FOR_VICTIMS, sentence=sentence, details=details)


def for_devices(wait: Wait, obstacle: str) -> Refusal:
    """Say since when a GPU is being made ready to be shared, and what keeps it from that, "" if nothing is known."""
    sentence = "It has been waiting since {began} for {gpus} on {where} to become ready for sharing"
    return Refusal(
        reason=Reason.WAITING_FOR_DEVICES,
        sentence=say(
            f"{sentence}: {{obstacle}}." if obstacle else f"{sentence}.",
            began=wait.began,
            gpus="a GPU" if len(wait.pods) == 1 else "GPUs",
            where=_where(wait),
            obstacle=obstacle,
        ),
        details={"node": min(wait.nodes), "since": wait.began},
    )


def _where(wait: Wait) -> str:
    return f"node{'s' * (len(wait.nodes) > 1)} {_listed(wait.nodes)}"


def _listed(names: Iterable[str]) -> str:
    known = sorted(names)
    more = len(known) - NAMES_SHOWN
    return ", ".join(known[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
