"""The schedulers that are measured in any case: kube-scheduler alone, and Leeboard, as shipped, in two of its forms."""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from itertools import chain
from typing import ClassVar

import yaml

from app.cluster.admit import environment, shape
from app.cluster.admit.patch import Changes
from app.model.marks import BIND_MARKER
from app.model.names import QueueName
from loadtest import lease
from loadtest.contender import Batch, CannotError, Contender, Entitled, Planned
from loadtest.programs import command_line
from loadtest.results import Watched
from loadtest.watchers import PROGRAM, Watchers, seen_between
from tests.cluster.patched import patched
from tests.system.api import PROFILE, Api, Object, pod, pod_group, queue
from tests.system.bed import PLAIN_SCHEDULER, Bed, free_ports
from tests.system.cluster import connected, documents
from tests.system.controlplane.build import KUBERNETES_VERSION
from tests.system.forms import Deployed, Form, install_form

ALONE = "kube-scheduler alone"
SAMPLED = "kube-scheduler alone, 5 % of the nodes"
EXTENDER_ONLY = "Leeboard, extender-only"
LET_IN = "Leeboard, let in"
HELD = "Leeboard, held"
SCHEDULER = "kube-scheduler"
LEEBOARD = "leeboard"
PARENT = "all"
ADMISSION = "admissionregistration.k8s.io/"
RUNNING: Object = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def ours() -> Sequence[Contender]:
    """Return all of them."""
    return (
        KubeScheduler(),
        SampledScheduler(),
        Leeboard(EXTENDER_ONLY, Form.EXTENDER_ONLY),
        LetInLeeboard(LET_IN, Form.HELD),
        HeldLeeboard(HELD, Form.HELD),
    )


def watched(watchers: Watchers) -> Sequence[Contender]:
    """Return Leeboard in each form without watchers and with them."""
    return [
        kind(f"{name}, {each}", form, each)
        for kind, name, form in (
            (Leeboard, EXTENDER_ONLY, Form.EXTENDER_ONLY),
            (LetInLeeboard, LET_IN, Form.HELD),
            (HeldLeeboard, HELD, Form.HELD),
        )
        for each in (Watchers(), watchers)
    ]


class KubeScheduler:
    """Stock kube-scheduler, which takes the members of a gang for so many pods."""

    name = ALONE
    _more: ClassVar[Mapping[str, object]] = {}
    """Keys of its configuration that are not the default."""

    def __init__(self) -> None:
        # Of the kube-scheduler that was started last; changed by `start`.
        self._port = 0
        self._flags: Mapping[str, Sequence[str]] = {}

    def version(self) -> str:
        """Return which it is."""
        return f"kube-scheduler {KUBERNETES_VERSION}, its default profile; members of a gang are so many pods to it"

    def build(self) -> None:
        """Build nothing: it belongs to the control plane."""

    def install(self, api: Api) -> None:
        """Create nothing."""

    def work(self, batch: Batch) -> Sequence[Object]:
        """Return pods alone; it has no part of a GPU and no quotas to reclaim by."""
        if batch.fraction:
            raise CannotError("kube-scheduler alone gives out whole GPUs only.")
        if batch.on:
            raise CannotError("kube-scheduler alone has no quotas, so it evicts no pod for a gang.")
        return [pod(name, gpus=batch.gpus, scheduler="default-scheduler") for name in _names(batch)]

    def start(self, bed: Bed) -> Sequence[str]:
        """Start it, held back by the lease."""
        with bed.api() as api:
            lease.hold(api)
        self._flags = self._started(bed, yaml.safe_load(PLAIN_SCHEDULER) | self._more, "")
        return [SCHEDULER]

    def release(self, api: Api, queues: Sequence[Entitled]) -> None:  # noqa: ARG002 - it knows no queues
        """Let it begin."""
        lease.release(api)

    def attempts(self) -> float | None:
        """Return how many scheduling attempts kube-scheduler has made."""
        return lease.attempts(self._port)

    def flags(self) -> Mapping[str, Sequence[str]]:
        """Return the command line and the configuration of each of its programs."""
        return self._flags

    def _started(self, bed: Bed, config: Object, extender_url: str) -> Mapping[str, Sequence[str]]:
        (self._port,) = free_ports(1)
        # The log of the run before says already that it waits.
        (bed.folder / f"{SCHEDULER}.log").unlink(missing_ok=True)
        scheduler = bed.start_scheduler(
            yaml.safe_dump(lease.waiting_for_it(config)),
            name=SCHEDULER,
            placeholders={"EXTENDER_URL": extender_url},
            flags=lease.metrics_flags(self._port),
        )
        lease.await_wait(scheduler)
        return {SCHEDULER: [*command_line(scheduler), *_configured(config)]}


class SampledScheduler(KubeScheduler):
    """The same with the one setting of Leeboard's kube-scheduler that saves work without Leeboard, too."""

    name = SAMPLED
    _more: ClassVar[Mapping[str, object]] = {"percentageOfNodesToScore": 5}

    def version(self) -> str:
        """Return which it is."""
        return f"kube-scheduler {KUBERNETES_VERSION}, with the `percentageOfNodesToScore` of Leeboard's kube-scheduler"

    def work(self, batch: Batch) -> Sequence[Object]:
        """Return pods alone: members of a gang are no other to it."""
        if batch.gang_size > 1:
            raise CannotError("It is compared on pods alone only: members of a gang are no other to it.")
        return super().work(batch)


class Leeboard(KubeScheduler):
    """Leeboard beside a kube-scheduler, in one of the forms it is shipped in; pods are as their owners write them."""

    def __init__(self, name: str, form: Form, watchers: Watchers | None = None) -> None:
        """`watchers` look at it meanwhile."""
        super().__init__()
        self.name = name
        self._form = form
        self._watchers = watchers
        # What runs now; None before the first start.
        self._running: Deployed | None = None

    def version(self) -> str:
        """Return which it is, and in which form."""
        return (
            f"Leeboard {version('leeboard')}, form {self._form} as shipped, beside kube-scheduler {KUBERNETES_VERSION}"
        )

    def install(self, api: Api) -> None:
        """Apply what the form is shipped with; admission comes with the start, as it would have to be asked."""
        install_form(api, [item for item in self._manifests if not _is_admission(item)], admission_port=0)
        if self._watchers:
            self._watchers.install(api)

    def work(self, batch: Batch) -> Sequence[Object]:
        """Return pods, and PodGroups for gangs."""
        if batch.fraction:
            raise CannotError("Sharing GPUs needs admission, which this form of Leeboard is without.")
        return _objects(batch)

    def start(self, bed: Bed) -> Sequence[str]:
        """Start Leeboard and kube-scheduler, the one without a queue to decide for, the other without its lease."""
        webhook, operations, admission, view = free_ports(4)
        ports = {"webhook": webhook, "operations": operations, "admission": admission}
        if self._watchers:
            ports["view"] = view
        with bed.api() as api:
            self._running = Deployed(form=self._form, bed=bed, api=api, ports=ports, settings={})
            install_form(api, [item for item in self._manifests if _is_admission(item)], admission_port=admission)
            lease.hold(api)
            self._running.start_leeboard()
            self._running.wait_until_ready()
            if self._watchers:
                nodes = [item["metadata"]["name"] for item in api.items("/api/v1/nodes")]
                self._watchers.start(bed, api, ports=ports, nodes=nodes)
        config = yaml.safe_load(connected(self._form.scheduler_config.read_text()))
        self._flags = self._started(bed, config, f"http://127.0.0.1:{webhook}")
        self._flags = {**self._flags, LEEBOARD: _settings(self._running)}
        return [SCHEDULER, LEEBOARD]

    def release(self, api: Api, queues: Sequence[Entitled]) -> None:
        """Create the queues, without which Leeboard can decide nothing, and let kube-scheduler begin."""
        api.create(queue(PARENT))
        for one in queues:
            api.create(queue(one.name, parent=PARENT, deserved=one.quota_gpus))
        lease.release(api)

    def planned(self) -> Planned:
        """Return how long it has planned so far, by its own metric."""
        assert self._running is not None
        name = "leeboard_plan_duration_seconds"
        return Planned(
            plans=self._running.metric(f"{name}_count"),
            seconds=self._running.metric(f"{name}_sum"),
        )

    def watched(self, since: float, until: float) -> Watched | None:
        """Return what watchers have seen in a period; None without watchers."""
        assert self._running is not None
        return seen_between(self._running.bed.folder / f"{PROGRAM}.log", since, until) if self._watchers else None

    @property
    def _manifests(self) -> Sequence[Object]:
        return list(documents(self._form.manifests))


class LetInLeeboard(Leeboard):
    """Leeboard with admission: pods that exist before the clock starts can all run, and have no gate.

    Later pods go through admission, as with `HeldLeeboard`.
    """

    def version(self) -> str:
        """Return which it is, and in which form."""
        return f"{super().version()}; pods that are there before the clock starts are as admission makes them, gateless"

    def work(self, batch: Batch) -> Sequence[Object]:
        """Return the objects as admission makes them, without its gate."""
        if batch.fraction:
            raise CannotError("Admission of Leeboard holds every pod that shares a GPU until it is known which one.")
        if batch.gang_size > 1:
            raise CannotError("Admission of Leeboard holds every member of a new gang until the gang fits.")
        return _admitted(batch)


class HeldLeeboard(Leeboard):
    """Leeboard with admission: it holds pods until they can run.

    Those that are there before it are held as its admission would have held them; those that come later go through it.
    """

    def version(self) -> str:
        """Return which it is, and in which form."""
        return f"{super().version()}; pods that are there before the clock starts carry its scheduling gate"

    def work(self, batch: Batch) -> Sequence[Object]:
        """Return the objects as admission makes them; of pods that come later it makes nothing else."""
        return [_held(item) for item in _admitted(batch)]


def _objects(batch: Batch) -> Sequence[Object]:
    if batch.gang_size == 1:
        return [_pod(batch, index, name) for index, name in enumerate(_names(batch))]
    names, size = _names(batch), batch.gang_size
    gangs = [f"{batch.name}-{index:04}" for index in range(batch.count // size)]
    groups = [pod_group(gang, min_member=size, queue=batch.queue) for gang in gangs]
    return [*groups, *(_pod(batch, index, name, gang=gangs[index // size]) for index, name in enumerate(names))]


def _pod(batch: Batch, index: int, name: str, gang: str | None = None) -> Object:
    annotations = {"gpu-fraction": batch.fraction} if batch.fraction else {}
    made = pod(name, gpus=batch.gpus, queue=batch.queue, gang=gang, scheduler=PROFILE, annotations=annotations)
    if batch.on:
        made["spec"] |= {"nodeName": batch.on[index % len(batch.on)], "terminationGracePeriodSeconds": 0}
        made["status"] = RUNNING
    return made


def _admitted(batch: Batch) -> Sequence[Object]:
    """Return the objects as admission makes them, but without the gate.

    Pods of the bench name no class and no preemptibility and have no owners, so they are of class `train` and
    preemptible. Single pods on whole GPUs need not be bound by Leeboard, so they have no marker.
    """
    stamped = partial(shape.stamped, queue=QueueName(batch.queue))
    mark = stamped if batch.gang_size == 1 and not batch.fraction else _marked
    return [
        patched(item, chain(environment.devices(item), mark(item))) if item["kind"] == "Pod" else item
        for item in _objects(batch)
    ]


def _marked(item: Object) -> Changes:
    return shape.markers(item, {BIND_MARKER})


def _held(item: Object) -> Object:
    if item["kind"] != "Pod" or shape.is_placed(item):
        return item
    return patched(item, shape.held(item))


def _names(batch: Batch) -> Sequence[str]:
    return [f"{batch.name}-{index:05}" for index in range(batch.count)]


def _is_admission(item: Object) -> bool:
    return bool(item["apiVersion"].startswith(ADMISSION))


def _configured(config: Mapping[str, object]) -> Iterable[str]:
    """Return what a configuration says that a reader has to know, key by key; who connects where is left out."""
    left_out = {"apiVersion", "kind", "leaderElection"}
    for key, value in config.items():
        if isinstance(value, dict):
            value = {name: one for name, one in value.items() if name != "kubeconfig"}  # noqa: PLW2901 - less of it
        if key not in left_out:
            yield f"config {key}: {json.dumps(value)}"


def _settings(running: Deployed) -> Sequence[str]:
    return ["serve", f"settings of form {running.form}, the rest by default", *running.settings]
