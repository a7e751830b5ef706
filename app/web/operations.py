"""The operations listener: health, metrics and the read API. It changes no state and makes no decisions."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Annotated, Protocol

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client.exposition import choose_encoder
from starlette.middleware import Middleware

from app.model.explanation import Explanation, QueueStand, Subject, Unknown
from app.model.names import NodeName, QueueName
from app.model.occupancy import NodeUse
from app.model.pod import Pod
from app.model.queue import MOST_LEVELS
from app.model.reason import Refusal
from app.model.sentence import Reader
from app.telemetry import Metrics
from app.web import health, problem, routes
from app.web.answers import PodAnswer, PodGroupAnswer, PodGroupList, Problem, QueueAnswer, QueueList, WhyAnswer
from app.web.asgi import OPERATIONS_LIMITS, BodyLimits
from app.web.callers import LONGEST_NAMESPACE, METRICS, PODS, QUEUES, Caller, Callers, Guarded, RefusedError, refused
from app.web.gpu_answers import GpuNodeAnswer, GpuNodeDetail, GpuNodeList, namespaces_of
from app.web.health import Pulse, Ready
from app.web.lists import each_of, listed
from app.web.paging import MOST, Veil, page
from app.web.parameters import takes_only
from app.web.scrape import Counts, scrape
from app.web.service_version import show_version
from app.web.standby import OnlyLeading
from app.web.view_document import with_view
from app.web.visits import Asks, OnTheSpot
from app.web.why_answers import ExplanationAnswer

NO_AGENT = (
    "no agent has reported GPUs on a node {node!r}; GET /api/v1/gpus lists the nodes with reports,"
    " and kubectl -n leeboard get pods -o wide says whether the agent runs there"
)


NO_QUEUES = (
    "you may not list queues.scheduling.run.ai; ask for the ClusterRole leeboard-view, or see the queue of your pods by"
    " `leeboard why`"
)
LONG_NAMESPACE = f"no namespace has a name of more than {LONGEST_NAMESPACE} letters"
NO_NAMESPACE = "you may not list pods in namespace {namespace}; ask for the ClusterRole view there"

MORE_NODES = "There are more nodes than this answer can show: {cause}"

NODES_AT_ONCE = 8
"""How many nodes one question to the main loop covers."""

ANY_QUEUE = QueueName("")
Limit = Annotated[int | None, Query(ge=1, le=MOST, description="The most items of one page; all without it.")]
After = Annotated[str, Query(alias="continue", max_length=300, description="Where the page begins, as an answer said.")]


class PodFacts(Protocol):
    """What is known of one pod."""

    @property
    def pod(self) -> Pod:
        """The pod as the watch last showed it."""
        ...

    @property
    def state(self) -> str:
        """The pod's state: Held, Awaiting, Promised, Binding, Bound, Releasing."""
        ...

    @property
    def node(self) -> NodeName | None:
        """The node that the pod runs on or has a reservation on."""
        ...

    @property
    def refusal(self) -> Refusal | None:
        """Why it waits."""
        ...


class ReadApi(Counts, Ready, Protocol):
    """What the read API reads; called on the event loop."""

    def pod(self, namespace: str, name: str) -> PodFacts | None:
        """Return the pod's facts; None when there is no such pod."""
        ...

    def explain(self, namespace: str, name: str, subject: Subject | None = None) -> Explanation | Unknown:
        """Explain the state of a pod or a PodGroup. Without `subject`, find out which of the two is meant."""
        ...

    def gpu_nodes(self) -> Sequence[NodeName]:
        """Return the names of the nodes with an agent's report, in order."""
        ...

    def gpu_node(self, name: NodeName) -> NodeUse | None:
        """Return the use of a node's GPUs; None when no agent reports on the node."""
        ...


def application(  # noqa: PLR0913 # collaborators come in here
    inspect: ReadApi,
    metrics: Metrics,
    pulse: Pulse,
    *,
    callers: Callers,
    ready: Ready | None = None,
    asks: Asks | None = None,
    standby: Callable[[], str] = lambda: "",
    limits: BodyLimits = OPERATIONS_LIMITS,
) -> FastAPI:
    """Build the app of the operations listener.

    `callers` authenticates callers and finds out what they may see. The health endpoints need no authentication.
    `inspect` belongs to the main loop. `asks` calls it there from another loop; None means that this app runs on the
    main loop. `ready` returns all lines of /readyz except the watchdog's; None takes those of `inspect`. `standby`
    returns why this replica does not answer reads, from any thread.
    """
    main = asks or OnTheSpot()
    guarded = [Middleware(Guarded, callers=callers), Middleware(OnlyLeading, standby=standby)]
    app = routes.application(
        limits, middleware=guarded, title="Leeboard", version="v1alpha1", openapi_url="/openapi.json"
    )
    app.add_exception_handler(RefusedError, refused)
    app.add_exception_handler(RequestValidationError, _misread)
    health.add_routes(app, ready or inspect, pulse)
    app.add_route(
        "/metrics", _metrics(metrics, inspect, ready or inspect, main), methods=["GET"], include_in_schema=False
    )
    app.add_route("/version", show_version, methods=["GET"], include_in_schema=False)
    # The routes below are `async`, because FastAPI runs plain functions in threads.
    _add_queues(app, inspect, main)
    _add_workloads(app, inspect, main)
    _add_gpus(app, inspect, main)
    own = app.openapi
    app.openapi = lambda: with_view(own())  # type: ignore[method-assign] # as FastAPI's manual says
    return app


async def _misread(_request: Request, error: Exception) -> Response:
    """Say which parameter has a value that cannot be used."""
    if not isinstance(error, RequestValidationError):
        raise error
    first = error.errors()[0]
    return problem.response(HTTPStatus.BAD_REQUEST, f"{first['loc'][-1]}: {first['msg']}")


def _below(stands: Sequence[QueueStand], name: QueueName) -> Sequence[QueueStand]:
    """Return a queue and the queues below it; all without a name."""
    parents = {stand.queue.name: stand.queue.parent for stand in stands}

    def is_below(each: QueueName | None) -> bool:
        for _ in range(MOST_LEVELS):
            if each is None or each == name:
                break
            each = parents.get(each)
        return each == name

    return [stand for stand in stands if is_below(stand.queue.name)] if name else stands


def _metrics(metrics: Metrics, counts: Counts, ready: Ready, main: Asks) -> Callable[[Request], Awaitable[Response]]:
    # Each encoding thread holds the interpreter lock and delays the main loop, so one scrape runs at a time.
    one_at_a_time = asyncio.Lock()

    async def endpoint(request: Request) -> Response:
        caller = _caller(request)
        # Metrics name queues and nodes. `PODS` and `QUEUES` together show more than that.
        if not (await caller.may(METRICS) or await caller.may(PODS, QUEUES)):
            raise HTTPException(HTTPStatus.FORBIDDEN, f"you may not {METRICS.subject}; ask for a role that grants it")
        encode, media_type = choose_encoder(request.headers.get("accept", ""))
        async with one_at_a_time:
            text = await asyncio.to_thread(encode, await scrape(metrics.registry, counts, main, ready=ready))
        return Response(text, headers={"content-type": media_type})

    return endpoint


def _add_queues(app: FastAPI, inspect: ReadApi, main: Asks) -> None:
    @app.get("/api/v1/queues", response_model=QueueList, dependencies=[takes_only("queue", "limit", "continue")])
    async def list_queues(
        request: Request, queue: QueueName = ANY_QUEUE, limit: Limit = None, after: After = ""
    ) -> Response:
        """List every queue with its deserved amount, fair share, allocation and requests.

        `queue` names one queue, which is listed with the queues below it.
        """
        if not await _caller(request).may(QUEUES):
            raise HTTPException(HTTPStatus.FORBIDDEN, NO_QUEUES)
        stands = await asyncio.to_thread(await main.ask(inspect.queue_stands))
        stands, following = page(_below(stands, queue), lambda one: one.queue.name, limit=limit, after=after)
        return await listed(lambda: QueueList(items=(), next_page=following), each_of(map(QueueAnswer.of, stands)))


def _add_workloads(app: FastAPI, inspect: ReadApi, main: Asks) -> None:
    @app.get("/api/v1/why/{namespace}/{name}", responses={404: {"model": Problem}}, dependencies=[takes_only("kind")])
    async def explain(request: Request, namespace: str, name: str, kind: str = "") -> ExplanationAnswer:
        """Explain the state of a pod or a PodGroup. `kind` is pod, podgroup, workload or empty."""
        reader, subject = await _reader_of(request, namespace), _subject(kind)
        told = await main.ask(lambda: inspect.explain(namespace, name, subject))
        if isinstance(told, Unknown):
            raise HTTPException(HTTPStatus.NOT_FOUND, told.sentence)
        return ExplanationAnswer.of(told, reader)

    veil = Veil()

    @app.get(
        "/api/v1/podgroups",
        response_model=PodGroupList,
        dependencies=[takes_only("namespace", "queue", "limit", "continue")],
    )
    async def list_waiting_podgroups(
        request: Request, namespace: str = "", queue: QueueName = ANY_QUEUE, limit: Limit = None, after: After = ""
    ) -> Response:
        """List the PodGroups that wait, each with its reason: all, or those of a namespace, a queue or both."""
        groups = await main.ask(inspect.waiting)
        if namespace:
            await _reader_of(request, namespace)
            groups = [one for one in groups if one[0].key.namespace == namespace]
        if queue:
            groups = [one for one in groups if one[0].queue == queue]
        groups, following = page(groups, lambda one: veil.key(repr(one[0].key)), limit=limit, after=veil.check(after))
        reader = await _caller(request).reader(group.key.namespace for group, _ in groups)
        if queue and not await _caller(request).may(QUEUES):
            # Which PodGroups of others are in a queue is not shown to those who may not see queues.
            groups = [one for one in groups if reader.sees(one[0].key.namespace)]
        answers = (PodGroupAnswer.of(group, refusal, reader) for group, refusal in groups)
        around = PodGroupList(items=(), incomplete=reader.unknown or None, next_page=following)
        return await listed(lambda: around, each_of(answers))

    @app.get("/api/v1/pods/{namespace}/{name}", responses={404: {"model": Problem}}, dependencies=[takes_only()])
    async def explain_pod(request: Request, namespace: str, name: str) -> PodAnswer:
        """Return what is known of one pod, and why it waits."""
        reader = await _reader_of(request, namespace)
        known = await main.ask(lambda: inspect.pod(namespace, name))
        if known is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, f"no pod {namespace}/{name} is known")
        return _explained(known, reader)


def _add_gpus(app: FastAPI, inspect: ReadApi, main: Asks) -> None:
    @app.get("/api/v1/gpus", response_model=GpuNodeList, dependencies=[takes_only("limit", "continue")])
    async def list_gpus(request: Request, limit: Limit = None, after: After = "") -> Response:
        """List the GPUs of every node with an agent's report, and the pods on them."""
        missing: list[str] = []
        names, following = page(await main.ask(inspect.gpu_nodes), str, limit=limit, after=after)
        items = _answers(_seen(names, inspect, main, _caller(request)), missing)
        return await listed(
            lambda: GpuNodeList(items=(), incomplete=missing[-1] if missing else None, next_page=following), items
        )

    @app.get("/api/v1/gpus/{node}", responses={404: {"model": Problem}}, dependencies=[takes_only()])
    async def show_gpus(request: Request, node: str) -> GpuNodeDetail:
        """Return the GPUs of one node, the pods on them, and the links between them."""
        use = await main.ask(lambda: inspect.gpu_node(NodeName(node)))
        if use is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, NO_AGENT.format(node=node))
        return GpuNodeDetail.detailed(use, await _caller(request).reader(namespaces_of(use)))


async def _seen(
    names: Sequence[NodeName], inspect: ReadApi, main: Asks, caller: Caller
) -> AsyncIterator[tuple[Sequence[NodeUse], Reader]]:
    """Yield the GPUs of a few nodes at a time, with the reader of them: 40,000 devices take more than a second."""

    def uses_of(names: Sequence[NodeName]) -> list[NodeUse]:
        return [use for name in names if (use := inspect.gpu_node(name)) is not None]

    for first in range(0, len(names), NODES_AT_ONCE):
        uses = await main.ask(partial(uses_of, names[first : first + NODES_AT_ONCE]))
        yield uses, await caller.reader(namespace for use in uses for namespace in namespaces_of(use))


async def _answers(
    seen: AsyncIterator[tuple[Sequence[NodeUse], Reader]], missing: list[str]
) -> AsyncIterator[GpuNodeAnswer]:
    """Show the reader these GPUs. A sentence about missing nodes is added to `missing`."""
    is_begun = False
    try:
        async for uses, reader in seen:
            for use in uses:
                yield GpuNodeAnswer.of(use, reader)
            is_begun = True
            missing += [reader.unknown] if reader.unknown else []
    except (RefusedError, HTTPException) as error:
        # When nothing was sent yet, the whole answer fails.
        if not is_begun:
            raise
        missing.append(MORE_NODES.format(cause=error.detail if isinstance(error, HTTPException) else error))


def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


async def _reader_of(request: Request, namespace: str) -> Reader:
    """Return the reader of a namespace; raise HTTPException when the caller may not see the namespace."""
    if len(namespace) > LONGEST_NAMESPACE:
        raise HTTPException(HTTPStatus.BAD_REQUEST, LONG_NAMESPACE)
    reader = await _caller(request).reader((namespace,))
    if not reader.sees(namespace):
        raise HTTPException(HTTPStatus.FORBIDDEN, NO_NAMESPACE.format(namespace=namespace))
    return reader


def _subject(kind: str) -> Subject | None:
    if kind not in {"", *Subject}:
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"kind is pod, podgroup or workload, not {kind!r}")
    return Subject(kind) if kind else None


def _explained(known: PodFacts, reader: Reader) -> PodAnswer:
    pod = known.pod
    return PodAnswer(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        queue=pod.queue,
        pod_group=pod.group.name if pod.names_group else pod.name,
        managed=pod.managed,
        state=known.state,
        node=known.node,
        why=WhyAnswer.of(known.refusal, reader),
        problem=pod.problem or None,
    )
