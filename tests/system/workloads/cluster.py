"""A cluster for objects of operators: the shipped Leeboard, real CRDs, and stand-in operators."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.system.api import POD_GROUPS, PODS, Api, Object
from tests.system.bed import PLAIN_SCHEDULER, Bed
from tests.system.forms import Deployed, Form, deployed
from tests.system.observer import Observer
from tests.system.waiting import eventually
from tests.system.watched import WITHIN_S, WatchedCluster, leaves
from tests.system.workloads import crds
from tests.system.workloads.kinds import CRON_JOB, DEPLOYMENT, JOB, OWNERS, REPLICA_SET, STATEFUL_SET, Kind
from tests.system.workloads.operators import Operators

BUILT_IN = (CRON_JOB, DEPLOYMENT, STATEFUL_SET, REPLICA_SET, JOB)
GONE_WITHIN_S = 60.0
"""The garbage collector discovers unknown kinds twice a minute."""


class WorkloadCluster(WatchedCluster):
    """A cluster whose pods have owners; Leeboard runs already, for all tests of a file."""

    def __init__(self, running: Deployed, observer: Observer) -> None:
        super().__init__(running.bed, running.api, observer, {})
        self._running = running

    # -- changes

    def submit(self, item: Object) -> Object:
        """Create a submitted object."""
        return self.api.create(item)

    def change(self, kind: Kind, name: str, spec: Object) -> None:
        """Change a part of a submitted object."""
        self.api.patch(f"/apis/{kind.api_version}/namespaces/default/{kind.plural}/{name}", {"spec": spec})

    def withdraw(self, kind: Kind, name: str) -> None:
        """Delete a submitted object, as kubectl does."""
        path = f"/apis/{kind.api_version}/namespaces/default/{kind.plural}/{name}"
        self.api.call("DELETE", path, body={"propagationPolicy": "Background"})

    def wait_until_gone(self, prefix: str) -> None:
        """Wait until no pod with this prefix is left."""
        eventually(
            lambda: [one.name for one in self.observer.present() if one.name.startswith(prefix)],
            until=lambda names: not names,
            within_s=GONE_WITHIN_S,
            what=f"pods {prefix}* are gone",
        )

    # -- reading

    def why(self, name: str) -> str:
        """Return the message by which Leeboard says why a pod is pending; empty when there is none."""
        return str(self._running.why(name).get("sentence", ""))

    def reason(self, name: str) -> str:
        """Return the reason by which Leeboard says why a pod is pending; empty when there is none."""
        return str(self._running.why(name).get("reason", ""))

    def metric(self, name: str) -> float:
        """Return the value of a metric."""
        return self._running.metric(name)

    def on_gpus(self) -> int:
        """Return how many pods with GPUs run; the pod that submits a RayJob's program has none."""
        return sum(one.gpus > 0 and one.phase == "Running" for one in self.observer.present())

    def waiting(self) -> list[str]:
        """Return the names of the pods that have no node."""
        pods = [one for one in self.api.items(PODS) if not one["spec"].get("nodeName")]
        return sorted(one["metadata"]["name"] for one in pods if "deletionTimestamp" not in one["metadata"])

    def wait_until_refused(self, number: int, reason: str) -> None:
        """Wait until exactly this number of pods have no node, each with this reason."""
        eventually(
            lambda: {name: self.reason(name) for name in self.waiting()},
            until=lambda seen: list(seen.values()) == [reason] * number,
            within_s=WITHIN_S,
            what=f"{number} pods wait because of {reason}",
        )

    def evicted_of(self, prefix: str) -> list[str]:
        """Return the pods with this prefix that ran and are gone or terminating."""
        return [name for name in self.evicted() if name.startswith(prefix)]

    def waiting_groups(self) -> list[Object]:
        """Return the pending PodGroups, according to Leeboard."""
        answer = httpx.get(
            f"{self._running.operations}/api/v1/podgroups", headers=self._running.bed.reading(), timeout=5.0
        )
        items: list[Object] = answer.raise_for_status().json()["items"]
        return items

    def wait_until_no_group_waits(self) -> None:
        """Wait until no PodGroup is pending, according to Leeboard: its watches follow those of the test."""
        eventually(
            self.waiting_groups, until=lambda groups: groups == [], within_s=WITHIN_S, what="no PodGroup is pending"
        )

    def wait_until_nothing_is_left(self) -> None:
        """Wait until there is no pod and no PodGroup, and Leeboard knows none."""

        def left() -> list[str]:
            objects = [*self.api.items(PODS), *self.api.items(POD_GROUPS)]
            return [*(one["metadata"]["name"] for one in objects), *map(str, self.waiting_groups())]

        eventually(left, until=lambda names: not names, within_s=GONE_WITHIN_S, what="nothing is left")


@contextmanager
def workload_service(bed: Bed, api: Api) -> Iterator[Deployed]:
    """Run Leeboard as shipped beside stand-in operators, for the tests of one file."""
    crds.install(api)
    with deployed(bed, api, Form.HELD, PLAIN_SCHEDULER) as running, Operators(bed):
        yield running


@contextmanager
def workload_cluster(running: Deployed) -> Iterator[WorkloadCluster]:
    """Observe the pods of one test, and remove what it submitted."""
    with Observer(running.bed) as observer:
        cluster = WorkloadCluster(running, observer)
        yield cluster
        cluster.check()
    empty_workloads(running.api)


def empty_workloads(api: Api) -> None:
    """Delete all submitted objects, owners first, and wait until nothing creates pods any more."""
    for kind in (*OWNERS, *BUILT_IN):
        api.empty(kind.path)
    api.empty(PODS)


def staying(api: Api) -> list[Object]:
    """Return the pods that are not terminating."""
    return [one for one in api.items(PODS) if not leaves(one)]
