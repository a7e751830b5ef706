"""Requests nodes by ProvisioningRequests: the API of cluster-autoscaler, which adds all nodes or none.

A request exists as long as its PodGroup waits. It is deleted when the pods are placed, together with the capacity that
the autoscaler has set aside for it; so the pods need not name it. A request cannot express a topology that the pods
must share, volumes, or the nodes that Leeboard reserves for other pods. Where the autoscaler sees room and Leeboard
does not, the autoscaler answers that all is provisioned and adds no node.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import structlog

from app.cluster.decode import scaling as decode
from app.cluster.encode import scaling as encode
from app.model.scaling import AutoscalerAnswer, CapacityRequest, MadeRequest
from app.model.seam import (
    Changed,
    ConflictError,
    Deleted,
    Depth,
    KubeError,
    Listed,
    Lost,
    NotFoundError,
    Objects,
    Resource,
    WatchEvent,
)
from app.settings import Settings

log = structlog.get_logger()

TEMPLATES = "api/v1/podtemplates"
LOOK_AGAIN_S = 60.0
"""How often to check whether the API server serves ProvisioningRequests, while it does not."""

UNLISTED = "the existing ProvisioningRequests have not been listed yet"
NOT_INSTALLED = f"this cluster has no ProvisioningRequests ({encode.API_VERSION}): install their CRD and an autoscaler"


class ProvisioningRequests:
    """The existing ProvisioningRequests, as the watch shows them. Only the event loop calls this class."""

    noun = "ProvisioningRequest"
    is_known = True

    def __init__(
        self, cluster: Objects, settings: Settings, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        """Only `run` writes `_made` and `problem`."""
        self._cluster = cluster
        self._class = settings.autoscaling_class
        self._stand = encode.PlaceholderPods(image=settings.reservation_image)
        self._sleep = sleep
        self._path = ""
        self._made: dict[str, MadeRequest] = {}
        self.problem = UNLISTED
        self.version = 0

    @property
    def made(self) -> Mapping[str, MadeRequest]:
        """The existing requests, by name."""
        return self._made

    async def run(self) -> None:
        """Watch the requests until cancelled, as soon as the API is installed."""
        self._path = await self._found()
        async for event in self._cluster.follow(self._path, decode.provisioning_request, depth=Depth.WHOLE):
            self._take(event)

    async def refresh(self) -> None:
        """Do nothing: the watch is enough."""

    def is_whole(self, ask: CapacityRequest) -> bool:
        """Whether the request and all its templates exist."""
        return ask.name in self._made

    async def make(self, ask: CapacityRequest) -> bool:
        """Create the templates, then the request, so that no autoscaler misses a template; return whether it is new."""
        namespace = ask.key.namespace
        for number, shape in enumerate(ask.shapes):
            path, sample = Resource.PODS.value, shape.sample
            raw = await self._cluster.read_object(path, sample.namespace, sample.name, depth=Depth.WHOLE)
            if raw is None:
                return False  # The watch will show the current state of the group.
            with suppress(ConflictError):
                template = encode.pod_template(ask, number, raw, self._stand)
                await self._cluster.create_object(TEMPLATES, namespace, template)
        try:
            await self._cluster.create_object(self._path, namespace, encode.provisioning_request(ask, self._class))
        except ConflictError:
            return False
        return True

    async def remove(self, made: MadeRequest) -> None:
        """Delete the templates, then the request: after a failure the request still identifies what remains."""
        namespace = made.key.namespace
        for number in range(made.shapes):
            name = encode.template_name(made.name, number)
            raw = await self._cluster.read_object(TEMPLATES, namespace, name, depth=Depth.METADATA)
            if raw is not None:
                with suppress(NotFoundError):
                    await self._cluster.remove_object(TEMPLATES, namespace, name, uid=decode.uid_of(raw))
        with suppress(NotFoundError):
            await self._cluster.remove_object(self._path, namespace, made.name, uid=made.uid)

    def told(self, made: MadeRequest, age_s: int) -> str:
        """Return the answer of the autoscaler."""
        pods = "1 pod" if made.units == 1 else f"{made.units} pods"
        return f"{self.noun} {made.name} for {pods} was made {age_s} s ago; {_answer(made)}."

    async def _found(self) -> str:
        while True:
            try:
                path = await self._cluster.path_of(encode.API_VERSION, encode.KIND)
            except KubeError as error:
                log.warning("ProvisioningRequests not looked up", error=str(error))
            else:
                if path is not None:
                    return path
                self._doubt(NOT_INSTALLED)
            await self._sleep(LOOK_AGAIN_S)

    def _take(self, event: WatchEvent[MadeRequest | None]) -> None:
        match event:
            case Listed(found):
                self._made = {made.name: made for made in found if made is not None}
                self.problem = ""
            case Changed(made) if made is not None:
                self._made[made.name] = made
            case Deleted(made) if made is not None:
                self._made.pop(made.name, None)
            case Lost(cause, denied=True):
                self._doubt(f"ProvisioningRequests cannot be read: {cause}")
            case _:
                return
        self.version += 1

    def _doubt(self, problem: str) -> None:
        if problem != self.problem:
            log.error("the cluster autoscaler is asked for no nodes", problem=problem)
        self.problem = problem


def _answer(made: MadeRequest) -> str:
    match made.answer:
        case AutoscalerAnswer.NOTHING:
            return "the autoscaler has not answered"
        case AutoscalerAnswer.ACCEPTED:
            return f"the autoscaler has accepted it: {made.said}"
        case AutoscalerAnswer.NOT_YET:
            return f"the autoscaler has no capacity for it yet: {made.said}"
        case AutoscalerAnswer.PROVISIONED:
            return f"the autoscaler reports that its nodes exist or are being created: {made.said}"
        case AutoscalerAnswer.ENDED:
            return f"the request has ended and is created again in some minutes: {made.said}"
