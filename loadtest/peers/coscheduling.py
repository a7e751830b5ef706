"""kube-scheduler with the coscheduling plugin of the Kubernetes community, its gangs and nothing else beside it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from loadtest import lease
from loadtest.contender import Batch, CannotError, Entitled
from loadtest.peers.members import Member, gangs, members, pod_of
from loadtest.peers.source import Source, install_kinds
from tests.system.api import Api, Object
from tests.system.bed import PLAIN_SCHEDULER, Bed, free_ports
from tests.system.identities import User

VERSION = "v0.34.7"
KUBERNETES = "1.34.4"
SCHEDULER = "coscheduling"
SOURCE = Source(
    name="coscheduling",
    module="sigs.k8s.io/scheduler-plugins",
    kubernetes=KUBERNETES,
    packages=((SCHEDULER, "leeboard.dev/loadtest/peers/coscheduling"),),
)
CRD = "config/crd/bases/scheduling.x-k8s.io_podgroups.yaml"
GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
PROFILE = {
    "schedulerName": SCHEDULER,
    "plugins": {
        "multiPoint": {"enabled": [{"name": "Coscheduling"}]},
        "queueSort": {"enabled": [{"name": "Coscheduling"}], "disabled": [{"name": "*"}]},
    },
}


class Coscheduling:
    """One program, held back as kube-scheduler is: its caches are filled, and it waits for the lease."""

    name = "coscheduling"

    def __init__(self) -> None:
        # What was started last; changed by `build` and `start`.
        self._programs = Path()
        self._port = 0

    def version(self) -> str:
        """Return which it is, and what it is built with."""
        return f"kube-scheduler {KUBERNETES} with the plugin coscheduling of scheduler-plugins {VERSION}"

    def build(self) -> None:
        """Build it."""
        self._programs = SOURCE.programs()

    def install(self, api: Api) -> None:
        """Create its PodGroup."""
        install_kinds(api, SOURCE.documents(CRD))

    def work(self, batch: Batch) -> Sequence[Object]:
        """Return PodGroups and pods; it has neither parts of a GPU nor quotas to reclaim by."""
        return objects(batch)

    def start(self, bed: Bed) -> Sequence[str]:
        """Start it, held back by the lease."""
        with bed.api() as api:
            lease.hold(api)
        (self._port,) = free_ports(1)
        text = PLAIN_SCHEDULER.replace("${KUBECONFIG}", str(bed.kubeconfig(User.ADMIN)))
        path = bed.folder / f"{SCHEDULER}.yaml"
        path.write_text(yaml.safe_dump(lease.waiting_for_it(yaml.safe_load(text) | {"profiles": [PROFILE]})))
        (bed.folder / f"{SCHEDULER}.log").unlink(missing_ok=True)
        command: list[str | Path] = [self._programs / SCHEDULER, f"--config={path}", *lease.metrics_flags(self._port)]
        lease.await_wait(bed.start(SCHEDULER, command))
        return [SCHEDULER]

    def release(self, api: Api, queues: Sequence[Entitled]) -> None:  # noqa: ARG002 - it knows no queues
        """Let it begin."""
        lease.release(api)

    def attempts(self) -> float | None:
        """Return how many scheduling attempts it has made."""
        return lease.attempts(self._port)

    def flags(self) -> Mapping[str, Sequence[str]]:
        """Return its command line and what differs from kube-scheduler's own profile."""
        plugins = yaml.safe_dump(PROFILE["plugins"], default_flow_style=True, width=10_000).strip()
        connection = "config clientConnection: {qps: 5000, burst: 10000}"
        return {SCHEDULER: ["--config=...", *lease.metrics_flags(self._port), connection, f"config plugins: {plugins}"]}


def objects(batch: Batch) -> Sequence[Object]:
    """Return PodGroups and pods; raises `CannotError` for what it has not."""
    if batch.fraction:
        raise CannotError("coscheduling gives out whole GPUs only.")
    if batch.on:
        raise CannotError("coscheduling has no quotas, so it evicts no pod for a gang.")
    return [*(_group(name, batch) for name in gangs(batch)), *(_pod(batch, member) for member in members(batch))]


def _group(name: str, batch: Batch) -> Object:
    return {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"minMember": batch.gang_size},
    }


def _pod(batch: Batch, member: Member) -> Object:
    made = pod_of(batch, member, scheduler=SCHEDULER)
    made["metadata"]["labels"] = {GROUP_LABEL: member.group} if member.group else {}
    return made
