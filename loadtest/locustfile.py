"""kube-scheduler's questions under locust: one user asks as its scheduling loop does, one binds beside it.

Needs the simulated cluster of `python -m loadtest.simulated`, whose pods it creates and deletes. `python -m
loadtest.webhooks` runs it headless; docs/measurements.md says how to open its page.
"""

import itertools
import os
import queue
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from locust import FastHttpUser, events, tag, task

from app.model.seam import RawObject
from loadtest import questions
from loadtest.questions import Shape

HEADERS = {"Content-Type": "application/json"}
WINDOWS = 16
STOCK = 10
"""So many pods are created at once, and as many bound ones deleted."""
VICTIMS = 20
"""Nodes for which kube-scheduler asks whether victims may go."""
IDLE_S = 0.1
DECIDED = "decided"
"""The tag of what needs no plan to be answered: it has to be as fast while one is being computed."""
OF_THE_CLUSTER = "(simulated cluster)"


@dataclass(slots=True)
class Crowd:
    """What the users of one run share."""

    to_bind: queue.SimpleQueue[tuple[RawObject, str]] = field(default_factory=queue.SimpleQueue)
    """Pods and the nodes that filter answered. Waiting for it blocks no other user, because locust patches it."""
    spent: list[RawObject] = field(default_factory=list)
    """Bound, or of no use: to be deleted."""
    took_ms: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    faults: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    numbers: Any = field(default_factory=itertools.count)


@events.init_command_line_parser.add_listener
def add_options(parser: Any) -> None:
    """Add what this load test can be told."""
    parser.add_argument("--names", type=int, default=500, help="Node names in each question.")
    parser.add_argument("--cluster", default="", help="Where `python -m loadtest.simulated` says its cluster is.")
    parser.add_argument("--summary", default="", help="File for every latency in ms and every fault, as JSON.")


@events.test_start.add_listener
def begin(environment: Any, **_: Any) -> None:
    """Start with nothing known."""
    environment.crowd = Crowd()


@events.request.add_listener
def note(name: str, response_time: float, context: Any, exception: Any, **_: Any) -> None:
    """Keep the latency to the microsecond: locust's own statistics round it to milliseconds."""
    crowd = context.get("crowd")
    if crowd is None:
        return
    crowd.took_ms[name].append(response_time)
    if exception is not None:
        crowd.faults[name].append(str(exception))


@events.test_stop.add_listener
def tell(environment: Any, **_: Any) -> None:
    """Write the summary, if there is to be one."""
    path, crowd = environment.parsed_options.summary, environment.crowd
    if path:
        Path(path).write_bytes(orjson.dumps({"took_ms": dict(crowd.took_ms), "faults": dict(crowd.faults)}))


class Caller(FastHttpUser):
    """Asks the webhooks over one kept connection, and checks every answer."""

    abstract = True
    connection_timeout = network_timeout = 60.0

    def on_start(self) -> None:
        """Learn what is shared."""
        self.crowd: Crowd = self.environment.crowd

    def context(self) -> dict[str, object]:
        """Return what each request of this user belongs to."""
        return {"crowd": self.crowd}

    def ask(self, verb: str, what: str, body: bytes, *, fault_of: Any) -> Any:
        """Return the answer; None when it has a fault, which is counted."""
        name = f"{verb} {what}".strip()
        with self.client.post(f"/{verb}", data=body, headers=HEADERS, name=name, catch_response=True) as reply:
            if reply.status_code != 200:  # noqa: PLR2004 # kube-scheduler knows no other good status
                reply.failure(f"status {reply.status_code}: {reply.error}")
                return None
            answer = _decoded(reply.content)
            fault = fault_of(answer)
            if fault:
                reply.failure(fault)
                return None
            return answer


class Scheduling(Caller):
    """kube-scheduler's loop: it asks about one pod after the other."""

    weight = 1

    def on_start(self) -> None:
        """Make the lists of names once, and create the pods that are asked about again and again."""
        super().on_start()
        options = self.environment.parsed_options
        self._cluster: str = options.cluster.rstrip("/")
        if not self._cluster:
            raise SystemExit("--cluster is missing: the address that `python -m loadtest.simulated` prints")
        nodes = self._of_cluster("GET", "/nodes")
        offers = questions.windows(nodes, options.names, WINDOWS)
        self._offers = itertools.cycle([(names, orjson.dumps(names)) for names in offers])
        self._waiting: deque[RawObject] = deque()
        self._kept = next(self._offers)
        self._is_promised = False
        self._staying = {shape: self._created(shape, 1)[0] for shape in (Shape.HUGE, Shape.FOREIGN, Shape.LONE)}

    def on_stop(self) -> None:
        """Leave the cluster as it was found."""
        left = [self.crowd.to_bind.get_nowait()[0] for _ in range(self.crowd.to_bind.qsize())]
        self._delete([*left, *self._waiting, *self._staying.values(), *self._spent()])

    @task(6)
    def place(self) -> None:
        """Ask about a pod that waits, and again about the one that is promised now; then leave it to bind."""
        pod = questions.as_sent(self._next_pod())
        offered, names = next(self._offers)
        body = questions.pod_body(pod, names)

        answer = self.ask("filter", "waiting", body, fault_of=lambda one: _fault_of_first(one, offered))
        if answer is None:
            self.crowd.spent.append(pod)
            return
        if not answer["NodeNames"]:
            self._waiting.append(pod)
            return
        again = self.ask("filter", "promised", body, fault_of=lambda one: _fault_of_promised(one, offered))
        if again is None:
            self.crowd.spent.append(pod)
        else:
            self.crowd.to_bind.put((pod, questions.node_of(again)))

    @tag(DECIDED)
    @task(3)
    def remind(self) -> None:
        """Ask about a pod that is promised a node, and about the same nodes each time, so that this is among them."""
        pod = questions.as_sent(self._staying[Shape.LONE])
        offered, names = self._kept
        body = questions.pod_body(pod, names)
        if self._is_promised:
            self.ask("filter", "promised", body, fault_of=lambda one: _fault_of_promised(one, offered))
            return
        answer = self.ask("filter", "waiting", body, fault_of=lambda one: _fault_of_first(one, offered))
        self._is_promised = bool(answer and answer["NodeNames"])

    @tag(DECIDED)
    @task(2)
    def leave_alone(self) -> None:
        """Ask about a pod of another profile, which is scored as well, since all nodes are left."""
        pod = questions.as_sent(self._staying[Shape.FOREIGN])
        offered, names = next(self._offers)
        body = questions.pod_body(pod, names)
        self.ask(
            "filter", "unmanaged", body, fault_of=lambda one: questions.fault_of_filter(Shape.FOREIGN, one, offered)
        )
        self.ask("prioritize", "unmanaged", body, fault_of=lambda one: questions.fault_of_scores(one, offered))

    @task(1)
    def suppose(self) -> None:
        """Ask about a pod that does not exist."""
        pod = questions.as_what_if(self._staying[Shape.LONE])
        offered, names = next(self._offers)
        body = questions.pod_body(pod, names)
        self.ask("filter", "what-if", body, fault_of=lambda one: questions.fault_of_what_if(one, offered))
        self.ask("prioritize", "what-if", body, fault_of=lambda one: questions.fault_of_scores(one, offered))

    @task(1)
    def refuse(self) -> None:
        """Ask about a pod that fits on no node."""
        offered, names = next(self._offers)
        body = questions.pod_body(questions.as_sent(self._staying[Shape.HUGE]), names)
        self.ask("filter", "refused", body, fault_of=lambda one: questions.fault_of_filter(Shape.HUGE, one, offered))

    @task(1)
    def preempt(self) -> None:
        """Ask whether pods may be preempted for one of ours, and for one of others."""
        offered, _ = next(self._offers)
        victims = questions.candidates(offered[:VICTIMS])
        for shape, what in ((Shape.LONE, "managed"), (Shape.FOREIGN, "unmanaged")):
            body = questions.preempt_body(questions.as_sent(self._staying[shape]), victims)

            def fault_of(answer: Any, shape: Shape = shape) -> str:
                return questions.fault_of_preempt(shape, answer, victims)

            self.ask("preempt", what, body, fault_of=fault_of)

    def _next_pod(self) -> RawObject:
        if not self._waiting:
            self._delete(self._spent())
            self._waiting.extend(self._created(Shape.LONE, STOCK))
        return self._waiting.popleft()

    def _spent(self) -> list[RawObject]:
        spent, self.crowd.spent = self.crowd.spent, []
        return spent

    def _created(self, shape: Shape, count: int) -> list[RawObject]:
        names = [f"{shape}-{os.getpid()}-{next(self.crowd.numbers)}" for _ in range(count)]
        stored: list[RawObject] = self._of_cluster("POST", "/pods", [questions.pod(name, shape) for name in names])
        return stored

    def _delete(self, pods: list[RawObject]) -> None:
        if pods:
            named = [(pod["metadata"]["namespace"], pod["metadata"]["name"]) for pod in pods]
            self._of_cluster("DELETE", "/pods", named)

    def _of_cluster(self, method: str, path: str, value: object = None) -> Any:
        body = None if value is None else orjson.dumps(value)
        url = f"{self._cluster}{path}"
        with self.client.request(method, url, data=body, name=OF_THE_CLUSTER, catch_response=True) as reply:
            if reply.status_code != 200:  # noqa: PLR2004 # nothing else is expected
                reply.failure(f"status {reply.status_code}: {reply.text}")
                raise SystemExit(f"the simulated cluster at {self._cluster} does not take a {method} of {path}")
            return orjson.loads(reply.content)


class Binding(Caller):
    """kube-scheduler's binding cycles, beside its loop."""

    weight = 1

    @tag(DECIDED)
    @task
    def bind(self) -> None:
        """Bind the pod that was answered longest ago; it is spent afterwards."""
        try:
            pod, node = self.crowd.to_bind.get(timeout=IDLE_S)
        except queue.Empty:
            return
        self.ask("bind", "", questions.bind_body(pod, node), fault_of=questions.fault_of_bind)
        self.crowd.spent.append(pod)


def _fault_of_promised(answer: Any, offered: Sequence[str]) -> str:
    return questions.fault_of_filter(Shape.LONE, answer, offered)


def _fault_of_first(answer: Any, offered: Sequence[str]) -> str:
    # While a great plan is being computed a pod without a promise is sent away, and woken when it has one.
    return "" if questions.is_undecided(answer, offered) else _fault_of_promised(answer, offered)


def _decoded(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
