"""The operations listener: health, metrics and the read API; it changes nothing and decides nothing."""

from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Protocol

from fastapi import FastAPI, HTTPException, Request, Response
from prometheus_client.exposition import choose_encoder

from app.model.names import NodeName
from app.model.pod import Pod
from app.model.question import Check
from app.model.reason import Refusal
from app.telemetry import Metrics
from app.web import health, problem
from app.web.answers import PodAnswer, PodGroupAnswer, PodGroupList, Problem, QueueList, WhyAnswer
from app.web.asgi import OPERATIONS_LIMITS, ASGIApp, BodyLimits, Bounded
from app.web.scrape import ClusterCollector, Counts


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
    """Build what the operations listener serves; registers the cluster's own metrics with `metrics`.

    `installed` adds the lines of /readyz on what Leeboard was installed with: rights and certificates.
    """
    metrics.registry.register(ClusterCollector(inspect))
    app = FastAPI(title="Leeboard", version="v1alpha1", docs_url=None, redoc_url=None, redirect_slashes=False)
    problem.answer_errors_with_problems(app)
    health.add_routes(
        app,
        livez=lambda: (pulse.liveness(),),
        readyz=lambda: (*inspect.readiness(), *installed(), pulse.readiness()),
    )
    app.add_route("/metrics", _metrics(metrics), methods=["GET"], include_in_schema=False)
    _add_read_api(app, inspect)
    return Bounded(app, limits)


def _metrics(metrics: Metrics) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        encode, media_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(metrics.registry), headers={"content-type": media_type})

    return endpoint


def _add_read_api(app: FastAPI, inspect: Inspect) -> None:
    # All of them `async`: FastAPI runs plain functions in threads, and the state is the loop's alone.

    @app.get("/api/v1/queues")
    async def list_queues() -> QueueList:
        """List every queue with what it deserves, gets, holds and asks for."""
        return QueueList.of(inspect.queues())

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
