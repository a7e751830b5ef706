"""The operations listener: health, metrics and the read API; it changes nothing and decides nothing."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Protocol

from fastapi import FastAPI, HTTPException, Request, Response
from prometheus_client.exposition import choose_encoder

from app.model.explanation import Explanation, QueueStand, Subject, Unknown
from app.model.names import NodeName
from app.model.occupancy import NodeUse
from app.model.pod import Pod
from app.model.question import Check
from app.model.reason import Refusal
from app.telemetry import Metrics
from app.web import health, problem
from app.web.answers import PodAnswer, PodGroupAnswer, PodGroupList, Problem, QueueAnswer, QueueList, WhyAnswer
from app.web.asgi import OPERATIONS_LIMITS, ASGIApp, BodyLimits, Bounded
from app.web.gpu_answers import GpuNodeAnswer, GpuNodeDetail, GpuNodeList
from app.web.scrape import Counts, Scrape
from app.web.why_answers import ExplanationAnswer

NO_AGENT = (
    "no agent has told of GPUs on a node {node!r}; GET /api/v1/gpus lists the nodes of which one has,"
    " and kubectl -n leeboard get pods -o wide tells whether the agent runs there"
)


PAUSE_EVERY = 100
"""Queues of a list after which webhooks get a turn."""


class KnownPod(Protocol):
    """What is known of one pod."""

    @property
    def pod(self) -> Pod:
        """The pod as the watch last showed it."""
        ...

    @property
    def state(self) -> str:
        """Where it stands: Held, Awaiting, Promised, Binding, Bound, Releasing."""
        ...

    @property
    def node(self) -> NodeName | None:
        """The node it runs on or is promised."""
        ...

    @property
    def refusal(self) -> Refusal | None:
        """Why it waits."""
        ...


class Inspect(Counts, Protocol):
    """What the read API reads; called on the event loop."""

    def readiness(self) -> Sequence[Check]:
        """Return every condition of being ready, passed or not."""
        ...

    def pod(self, namespace: str, name: str) -> KnownPod | None:
        """Return what is known of this pod; None when there is no such pod."""
        ...

    def queue_stands(self) -> Sequence[QueueStand]:
        """Return how every queue stands, in the order of their names."""
        ...

    def explain(self, namespace: str, name: str, subject: Subject | None = None) -> Explanation | Unknown:
        """Tell why a pod or a PodGroup stands where it does; what of the two is meant is found out if need be."""
        ...

    def gpu_nodes(self) -> Sequence[NodeName]:
        """Return the nodes of whose GPUs an agent tells, in order."""
        ...

    def gpu_node(self, name: NodeName) -> NodeUse | None:
        """Return who is on the GPUs of a node; None when no agent tells of it."""
        ...


class Pulse(Protocol):
    """What the watchdog says of the event loop."""

    def readiness(self) -> Check:
        """Tell whether the loop runs."""
        ...

    def liveness(self) -> Check:
        """Tell whether the watchdog runs."""
        ...


def application(
    inspect: Inspect,
    metrics: Metrics,
    pulse: Pulse,
    *,
    installed: Callable[[], Sequence[Check]] = tuple,
    limits: BodyLimits = OPERATIONS_LIMITS,
) -> ASGIApp:
    """Build what the operations listener serves.

    `installed` adds the lines of /readyz on what Leeboard was installed with: rights and certificates.
    """
    app = FastAPI(title="Leeboard", version="v1alpha1", docs_url=None, redoc_url=None, redirect_slashes=False)
    problem.answer_errors_with_problems(app)
    health.add_routes(
        app,
        livez=lambda: (pulse.liveness(),),
        readyz=lambda: (*inspect.readiness(), *installed(), pulse.readiness()),
    )
    app.add_route("/metrics", _metrics(metrics, inspect), methods=["GET"], include_in_schema=False)
    # All of what follows is `async`: FastAPI runs plain functions in threads, and the state is the loop's alone.
    _add_queues(app, inspect)
    _add_workloads(app, inspect)
    _add_gpus(app, inspect)
    return Bounded(app, limits)


def _metrics(metrics: Metrics, counts: Counts) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        encode, media_type = choose_encoder(request.headers.get("accept", ""))
        text = await asyncio.to_thread(encode, Scrape(metrics.registry, counts))
        return Response(text, headers={"content-type": media_type})

    return endpoint


def _add_queues(app: FastAPI, inspect: Inspect) -> None:
    @app.get("/api/v1/queues", response_model=QueueList)
    async def list_queues() -> Response:
        """List every queue with what it deserves, gets, holds and asks for."""
        items = []
        for number, stand in enumerate(inspect.queue_stands(), start=1):
            items.append(QueueAnswer.of(stand).model_dump_json(by_alias=True))
            if number % PAUSE_EVERY == 0:
                await asyncio.sleep(0)
        return Response(QueueList.of_json(items), media_type="application/json")


def _add_workloads(app: FastAPI, inspect: Inspect) -> None:
    @app.get("/api/v1/why/{namespace}/{name}", responses={404: {"model": Problem}})
    async def explain(namespace: str, name: str, kind: str = "") -> ExplanationAnswer:
        """Tell why a pod or a PodGroup stands where it does; `kind` is pod or podgroup, else whichever there is."""
        told = inspect.explain(namespace, name, _subject(kind))
        if isinstance(told, Unknown):
            raise HTTPException(HTTPStatus.NOT_FOUND, told.sentence)
        return ExplanationAnswer.of(told)

    @app.get("/api/v1/podgroups")
    async def list_waiting_podgroups() -> PodGroupList:
        """List the PodGroups that wait, with the reason."""
        return PodGroupList(items=tuple(PodGroupAnswer.of(group, refusal) for group, refusal in inspect.waiting()))

    @app.get("/api/v1/pods/{namespace}/{name}", responses={404: {"model": Problem}})
    async def explain_pod(namespace: str, name: str) -> PodAnswer:
        """Tell what is known of one pod, and why it waits."""
        known = inspect.pod(namespace, name)
        if known is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, f"no pod {namespace}/{name} is known")
        return _explained(known)


def _add_gpus(app: FastAPI, inspect: Inspect) -> None:
    @app.get("/api/v1/gpus", response_model=GpuNodeList)
    async def list_gpus() -> Response:
        """List the GPUs of every node of which an agent tells, and who is on them."""
        items = []
        for name in inspect.gpu_nodes():
            use = inspect.gpu_node(name)
            if use is not None:
                items.append(GpuNodeAnswer.of(use).model_dump_json(by_alias=True))
            # 40,000 devices take more than a second: webhooks come in between.
            await asyncio.sleep(0)
        return Response(GpuNodeList.of_json(items), media_type="application/json")

    @app.get("/api/v1/gpus/{node}", responses={404: {"model": Problem}})
    async def show_gpus(node: str) -> GpuNodeDetail:
        """Tell of the GPUs of one node, who is on them, and how they reach each other."""
        use = inspect.gpu_node(NodeName(node))
        if use is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, NO_AGENT.format(node=node))
        return GpuNodeDetail.detailed(use)


def _subject(kind: str) -> Subject | None:
    if kind not in {"", *Subject}:
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"kind is pod, podgroup or workload, not {kind!r}")
    return Subject(kind) if kind else None


def _explained(known: KnownPod) -> PodAnswer:
    pod = known.pod
    return PodAnswer(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        queue=pod.queue,
        pod_group=pod.group.name,
        managed=pod.managed,
        state=known.state,
        node=known.node,
        why=WhyAnswer.of(known.refusal),
        problem=pod.problem or None,
    )
