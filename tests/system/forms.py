"""Runs Leeboard in each shipped form: the manifests, rights and scheduler configuration of the chart.

Only what a bed lacks is replaced. There is no Service network, so webhooks are called by address. There is no kubelet,
so the programs are started here and not by a Deployment.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path

import httpx

from app.model.marks import ASK_MARKER, BIND_MARKER, GATE
from tests.system import rendered
from tests.system.api import Api, ApiError, Object, collection_of, pod, queue
from tests.system.bed import HOST, Bed, free_ports
from tests.system.cluster import (
    ROOT,
    apply_all,
    connected,
    documents,
    is_kube_schedulers,
    start_leeboard,
)
from tests.system.features import HAS_MUTATING_POLICIES
from tests.system.rendered import await_policies
from tests.system.waiting import eventually

NEEDS_A_KUBELET = {"Deployment", "DaemonSet", "Pod", "PodDisruptionBudget", "NetworkPolicy"}
WITHOUT_NAME = "never-created"
DEFAULT_QUEUE = "default-queue"
AMOUNTS = {"quota": "deserved", "limit": "limit"}
"""The amounts of a queue that its owner writes, and their names in the read API."""
IN_FORCE_WITHIN_S = 30.0


class Form(Enum):
    """The forms, by the names of their manifests."""

    EXTENDER_ONLY = "extender-only"
    HELD = "own-scheduler"
    BESIDE = "beside"

    def __str__(self) -> str:
        return self.value

    @property
    def manifests(self) -> Path:
        """Return the file that users without Helm apply."""
        return ROOT / "deploy" / "kustomize" / self.value / "manifests.yaml"

    @property
    def scheduler_config(self) -> Path:
        """Return the configuration of its kube-scheduler."""
        return ROOT / "scheduler-config" / f"{self.value}.yaml"

    @property
    def has_admission(self) -> bool:
        """Whether pods are reviewed before they are stored."""
        return self is not Form.EXTENDER_ONLY


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """A running form, and its addresses."""

    form: Form
    bed: Bed
    api: Api
    ports: Mapping[str, int]
    settings: Mapping[str, str]
    scheduler_flags: Sequence[str] = ()
    scheduler_config: str = ""
    """The KubeSchedulerConfiguration, if not that of the form."""

    @property
    def operations(self) -> str:
        """Return the address of health, metrics and the read API."""
        return f"http://{HOST}:{self.ports['operations']}"

    def start_leeboard(self) -> None:
        """Start Leeboard on its own ports, with the rights of its service account."""
        names = {f"{name}_port": str(port) for name, port in self.ports.items()}
        if not self.form.has_admission:
            del names["admission_port"]
        start_leeboard(self.bed, **names, **_admission(self.form), **self.settings)

    def start_scheduler(self) -> None:
        """Start the kube-scheduler of the form; in the form `beside` it replaces the plain one of the cluster."""
        config = connected(self.scheduler_config or self.form.scheduler_config.read_text())
        url = f"http://{HOST}:{self.ports['webhook']}"
        self.bed.start_scheduler(
            config, name=self.scheduler, placeholders={"EXTENDER_URL": url}, flags=self.scheduler_flags
        )

    @property
    def scheduler(self) -> str:
        """Return the name of its kube-scheduler among the programs."""
        return "kube-scheduler" if self.form is Form.BESIDE else "own-scheduler"

    def why(self, name: str) -> Object:
        """Return why Leeboard says that a pod is pending: reason and message; nothing when it is not pending."""
        answer = httpx.get(f"{self.operations}/api/v1/pods/default/{name}", headers=self.bed.reading(), timeout=5.0)
        return {} if answer.is_error else answer.json()["why"] or {}

    def gpus(self, node: str) -> Object:
        """Return what Leeboard knows of the GPUs of a node; nothing while it has no report of the node's agent."""
        answer = httpx.get(f"{self.operations}/api/v1/gpus/{node}", headers=self.bed.reading(), timeout=5.0)
        return {} if answer.is_error else answer.json()

    def entitlement(self, queue: str) -> dict[str, int | None]:
        """Return what Leeboard knows of the quota and the limit of a queue, in thousandths of a GPU.

        None is unlimited; nothing is returned while Leeboard does not know the queue.
        """
        answer = httpx.get(f"{self.operations}/api/v1/queues", headers=self.bed.reading(), timeout=5.0)
        found = [one for one in answer.raise_for_status().json()["items"] if one["name"] == queue]
        return {kind: found[0][field]["gpuMilli"] for kind, field in AMOUNTS.items()} if found else {}

    def has_free_gpu(self, node: str) -> bool:
        """Return whether Leeboard would place a pod with a whole GPU on a node now; nothing is reserved."""
        # Leeboard answers a pod without a uid as a question only.
        question = {"Pod": pod("question", gpus=1, queue=DEFAULT_QUEUE), "NodeNames": [node], "Nodes": None}
        answer = httpx.post(f"http://{HOST}:{self.ports['webhook']}/filter", json=question, timeout=5.0).json()
        assert not answer.get("Error"), answer
        return bool(answer["NodeNames"])

    def metric(self, line: str) -> float:
        """Return the sum of the samples whose lines begin with this text."""
        lines = httpx.get(f"{self.operations}/metrics", headers=self.bed.reading(), timeout=5.0).text.splitlines()
        return sum(float(one.rpartition(" ")[2]) for one in lines if one.startswith(line))

    def wait_until_ready(self) -> None:
        """Wait until Leeboard answers from a complete cache and admission is in force."""

        def ready() -> str:
            answer = httpx.get(f"{self.operations}/readyz", params={"verbose": "", "exclude": "active"})
            return "" if answer.is_success else answer.text

        eventually(ready, until=lambda text: not text, within_s=IN_FORCE_WITHIN_S, what="Leeboard is ready")
        if self.form.has_admission:
            eventually(partial(_is_in_force, self.api), within_s=IN_FORCE_WITHIN_S, what="admission is in force")


@contextmanager
def deployed(  # noqa: PLR0913 - most tests give the first four
    bed: Bed,
    api: Api,
    form: Form,
    plain_scheduler: str,
    *,
    manifests: Iterable[Object] | None = None,
    scheduler_flags: Sequence[str] = (),
    scheduler_config: str = "",
    **settings: str,
) -> Iterator[Deployed]:
    """Install a form and run it; at the end everything that would affect pods of other tests is removed.

    `plain_scheduler` is the configuration with which the cluster's own kube-scheduler continues afterwards. `manifests`
    replace those of the form. `scheduler_flags` are added for its kube-scheduler, and `scheduler_config` replaces its
    configuration.
    """
    webhook, operations, admission = free_ports(3)
    ports = {"webhook": webhook, "operations": operations, "admission": admission}
    running = Deployed(
        form=form,
        bed=bed,
        api=api,
        ports=ports,
        settings=settings,
        scheduler_flags=scheduler_flags,
        scheduler_config=scheduler_config,
    )
    objects = install_form(api, manifests or shipped(form), admission_port=admission)
    if form is Form.BESIDE:
        bed.stop("kube-scheduler")
    try:
        running.start_leeboard()
        running.start_scheduler()
        running.wait_until_ready()
        yield running
    finally:
        uninstall_admission(api, objects)
        bed.stop(running.scheduler)
        bed.stop("leeboard")
        if form is Form.BESIDE:
            bed.start_scheduler(plain_scheduler)


def shipped(form: Form) -> Iterable[Object]:
    """Return what users of this version of Kubernetes apply: before 1.36 the rendered chart, then the kustomization."""
    return documents(form.manifests) if HAS_MUTATING_POLICIES else rendered.objects(form=form.value)


def install_form(api: Api, manifests: Iterable[Object], *, admission_port: int) -> list[Object]:
    """Apply the manifests of a form, as far as a bed can use them; return those."""
    objects = [_reached(item, admission_port) for item in manifests]
    objects = [item for item in objects if item["kind"] not in NEEDS_A_KUBELET and not is_kube_schedulers(item)]
    apply_all(api, objects)
    return objects


def uninstall_admission(api: Api, objects: list[Object]) -> None:
    """Remove what affects every pod of the cluster: policies and webhooks."""
    for item in objects:
        if item["apiVersion"].startswith("admissionregistration.k8s.io/"):
            api.delete(f"{collection_of(item)}/{item['metadata']['name']}")
    # The API server applies them for up to a second longer.
    await_policies(api)


def _admission(form: Form) -> dict[str, str]:
    if not form.has_admission:
        # As in the chart: without admission no pod that shares a GPU is gated, so no GPUs may be reserved either.
        return {"gpu_sharing": "false"}
    own = {
        "certificate_secret": "leeboard/leeboard-ca",
        "certificate_names": HOST,
        "webhook_configuration": "leeboard",
    }
    markers = [ASK_MARKER, BIND_MARKER] if form is Form.BESIDE else [BIND_MARKER]
    return own | {"markers": ",".join(markers)}


def _reached(item: Object, admission_port: int) -> Object:
    """Call webhooks by address: there is no Service network outside a cluster."""
    for webhook in item.get("webhooks", ()):
        service = webhook["clientConfig"].pop("service")
        webhook["clientConfig"]["url"] = f"https://{HOST}:{admission_port}{service['path']}"
    return item


def _is_in_force(api: Api) -> bool:
    """Whether a pod that cannot run is gated, and an empty Queue is refused, with objects that are never created."""
    held = pod(WITHOUT_NAME, queue=WITHOUT_NAME)
    stored = api.call("POST", collection_of(held), body=held, query={"dryRun": "All"})
    if {"name": GATE} not in stored["spec"].get("schedulingGates", []):
        return False
    empty = {**queue(WITHOUT_NAME), "spec": {}}
    try:
        api.call("POST", collection_of(empty), body=empty, query={"dryRun": "All"})
    except ApiError as refused:
        return "resources must be specified" in str(refused)
    return False
