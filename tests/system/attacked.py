"""A cluster in the secure profile with a malicious tenant: what was assigned to each pod, before and after."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count

import httpx

from tests.system.api import Api, Object, gpu_node, pod, queue
from tests.system.bed import HOST, Bed, free_ports
from tests.system.cluster import DEFAULT_QUEUES, documents, install, start_leeboard, start_own_scheduler
from tests.system.identities import User
from tests.system.rendered import policies_in_force
from tests.system.tenants import TEAM, allow, settle, subject
from tests.system.waiting import eventually

OTHER_TEAM = "team-b"
"""A queue that the tenant may not use."""
TEAM_PODS = f"/api/v1/namespaces/{TEAM}/pods"
GPU_MILLI = 1000

_numbers = count()


def name(prefix: str = "p") -> str:
    """Return a name that no other object of this session has."""
    return f"{prefix}-{next(_numbers)}"


def team_pod(**more: object) -> Object:
    """Build a pod in the tenant's namespace; the arguments are those of `pod`."""
    return pod(name(), namespace=TEAM, **more)  # type: ignore[arg-type] # free-form by design


def path_of(made: Object) -> str:
    """Return the path of a pod."""
    return f"/api/v1/namespaces/{made['metadata']['namespace']}/pods/{made['metadata']['name']}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attacked:
    """The cluster as seen by its administrator and its tenant, and Leeboard's own ports."""

    api: Api
    tenant: Api
    extender: str
    operations: str
    reading: Mapping[str, str]
    """Headers of an administrator who reads Leeboard's ports."""

    def furnish(self) -> None:
        """Create the initial objects of a test: the queues, and one node with eight GPUs."""
        for item in documents(DEFAULT_QUEUES):
            self.api.apply(item)
        for team in (TEAM, OTHER_TEAM):
            self.api.apply(queue(team, deserved=4))
        self.api.create(gpu_node(name("attacked")))
        eventually(lambda: {TEAM, OTHER_TEAM} <= self.ledger().keys(), within_s=20, what="Leeboard knows the queues")
        eventually(lambda: not any(self.ledger().values()), within_s=20, what="nobody holds anything")

    def ledger(self) -> Mapping[str, int]:
        """Return what is charged to each queue, in thousandths of a GPU."""
        answer = (
            httpx.get(f"{self.operations}/api/v1/queues", headers=self.reading, timeout=5.0).raise_for_status().json()
        )
        return {item["name"]: item["allocated"]["gpuMilli"] for item in answer["items"]}

    def known(self, made: Object) -> Object:
        """Return what Leeboard reports of a pod; nothing while it has not seen it."""
        place = f"{made['metadata']['namespace']}/{made['metadata']['name']}"
        answer = httpx.get(f"{self.operations}/api/v1/pods/{place}", headers=self.reading, timeout=5.0)
        found: Object = {} if answer.status_code == httpx.codes.NOT_FOUND else answer.raise_for_status().json()
        return found

    def reason_of(self, made: Object) -> str:
        """Wait until Leeboard gives the reason why a pod is pending; return the reason."""

        def why() -> str:
            return str((self.known(made).get("why") or {}).get("reason", ""))

        return eventually(why, within_s=20, what=f"{made['metadata']['name']} is told why it waits")

    def charge(self, charged: Mapping[str, int]) -> None:
        """Wait until the ledger shows these GPUs and no others."""
        wanted = dict.fromkeys(self.ledger(), 0) | {team: gpus * GPU_MILLI for team, gpus in charged.items()}
        eventually(self.ledger, until=lambda seen: seen == wanted, within_s=20, what=f"the ledger shows {wanted}")

    def serve(self, **more: object) -> Object:
        """Let an honest pod of the tenant be scheduled: everything before it has been processed by then."""
        honest = self.tenant.create(team_pod(queue=TEAM, **more))
        self.wait_for_node(honest)
        return honest

    def node_of(self, made: Object) -> str:
        """Return the node of a pod, or nothing."""
        return str(self.api.get(path_of(made))["spec"].get("nodeName", ""))

    def wait_for_node(self, made: Object) -> str:
        """Wait until a pod has a node; return which."""
        return eventually(lambda: self.node_of(made), within_s=30, what=f"{made['metadata']['name']} has a node")

    @contextmanager
    def nothing_taken(self) -> Iterator[None]:
        """Check that the ledger shows what it showed before, and what an honest pod got since."""
        before = self.ledger()
        yield
        self.serve()
        gpus = {team: milli // GPU_MILLI for team, milli in before.items()}
        self.charge(gpus | {TEAM: gpus[TEAM] + 1})


@contextmanager
def attacked_cluster(bed: Bed, api: Api) -> Iterator[Attacked]:
    """Run Leeboard and its kube-scheduler in the secure profile; the tenant may use the queue of their team.

    Pods are not gated: whether one gets a node is then decided at once, and an attack that works is visible.
    """
    install(api)
    settle(api)
    may_use = {"group": "scheduling.run.ai", "resource": "queues", "verbs": ["use"], "names": [TEAM]}
    allow(api, "tenant-uses-their-queue", subject(User.TENANT), **may_use)  # type: ignore[arg-type] # as named
    (operations,) = free_ports(1)
    with ExitStack() as stack:
        extender = start_leeboard(bed, operations_port=str(operations), owners_project="false")
        stack.callback(bed.stop, "leeboard")
        start_own_scheduler(bed, extender)
        stack.callback(bed.stop, "own-scheduler")
        stack.enter_context(policies_in_force(api, profile="secure", policies="off"))
        tenant = stack.enter_context(bed.api(User.TENANT))
        yield Attacked(
            api=api, tenant=tenant, extender=extender, operations=f"http://{HOST}:{operations}", reading=bed.reading()
        )
