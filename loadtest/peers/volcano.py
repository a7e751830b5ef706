"""Volcano as a contender: its scheduler, and of its controllers those that look after PodGroups and queues.

A release of Volcano needs the API module of the same name, of which the Go module proxy serves few. v1.14.1 builds
with the one of v1.14.0; v1.15.1 asks for names that this one lacks.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from loadtest.contender import Batch, CannotError, Entitled
from loadtest.peers import paused
from loadtest.peers.members import Member, gangs, members, pod_of
from loadtest.peers.source import Source, await_line, install_kinds, namespaces
from loadtest.programs import without_paths
from tests.system.api import Api, Object
from tests.system.bed import Bed
from tests.system.children import Child
from tests.system.identities import User

VERSION = "v1.14.1"
APIS = "v1.14.0"
PROFILE = "volcano"
SCHEDULER, CONTROLLERS = "vc-scheduler", "vc-controller-manager"
MODULE = "volcano.sh/volcano"
SOURCE = Source(
    name="volcano",
    module=MODULE,
    kubernetes="1.34.1",
    packages=((SCHEDULER, f"{MODULE}/cmd/scheduler"), (CONTROLLERS, f"{MODULE}/cmd/controller-manager")),
)
CRDS = "config/crd/volcano/bases"
CONFIGURATION = "installer/helm/chart/volcano/config/volcano-scheduler.conf"
API_VERSION = "scheduling.volcano.sh/v1beta1"
QUEUES = f"/apis/{API_VERSION}/queues"
GROUP_ANNOTATION = "scheduling.k8s.io/group-name"
QUEUE_ANNOTATION = "scheduling.volcano.sh/queue-name"
RATE = ("--kube-api-qps=5000", "--kube-api-burst=10000", "--leader-elect=false")


class Volcano:
    """How its programs are held back, and why.

    The scheduler runs from the start and schedules nothing, since it ignores a PodGroup whose queue is not there: the
    queues are created at the release. (Elected, it would fill its caches only afterwards.) The controllers, which
    make the PodGroups of lone pods, wait for nothing but pods: their process is there, and becomes them only at the
    release.
    """

    name = "Volcano"

    def __init__(self) -> None:
        # What was started last; changed by `build` and `start`.
        self._programs = Path()
        self._controllers: Child | None = None
        self._flags: Mapping[str, Sequence[str]] = {}

    def version(self) -> str:
        """Return which it is, and what of it runs."""
        programs = "scheduler, and the controllers of PodGroups and queues"
        return f"Volcano {VERSION} with its API module {APIS}: {programs}, configured as its chart does"

    def build(self) -> None:
        """Build its two programs."""
        self._programs = SOURCE.programs()

    def install(self, api: Api) -> None:
        """Create its kinds and its namespace."""
        install_kinds(api, SOURCE.documents(CRDS))
        api.create_all(namespaces("volcano-system"))

    def work(self, batch: Batch) -> Sequence[Object]:
        """Return PodGroups of gangs, and pods."""
        return objects(batch)

    def start(self, bed: Bed) -> Sequence[str]:
        """Start the scheduler, and a process that becomes the controllers."""
        configuration = bed.folder / "volcano" / "volcano-scheduler.conf"
        configuration.parent.mkdir(exist_ok=True)
        configuration.write_text(SOURCE.text(CONFIGURATION))
        connection = f"--kubeconfig={bed.kubeconfig(User.ADMIN)}"
        self._flags = {
            SCHEDULER: [connection, *RATE, f"--scheduler-conf={configuration}", "--cache-dumper=false", "--v=2"],
            CONTROLLERS: [connection, *RATE, "--controllers=pg-controller,queue-controller"],
        }
        (bed.folder / f"{SCHEDULER}.log").unlink(missing_ok=True)
        scheduler = bed.start(SCHEDULER, [self._programs / SCHEDULER, *self._flags[SCHEDULER]])
        self._controllers = paused.start(
            bed, CONTROLLERS, [self._programs / CONTROLLERS, *self._flags[CONTROLLERS]], {}
        )
        await_line(scheduler, "completes Initialization")
        return list(self._flags)

    def release(self, api: Api, queues: Sequence[Entitled]) -> None:
        """Let the controllers begin, and create the queues the scheduler has to have.

        A queue is open once its status says so. The controller would say it in a moment.
        """
        assert self._controllers is not None
        paused.resume(self._controllers)
        for one in queues:
            api.create(_queue(one))
            api.patch(f"{QUEUES}/{one.name}/status", {"status": {"state": "Open"}})

    def attempts(self) -> float | None:
        """Return None: it tells no number of attempts."""
        return None

    def flags(self) -> Mapping[str, Sequence[str]]:
        """Return the command line of each of its programs."""
        return {name: without_paths(arguments) for name, arguments in self._flags.items()}


def objects(batch: Batch) -> Sequence[Object]:
    """Return PodGroups of gangs, and pods; raises `CannotError` for what it has not."""
    if batch.fraction:
        raise CannotError("Volcano gives out parts of GPUs only through device plugins of its own.")
    if batch.on:
        raise CannotError("Volcano, as its chart configures it, evicts no pod: reclaim is not among its actions.")
    return [*(_group(name, batch) for name in gangs(batch)), *(_pod(batch, member) for member in members(batch))]


def _queue(entitled: Entitled) -> Object:
    spec = {"weight": 1, "reclaimable": True}
    return {"apiVersion": API_VERSION, "kind": "Queue", "metadata": {"name": entitled.name}, "spec": spec}


def _group(name: str, batch: Batch) -> Object:
    return {
        "apiVersion": API_VERSION,
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"minMember": batch.gang_size, "queue": batch.queue},
    }


def _pod(batch: Batch, member: Member) -> Object:
    made = pod_of(batch, member, scheduler=PROFILE)
    grouped = {GROUP_ANNOTATION: member.group} if member.group else {QUEUE_ANNOTATION: batch.queue}
    made["metadata"]["annotations"] = grouped
    return made
