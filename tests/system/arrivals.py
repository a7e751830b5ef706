"""Random arrivals of every kind of pod with GPUs: by the device plugin, in parts, by claims, in gangs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from tests.system import native_podgroups
from tests.system.allocations import BY_CLASS
from tests.system.api import QUEUE_LABEL, RUN_FOR, Object, pod, pod_group
from tests.system.dra_driver import (
    DRIVER,
    GPU_CLASS,
    MIG_CLASS,
    device_request,
    resource_claim,
    resource_claim_template,
    with_claims,
)
from tests.system.features import HAS_DEVICE_FEATURES
from tests.system.forms import DEFAULT_QUEUE

PROFILES = ("1g", "3g")
NON_PREEMPTIBLE = "build"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """Objects that come together, and leave together."""

    kind: str
    pods: Sequence[Object]
    others: Sequence[Object] = ()
    """What the pods need: PodGroups and claims."""

    @property
    def names(self) -> list[str]:
        """Return the names of its pods."""
        return [one["metadata"]["name"] for one in self.pods]


def templates() -> list[Object]:
    """Build the templates that arrivals name."""
    whole = [resource_claim_template(f"gpus-{number}", device_request(count=number)) for number in (1, 2, 4)]
    return whole + [resource_claim_template(f"part-{size}", _partition(size)) for size in PROFILES]


def _partition(size: str) -> Object:
    return device_request(MIG_CLASS, f"device.attributes['{DRIVER}'].profile.startsWith('{size}')")


def _small(name: str, queue: str, **more: object) -> Object:
    return pod(name, cpu="100m", memory="64Mi", queue=queue, **more)  # type: ignore[arg-type] # free-form by design


def _plugin(name: str, queue: str, chance: Random) -> Arrival:
    return Arrival(kind="plugin", pods=[_small(name, queue, gpus=chance.choice([1, 1, 2]))])


def _fraction(name: str, queue: str, chance: Random) -> Arrival:
    asked = {"gpu-fraction": f"0.{chance.randint(1, 9)}", "gpu-fraction-num-devices": chance.choice(["1", "1", "2"])}
    return Arrival(kind="fraction", pods=[_small(name, queue, gpus=0, annotations=asked)])


def _template(name: str, queue: str, chance: Random) -> Arrival:
    number = chance.choice([1, 1, 2, 4])
    return Arrival(kind="template", pods=[with_claims(_small(name, queue, gpus=0), templates=[f"gpus-{number}"])])


def _by_hand(name: str, queue: str, chance: Random) -> Arrival:
    request = device_request(count=chance.choice([1, 2]))
    return _claimed("by hand", [name], queue, resource_claim(name, request, labels={QUEUE_LABEL: queue}))


def _shared(name: str, queue: str, chance: Random) -> Arrival:
    names = [f"{name}-{index}" for index in range(chance.randint(2, 3))]
    return _claimed("shared", names, queue, resource_claim(name, labels={QUEUE_LABEL: queue}))


def _claimed(kind: str, names: Sequence[str], queue: str, claim: Object) -> Arrival:
    mine = claim["metadata"]["name"]
    pods = [with_claims(_small(name, queue, gpus=0), claims=[mine]) for name in names]
    return Arrival(kind=kind, pods=pods, others=[claim])


def _partitions(name: str, queue: str, chance: Random) -> Arrival:
    size = chance.choice(PROFILES)
    return Arrival(kind="partition", pods=[with_claims(_small(name, queue, gpus=0), templates=[f"part-{size}"])])


def _by_class(name: str, queue: str, chance: Random) -> Arrival:
    made = _small(name, queue, gpus=0)
    for amounts in made["spec"]["containers"][0]["resources"].values():
        amounts[f"{BY_CLASS}{GPU_CLASS}"] = str(chance.randint(1, 2))
    return Arrival(kind="by class", pods=[made])


def _gang(name: str, queue: str, chance: Random) -> Arrival:
    size = chance.randint(2, 5)
    pods = [_member(f"{name}-{index}", queue, chance, gang=name) for index in range(size)]
    return Arrival(kind="gang", pods=pods, others=[pod_group(name, min_member=size, queue=queue)])


def _native(name: str, queue: str, chance: Random) -> Arrival:
    size = chance.randint(2, 5)
    named = {"schedulingGroup": {"podGroupName": name}}
    pods = [_member(f"{name}-{index}", queue, chance, spec=named) for index in range(size)]
    return Arrival(kind="native gang", pods=pods, others=[native_podgroups.group(name, min_count=size)])


def _member(name: str, queue: str, chance: Random, **more: object) -> Object:
    """Build a member of a gang: a gang may have members on nodes of every kind."""
    if chance.random() < 0.5:
        return _small(name, queue, gpus=1, **more)
    return with_claims(_small(name, queue, gpus=0, **more), templates=["gpus-1"])


Kind = Callable[[str, str, Random], Arrival]
KINDS: Mapping[Kind, int] = {
    _plugin: 4,
    _fraction: 4,
    _template: 4,
    _by_hand: 2,
    _shared: 2,
    _gang: 3,
}
"""The kinds that there are everywhere, and how often each comes."""

DEVICE_KINDS: Mapping[Kind, int] = {_partitions: 4, _by_class: 1} if HAS_DEVICE_FEATURES else {}
NATIVE_KINDS: Mapping[Kind, int] = {_native: 3} if native_podgroups.ARE_THERE else {}
EVERY_KIND: Mapping[Kind, int] = {**KINDS, **DEVICE_KINDS, **NATIVE_KINDS}


def arrival(number: int, queues: Sequence[str], chance: Random) -> Arrival:
    """Draw an arrival; one in four ends by itself, and some of the single pods must not be evicted.

    The first ones are of each kind once. The default queue has no quota, so pods that must not be evicted never start
    in it.
    """
    first = dict(enumerate(EVERY_KIND))
    kind = first.get(number) or chance.choices([*EVERY_KIND], [*EVERY_KIND.values()])[0]
    queue = chance.choice(queues)
    made = kind(f"{kind.__name__.strip('_').replace('_', '-')}-{number}", queue, chance)
    lasts = f"{chance.randint(200, 4000)}ms" if chance.random() < 0.25 else ""
    is_firm = len(made.pods) == 1 and queue != DEFAULT_QUEUE and chance.random() < 0.1
    for one in made.pods:
        if lasts:
            one["metadata"]["annotations"][RUN_FOR] = lasts
            one["spec"]["restartPolicy"] = "Never"
        if is_firm:
            one["spec"]["priorityClassName"] = NON_PREEMPTIBLE
    return made
