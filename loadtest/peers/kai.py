"""KAI-Scheduler as a contender: its scheduler, its binder and its podgrouper, each with the flags it is born with."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from loadtest.contender import Batch, Entitled
from loadtest.peers import kai_devices, kai_objects, paused
from loadtest.peers.source import Source, await_line, install_kinds, namespaces
from tests.system.api import Api, Object
from tests.system.bed import HOST, Bed, free_ports
from tests.system.children import Child
from tests.system.identities import User

VERSION = "v0.12.0"
SCHEDULER, BINDER, PODGROUPER = "kai-scheduler", "kai-binder", "kai-podgrouper"
MODULE = "github.com/NVIDIA/KAI-scheduler"
SOURCE = Source(
    name="kai",
    module=MODULE,
    kubernetes="1.34.2",
    packages=(
        (SCHEDULER, f"{MODULE}/cmd/scheduler"),
        (BINDER, f"{MODULE}/cmd/binder"),
        (PODGROUPER, f"{MODULE}/cmd/podgrouper"),
    ),
)
MANIFESTS = "deployments/kai-scheduler"
NAMESPACE = "kai-scheduler"
NAMESPACES = (NAMESPACE, kai_devices.NAMESPACE, "kai-scale-adjust")
RATE = ("--qps=5000", "--burst=10000")
GARBAGE = {"GOGC": "400"}
"""What KAI's operator sets for the scheduler's container, and for no other."""
NO_SERVERS = ("--metrics-bind-address=0", "--health-probe-bind-address=0")
"""Of the binder and the podgrouper, which would both listen on the same ports of every address."""


class Kai:
    """How its three programs are held back, and why each in its own way.

    The scheduler runs from the start and schedules nothing, since it ignores a PodGroup whose queue is not there: the
    queues are created at the release. (It could be elected, but it asks for its lease every 5 s only, and fills its
    caches after that.) The binder runs from the start and has nothing to bind. The podgrouper waits for nothing but
    pods, so its process is there but becomes the podgrouper only at the release; the second it then needs for its
    start and its caches counts against it, as it would if it were elected.
    """

    name = "KAI-Scheduler"

    def __init__(self) -> None:
        # What was started last; changed by `build` and `start`.
        self._programs = Path()
        self._podgrouper: Child | None = None
        self._flags: Mapping[str, Sequence[str]] = {}

    def version(self) -> str:
        """Return which it is, and what of it runs: its controllers that only write status would cost it more."""
        return f"KAI-Scheduler {VERSION}: scheduler, binder and podgrouper, configured as they are by default"

    def build(self) -> None:
        """Build its three programs."""
        self._programs = SOURCE.programs()

    def install(self, api: Api) -> None:
        """Create its kinds, priority classes and namespaces."""
        install_kinds(api, SOURCE.documents(f"{MANIFESTS}/crds"))
        api.create_all(SOURCE.documents(f"{MANIFESTS}/templates/priorityclasses"))
        api.create_all(namespaces(*NAMESPACES))
        account = {"name": kai_devices.NAMESPACE, "namespace": kai_devices.NAMESPACE}
        api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})

    def work(self, batch: Batch) -> Sequence[Object]:
        """Return pods, and the PodGroups that the podgrouper does not make."""
        return kai_objects.objects(batch)

    def start(self, bed: Bed) -> Sequence[str]:
        """Start the scheduler and the binder, and a process that becomes the podgrouper."""
        (metrics,) = free_ports(1)
        self._flags = flags(metrics_port=metrics)
        env = {"KUBECONFIG": str(bed.kubeconfig(User.ADMIN)), "POD_NAMESPACE": NAMESPACE}
        kai_devices.start(bed)
        for name in (SCHEDULER, BINDER):
            (bed.folder / f"{name}.log").unlink(missing_ok=True)
            more = GARBAGE if name == SCHEDULER else {}
            bed.start(name, [self._programs / name, *self._flags[name]], env | more)
        command: list[str | Path] = [self._programs / PODGROUPER, *self._flags[PODGROUPER]]
        self._podgrouper = paused.start(bed, PODGROUPER, command, env)
        # Both say so when their caches are filled.
        await_line(bed.child(SCHEDULER), "End scheduling")
        await_line(bed.child(BINDER), '"controller": "bindrequest"', "Starting workers")
        return list(self._flags)

    def release(self, api: Api, queues: Sequence[Entitled]) -> None:
        """Let the podgrouper begin, and create the queues the scheduler has to have."""
        assert self._podgrouper is not None
        paused.resume(self._podgrouper)
        for one in kai_objects.queues(queues):
            api.create(one)

    def attempts(self) -> float | None:
        """Return None: it tells no number of attempts."""
        return None

    def flags(self) -> Mapping[str, Sequence[str]]:
        """Return the command line of each of its programs, and what is set for it in its environment."""
        set_for = [f"{name}={value}" for name, value in GARBAGE.items()]
        return {name: [*set_for, *each] if name == SCHEDULER else each for name, each in self._flags.items()}


def flags(*, metrics_port: int) -> Mapping[str, Sequence[str]]:
    """Return the flags of each program: no limit on its own writes, and no address that another one uses as well.

    The scheduler's port for plugins cannot be kept to one address; it takes -1 for "none".
    """
    return {
        SCHEDULER: (*RATE, f"--listen-address={HOST}:{metrics_port}", "--plugin-server-port=-1"),
        BINDER: (*RATE, *NO_SERVERS),
        PODGROUPER: (*RATE, *NO_SERVERS),
    }
