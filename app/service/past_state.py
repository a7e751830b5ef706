"""What a replayed service knew at the time at which the replay stopped: what waited and why, and who had what."""

from collections.abc import Iterator
from dataclasses import dataclass

from app.service.components import Components
from app.web.answers import PodGroupAnswer, QueueAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedPlace:
    """A reservation, and the pod that it is for."""

    namespace: str
    pod: str
    pod_group: str
    node: str
    devices: tuple[str, ...]
    """The shared devices of which the pod has a part."""
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PastState:
    """The state at one time."""

    at: str
    """The wall time, RFC 3339."""
    undecided: str
    """Why nothing was decided then: the replica was on standby, for example. Empty when it decided."""
    waiting: tuple[PodGroupAnswer, ...]
    """Without a reason where no plan has looked at the PodGroup yet."""
    reservations: tuple[ReservedPlace, ...]
    queues: tuple[QueueAnswer, ...]


def past_state(components: Components, *, at: str) -> PastState:
    """Read the state. The caller lets code of the core run, see `Core.reading`."""
    inspect = components.inspect
    failed = next((check for check in inspect.checks() if not check.passed), None)
    return PastState(
        at=at,
        undecided="" if failed is None else failed.failure,
        waiting=tuple(PodGroupAnswer.of(group, refusal) for group, refusal in inspect.waiting()),
        reservations=tuple(_reserved(components)),
        queues=tuple(QueueAnswer.of(stand) for stand in inspect.queue_stands()()),
    )


def _reserved(components: Components) -> Iterator[ReservedPlace]:
    cache = components.cache
    for held in cache.reservations:
        pod = cache.pods.get(held.pod)
        yield ReservedPlace(
            namespace=held.group.namespace,
            pod=held.pod if pod is None else pod.name,
            pod_group=held.group.name,
            node=held.node,
            devices=held.devices,
            state=held.state.value,
        )
