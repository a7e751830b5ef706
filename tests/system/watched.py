"""Leeboard and its kube-scheduler on the session's control plane, and the evictions there; Leeboard is not queried."""

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Self

import httpx

from tests.system.api import DEFAULT_PODS, PODS, Api, Object, gpu_node, pod
from tests.system.bed import HOST, Bed, free_ports
from tests.system.cluster import install, start_leeboard, start_own_scheduler
from tests.system.observer import Observer, Rules, breaches
from tests.system.waiting import eventually

DEFAULT_GROUPS = "/apis/scheduling.run.ai/v2alpha2/namespaces/default/podgroups"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
OURS_ALONE = (
    "/apis/apps/v1/replicasets",
    "/apis/policy/v1/poddisruptionbudgets",
    "/apis/kai.scheduler/v1alpha1/topologies",
)
"""Kinds that only the tests of the planner create."""

WITHIN_S = 30.0
"""Not a promise of Leeboard, but the time that a busy machine may need."""

OWED_NOTHING = "so it reclaims nothing"
"""The end of a refusal that was given after a search for victims."""

_node_numbers, _probe_numbers = count(), count()


class WatchedCluster:
    """A cluster of which every pod is watched; nodes are added by the test."""

    def __init__(self, bed: Bed, api: Api, observer: Observer, settings: Mapping[str, str]) -> None:
        self.api = api
        self.observer = observer
        self._bed = bed
        self._settings = dict(settings)
        self._webhooks, self._operations = free_ports(2)
        # Written by `add_nodes` and `delete`.
        self._gpus: dict[str, int] = {}
        self._deleted: set[str] = set()
        self._told_before = {event["metadata"]["uid"] for event in api.items(EVENTS)}

    def start(self) -> Self:
        """Start both programs."""
        self.start_leeboard()
        start_own_scheduler(self._bed, f"http://{HOST}:{self._webhooks}")
        return self

    def start_leeboard(self) -> None:
        """Start Leeboard on its own ports."""
        ports = {"webhook_port": str(self._webhooks), "operations_port": str(self._operations)}
        start_leeboard(self._bed, **ports, **self._settings)

    def kill_leeboard(self) -> None:
        """End Leeboard like a crash."""
        self._bed.kill("leeboard")

    def stop(self) -> None:
        """Stop both programs."""
        self._bed.stop("own-scheduler")
        self._bed.stop("leeboard")

    # -- changes

    def add_nodes(self, number: int, *, gpus: int, labels: Mapping[str, str] | None = None) -> list[str]:
        """Create nodes with names that no other test uses."""
        nodes = [gpu_node(f"w{next(_node_numbers):03}", gpus=gpus, labels=labels) for _ in range(number)]
        names = [node["metadata"]["name"] for node in nodes]
        self._gpus |= dict.fromkeys(names, gpus)
        self.api.create_all(nodes)
        return names

    def run(self, name: str, number: int, **more: object) -> None:
        """Create pods named `<name>-<index>` and wait until they run; pods created later are younger."""
        self.api.create_all(pod(f"{name}-{index}", **more) for index in range(number))  # type: ignore[arg-type] # free-form by design
        self.wait_until_run(name, number)
        # The API server stores ages in whole seconds.
        this_second = int(time.time())
        eventually(lambda: int(time.time()) > this_second, within_s=2.0, what="the next second")

    def delete(self, *names: str) -> None:
        """Delete pods; they do not count as evicted."""
        self._deleted |= {*names}
        for name in names:
            self.api.delete_now(f"{DEFAULT_PODS}/{name}")

    def search_again(self, queue: str, times: int = 5) -> None:
        """Start this number of further victim searches, by creating and deleting pods of a queue at its share."""
        for _ in range(times):
            name = f"probe-{next(_probe_numbers)}"
            self.api.create(pod(name, queue=queue))
            self.wait_for_why(name, OWED_NOTHING)
            self.delete(name)

    @contextmanager
    def slow_kubelets(self) -> Iterator[None]:
        """Keep deleted pods until the block ends, like pods with a long grace period."""
        kwok = self._bed.child("kwok").process
        kwok.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            kwok.send_signal(signal.SIGCONT)

    # -- reading

    def running(self, prefix: str = "") -> dict[str, str]:
        """Return pod name -> node of the pods that run and are not terminating."""
        pods = [one for one in self.api.items(PODS) if one["metadata"]["name"].startswith(prefix) and not leaves(one)]
        return {one["metadata"]["name"]: one["spec"]["nodeName"] for one in pods if one["status"]["phase"] == "Running"}

    def wait_until_run(self, prefix: str, number: int) -> dict[str, str]:
        """Wait until exactly this number of pods with this prefix run; return their nodes."""
        return eventually(
            lambda: self.running(prefix),
            until=lambda seen: len(seen) == number,
            within_s=WITHIN_S,
            what=f"{number} pods {prefix}* run",
        )

    def evicted(self) -> list[str]:
        """Return the pods that ran and are gone or terminating, by name, without those that the test deleted."""
        ran = {sight.uid: sight.name for sight in self.observer.history() if sight.node}
        staying = {one["metadata"]["uid"] for one in self.api.items(PODS) if not leaves(one)}
        return sorted(name for uid, name in ran.items() if uid not in staying and name not in self._deleted)

    def wait_until_evicted(self, number: int) -> list[str]:
        """Wait until at least this number of pods are evicted; return them."""
        seen = f"{number} pods are evicted"
        return eventually(self.evicted, until=lambda names: len(names) >= number, within_s=WITHIN_S, what=seen)

    def why(self, name: str) -> str:
        """Return the message by which Leeboard says why a pod is pending; empty when there is none."""
        answer = httpx.get(
            f"http://{HOST}:{self._operations}/api/v1/pods/default/{name}", headers=self._bed.reading(), timeout=5.0
        )
        why = None if answer.is_error else answer.json()["why"]
        return why["sentence"] if why else ""

    def wait_for_why(self, name: str, text: str) -> str:
        """Wait until the reason for which a pod is pending contains the text; return it."""
        what = f"{name} is told {text!r}"
        return eventually(lambda: self.why(name), until=lambda said: text in said, within_s=WITHIN_S, what=what)

    def wait_for_events(self, reason: str, number: int = 1) -> list[Object]:
        """Wait until there are this many events of this reason, without those of earlier tests; return them."""
        return eventually(
            lambda: [one for one in self._new_events() if one["reason"] == reason],
            until=lambda seen: len(seen) >= number,
            within_s=WITHIN_S,
            what=f"{number} events {reason}",
        )

    def _new_events(self) -> list[Object]:
        return [one for one in self.api.items(EVENTS) if one["metadata"]["uid"] not in self._told_before]

    def metric(self, name: str) -> float:
        """Return the value of a metric that has no labels."""
        lines = httpx.get(
            f"http://{HOST}:{self._operations}/metrics", headers=self._bed.reading(), timeout=5.0
        ).text.splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))

    def check(self) -> None:
        """Check that no node was ever overcommitted and no pod bound twice."""
        assert breaches(self.observer.history(), Rules(gpus=self._gpus), until_s=time.monotonic()) == []


@contextmanager
def watched(bed: Bed, api: Api, **settings: str) -> Iterator[WatchedCluster]:
    """Run Leeboard with these settings beside its kube-scheduler; check at the end, and clean up."""
    install(api)
    with Observer(bed) as observer:
        cluster = WatchedCluster(bed, api, observer, settings).start()
        try:
            yield cluster
            cluster.check()
        finally:
            cluster.stop()
            for collection in OURS_ALONE:
                api.empty(collection)


def leaves(item: Object) -> bool:
    """Whether a pod is terminating: deleted, or marked for eviction."""
    conditions = item["status"].get("conditions", [])
    return "deletionTimestamp" in item["metadata"] or any(one["type"] == "DisruptionTarget" for one in conditions)


def replica_set(name: str, replicas: int, template: Object) -> Object:
    """Build a ReplicaSet of pods like `template` (made by `pod`), which replaces each deleted pod."""
    labels = {**template["metadata"]["labels"], "app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": labels, "annotations": template["metadata"]["annotations"]},
                "spec": template["spec"],
            },
        },
    }
