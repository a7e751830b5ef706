"""What pods and claims hold by the objects of the API server alone, and what must never be held of it at once."""

import re
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from types import TracebackType
from typing import Self

from tests.system.api import DEFAULT_PODS, PODS, QUEUE_LABEL, Api, Object
from tests.system.bed import Bed
from tests.system.dra_driver import CLAIMS, claim_names, devices_of
from tests.system.following import GONE, Following
from tests.system.shares import asks_for_part, devices, is_over, is_reservation, node_of, part, whole_gpus

BY_CLASS = "deviceclass.resource.kubernetes.io/"
"""The beginning of the names of extended resources that stand for a DeviceClass."""

PARTITION = re.compile(r"(gpu-\d+)-(\d)g-\d+")
SEVENTHS = 7
GPU_MILLI = 1000

Device = tuple[str, str]
"""The pool, which has the name of its node, and the name of a device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocations:
    """The pods and the claims at one moment."""

    pods: Sequence[Object]
    claims: Sequence[Object]

    @classmethod
    def read(cls, api: Api) -> Self:
        """Read them; they are of the same moment only if nothing changes."""
        return cls(pods=api.items(PODS), claims=api.items(CLAIMS))

    @property
    def version(self) -> Sequence[tuple[str, str]]:
        """Return what changes with every change of a pod or a claim."""
        every = [each["metadata"] for each in (*self.pods, *self.claims)]
        return sorted((each["uid"], each["resourceVersion"]) for each in every)

    @property
    def bound(self) -> list[Object]:
        """Return the pods that hold what they request, also those that are being deleted."""
        return [pod for pod in self.pods if node_of(pod) and not is_over(pod)]

    def by_queue(self, pods: Iterable[Object] | None = None) -> Counter[str]:
        """Return what each queue pays for, in thousandths of a GPU; for these pods, or for all bound ones.

        A queue pays once for a claim that several of its pods use.
        """
        claims = {each["metadata"]["name"]: each for each in self.claims}
        paid, used = Counter[str](), set[tuple[str, str]]()
        for pod in self.bound if pods is None else pods:
            queue = pod["metadata"].get("labels", {}).get(QUEUE_LABEL)
            if queue:
                paid[queue] += _paid_alone(pod)
                used.update((queue, name) for name in _names_of_claims(pod))
        for queue, name in used:
            paid[queue] += _cost(claims.get(name))
        return +paid

    def allocated(self) -> list[Device]:
        """Return the devices that claims have, one entry for each claim that has it."""
        return sorted(device for each in self.claims for device in devices_of(each))

    def sharers(self, node: str) -> dict[str, dict[str, int]]:
        """Return for each shared device of a node the pods with a part of it, and the parts, in millionths."""
        found: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for pod in self.bound:
            if node_of(pod) == node and asks_for_part(pod):
                for uuid in devices(pod):
                    found[uuid][pod["metadata"]["name"]] = int(part(pod, 0) * 10**6)
        return dict(found)

    def by_plugin(self, node: str) -> int:
        """Return how many devices of a node's plugin are in use, shared ones among them."""
        return sum(whole_gpus(pod) for pod in self.bound if node_of(pod) == node)

    def whole_in_use(self, node: str) -> int:
        """Return of how many GPUs of a node claims have the whole or a partition."""
        return len({(pool, _gpu_of(device)) for pool, device in self.allocated() if pool == node})


def _paid_alone(pod: Object) -> int:
    """Return what a pod costs without its claims, in thousandths of a GPU."""
    milli = GPU_MILLI * (whole_gpus(pod) + _by_class(pod))
    if asks_for_part(pod):
        milli += int(part(pod, 0) * GPU_MILLI) * len(devices(pod))
    return milli


def _names_of_claims(pod: Object) -> Iterator[str]:
    made = claim_names(pod)
    for each in pod["spec"].get("resourceClaims", []):
        yield each.get("resourceClaimName") or made.get(each["name"], "")


def _by_class(pod: Object) -> int:
    limits = [each.get("resources", {}).get("limits", {}) for each in pod["spec"]["containers"]]
    return sum(int(count) for each in limits for name, count in each.items() if name.startswith(BY_CLASS))


def _cost(claim: Object | None) -> int:
    """Return what a claim costs: a GPU for each whole device, and N for a partition `Ng` (KAI's rule)."""
    return sum(GPU_MILLI * (_sevenths(device) or 1) for _, device in devices_of(claim or {}))


def _sevenths(device: str) -> int:
    found = PARTITION.fullmatch(device)
    return int(found[2]) if found else 0


def _gpu_of(device: str) -> str:
    found = PARTITION.fullmatch(device)
    return found[1] if found else device


def overcommitted(allocated: Iterable[Device]) -> Iterator[str]:
    """Yield a sentence for each device of claims that is given away twice, or to more than the whole of it."""
    used: defaultdict[Device, Fraction] = defaultdict(Fraction)
    for device, number in Counter(allocated).items():
        if number > 1:
            yield f"{number} claims have device {device}"
        used[device[0], _gpu_of(device[1])] += Fraction(_sevenths(device[1]) or SEVENTHS, SEVENTHS)
    yield from (f"{float(part):.0%} of GPU {gpu} is given away" for gpu, part in used.items() if part > 1)


class AllocationObserver:
    """Watches pods and claims, and finds what is overcommitted at any time; use it as a context manager.

    The two watches are not synchronized. A claim that is seen late only makes a sum too small for a moment.
    """

    def __init__(self, bed: Bed, *, limits: Mapping[str, int], plugins: Mapping[str, int]) -> None:
        """`limits` are in GPUs by queue, and `plugins` are the devices of each node with a device plugin."""
        self._bed = bed
        self._limits = limits
        self._plugins = plugins
        self._open = ExitStack()
        # Everything below is written by the followers' threads, under the lock.
        self._lock = threading.Lock()
        self._pods: dict[str, Object] = {}
        self._claims: dict[str, Object] = {}
        self._found: dict[str, None] = {}
        self.bindings = 0
        self.most_claimed = 0

    def __enter__(self) -> Self:
        """Start to watch, and return once everything that exists has been seen."""
        for path, see in ((CLAIMS, self._see_claim), (DEFAULT_PODS, self._see_pod)):
            self._open.enter_context(Following(self._bed, path, see))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the watch."""
        self._open.__exit__(kind, error, trace)

    def check(self) -> None:
        """Check that nothing was ever overcommitted."""
        with self._lock:
            assert not self._found, "\n".join(self._found)

    def _see_pod(self, kind: str, pod: Object) -> None:
        with self._lock:
            before = self._pods.pop(pod["metadata"]["uid"], None)
            if kind != GONE:
                self._pods[pod["metadata"]["uid"]] = pod
                self.bindings += bool(node_of(pod) and before is not None and not node_of(before))
            self._judge_pods()

    def _see_claim(self, kind: str, claim: Object) -> None:
        with self._lock:
            self._claims.pop(claim["metadata"]["uid"], None)
            if kind != GONE:
                self._claims[claim["metadata"]["uid"]] = claim
            allocated = self._now().allocated()
            self.most_claimed = max(self.most_claimed, len(allocated))
            self._found.update(dict.fromkeys(overcommitted(allocated)))
            self._judge_pods()

    def _now(self) -> Allocations:
        return Allocations(pods=[*self._pods.values()], claims=[*self._claims.values()])

    def _judge_pods(self) -> None:
        now = self._now()
        paid = now.by_queue()
        for queue, limit in self._limits.items():
            if paid[queue] > GPU_MILLI * limit:
                self._found[f"queue {queue} held {paid[queue] / GPU_MILLI:g} GPUs, and its limit is {limit}"] = None
        bound = Counter[str]()
        for pod in now.bound:
            bound[node_of(pod)] += 0 if is_reservation(pod) else whole_gpus(pod)
        for node, number in self._plugins.items():
            if bound[node] > number:
                self._found[f"pods had {bound[node]} GPUs of node {node}, which has {number}"] = None
