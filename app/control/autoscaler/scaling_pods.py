"""Requests nodes by placeholder pods for held pods: for Karpenter and other autoscalers without an API for requests.

An autoscaler adds nodes for unscheduled pods that a scheduler has marked as unschedulable, and simulates their
placement itself. So placeholder pods have the resource requests, selectors, affinity and tolerations of the held pods,
and a scheduler name that no scheduler has. Leeboard marks them as unschedulable; they never use any room. Limits:

- It is not all or nothing. An autoscaler may add half of the nodes and give up; then the nodes stay empty.
- An autoscaler counts all free room as available. Where Leeboard reserves it for other pods, or needs the pods closer
  together, the autoscaler adds no node.
- Nothing holds the new nodes. If the gang does not start in time, the autoscaler removes them as unused.
- Placeholder pods have no volumes: a new node may be in another zone than the volume.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from app.cluster.decode import scaling as decode
from app.cluster.decode.scaling import ScalingPod
from app.cluster.encode import scaling as encode
from app.model.scaling import CapacityRequest, MadeRequest, PodShape
from app.model.seam import Cluster, ConflictError, Depth, NotFoundError, RawObject, Resource
from app.model.sentence import counted
from app.settings import Settings

MOST = 500
"""Placeholder pods of one PodGroup at most. A bigger gang gets nodes for so many pods at a time."""


class ScalingPods:
    """The placeholder pods, as of the last look. Only the event loop calls this class."""

    noun = "scaling pod"
    problem = ""

    def __init__(self, cluster: Cluster, settings: Settings, *, timestamp: Callable[[], str]) -> None:
        """`timestamp` returns RFC 3339. `refresh` writes all attributes below; `make` writes `is_known` too."""
        self._cluster = cluster
        self._stand = encode.PlaceholderPods(image=settings.reservation_image, namespace=settings.autoscaling_namespace)
        self._now = timestamp
        self._pods: dict[str, list[ScalingPod]] = {}
        self._made: dict[str, MadeRequest] = {}
        self.version = 0
        self.is_known = False

    @property
    def made(self) -> Mapping[str, MadeRequest]:
        """The existing requests, by name."""
        return self._made

    async def run(self) -> None:
        """Do nothing: placeholder pods are listed only when their state is needed."""

    async def refresh(self) -> None:
        """List the placeholder pods; raises `KubeError`."""
        found = await self._cluster.pods_in(self._stand.namespace, decode.scaling_pod)
        pods = defaultdict[str, list[ScalingPod]](list)
        for pod in found:
            if pod is not None:
                pods[pod.request].append(pod)
        made = {name: _made(name, each) for name, each in pods.items()}
        self.version += made != self._made
        self._pods, self._made, self.is_known = dict(pods), made, True

    def is_whole(self, ask: CapacityRequest) -> bool:
        """Whether all placeholder pods of the request exist."""
        made = self._made.get(ask.name)
        return made is not None and made.units >= min(ask.units, MOST)

    async def make(self, ask: CapacityRequest) -> bool:
        """Create the missing pods and mark those that no autoscaler sees yet; return whether the request is new."""
        self.is_known = False
        seen = {pod.ref.name for pod in self._pods.get(ask.name, ()) if pod.is_seen}
        number = 0
        for shape in ask.shapes:
            raw = None
            for _ in range(min(shape.count, MOST - number)):
                if f"{ask.name}-{number}" not in seen:
                    raw = raw or await self._read(shape)
                    if raw is None:
                        return False  # The watch will show the current state of the group.
                    await self._make_one(ask, encode.scaling_pod(ask, number, shape, raw, self._stand))
                number += 1
        return ask.name not in self._made

    async def remove(self, made: MadeRequest) -> None:
        """Delete all placeholder pods of the group."""
        for pod in self._pods.get(made.name, ()):
            with suppress(NotFoundError):
                await self._cluster.remove_pod(pod.ref)

    def told(self, made: MadeRequest, age_s: int) -> str:
        """Return how long the pods have existed: an autoscaler answers only with nodes or events."""
        pods, have = counted(made.units, "scaling pod"), "has" if made.units == 1 else "have"
        return f"For {age_s} s {pods} in namespace {self._stand.namespace} {have} asked the autoscaler for nodes."

    async def _read(self, shape: PodShape) -> RawObject | None:
        path, sample = Resource.PODS.value, shape.sample
        return await self._cluster.read_object(path, sample.namespace, sample.name, depth=Depth.WHOLE)

    async def _make_one(self, ask: CapacityRequest, pod: RawObject) -> None:
        namespace = self._stand.namespace
        with suppress(ConflictError):
            await self._cluster.create_pod(namespace, pod)
        status = encode.unschedulable(ask, self._now())
        await self._cluster.write_status(Resource.PODS, namespace, pod["metadata"]["name"], status)


def _made(name: str, pods: Iterable[ScalingPod]) -> MadeRequest:
    pods = list(pods)
    return MadeRequest(
        key=pods[0].key,
        name=name,
        made_at=min(pod.made_at for pod in pods),
        units=sum(pod.is_seen for pod in pods),
    )
