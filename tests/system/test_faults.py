"""Failures in a control plane that must not stop pods: of a webhook, an optional kind, an event."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from app.control.informers.audit import WATCH_LAG_S
from app.kube.client import KubeCluster
from app.model.reason import Reason
from app.model.seam import Deleted, RawObject, Resource, WatchEvent
from app.service import Components
from app.settings import Settings
from app.telemetry import Metrics
from tests.system.api import DEFAULT_PODS, Api, Object, gpu_node, pod, queue
from tests.system.bed import HOST, PLAIN_SCHEDULER, Bed, free_ports
from tests.system.cluster import apply_all, documents, install
from tests.system.forms import Deployed, Form, deployed
from tests.system.identities import User
from tests.system.waiting import eventually

T = TypeVar("T")

WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TOPOLOGIES = "topologies.kai.scheduler"
SHIPPED = documents(Form.EXTENDER_ONLY.manifests)
STARTS_WITHIN_S = 30.0


# A missing kind, and a webhook


def is_of_topologies(item: Object) -> bool:
    return (item["kind"], item["metadata"]["name"]) == ("CustomResourceDefinition", TOPOLOGIES)


@pytest.fixture
def without_topologies(bed: Bed, api: Api) -> Iterator[Deployed]:
    api.delete(f"{CRDS}/{TOPOLOGIES}")
    eventually(lambda: api.find(f"{CRDS}/{TOPOLOGIES}") is None, within_s=20.0, what="the kind is gone")
    shipped = [item for item in SHIPPED if not is_of_topologies(item)]
    try:
        with deployed(bed, api, Form.EXTENDER_ONLY, PLAIN_SCHEDULER, manifests=shipped) as running:
            yield running
    finally:
        apply_all(api, [item for item in SHIPPED if is_of_topologies(item)])


@contextmanager
def failing_webhook_on_bindings(api: Api) -> Iterator[None]:
    """Let the API server call a webhook that never answers, for each binding."""
    (nobody,) = free_ports(1)
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
    webhook = {
        "name": "bindings.example.com",
        "clientConfig": {"url": f"https://{HOST}:{nobody}/"},
        "rules": [rule],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    api.call("POST", WEBHOOKS, body=kind | {"metadata": {"name": "bindings"}, "webhooks": [webhook]})
    try:
        yield
    finally:
        api.delete(f"{WEBHOOKS}/bindings")


def test_pods_start_without_topologies_and_a_failing_webhook_on_bindings_is_reported_and_survived(
    without_topologies: Deployed, api: Api
) -> None:
    api.create(queue("faults"))
    api.create(gpu_node("faults-1", gpus=2))
    api.create(pod("first", queue="faults"))
    api.wait_for_phase("Running", "first", within_s=STARTS_WITHIN_S)

    with failing_webhook_on_bindings(api):
        api.create(pod("second", queue="faults"))
        why = eventually(
            lambda: without_topologies.why("second"),
            until=lambda why: why.get("reason") == Reason.BACKING_OFF,
            within_s=STARTS_WITHIN_S,
            what="Leeboard says why the pod is not bound",
        )

    assert why["sentence"].startswith("An admission webhook failed on the binding: 500 ")
    assert 'failed calling webhook "bindings.example.com"' in why["sentence"]
    api.wait_for_phase("Running", "second", within_s=STARTS_WITHIN_S)


# A lost event


class LossyCluster(KubeCluster):
    """Loses the end of every pod."""

    lost = 0

    def watch(self, resource: Resource, keep: Callable[[RawObject], T]) -> AsyncIterator[WatchEvent[T]]:  # type: ignore[override] # nobody closes it here
        return self._lossy(resource, super().watch(resource, keep))

    async def _lossy(self, resource: Resource, events: AsyncIterator[WatchEvent[T]]) -> AsyncIterator[WatchEvent[T]]:
        async for event in events:
            if resource is Resource.PODS and isinstance(event, Deleted):
                self.lost += 1
            else:
                yield event


async def until(is_so: Callable[[], bool], *, within_s: float, what: str) -> None:
    await asyncio.to_thread(eventually, is_so, within_s=within_s, what=what)


def gone(parts: Components) -> float:
    labels = {"resource": "pods", "drift": "gone"}
    return parts.metrics.registry.get_sample_value("leeboard_audit_drift_total", labels) or 0.0


async def lose_the_end_of_a_pod(bed: Bed, api: Api) -> None:
    async with await LossyCluster.connect(str(bed.kubeconfig(User.LEEBOARD))) as cluster:
        parts = Components(Settings(audit_interval_s=1.0), cluster, Metrics())
        running = [asyncio.create_task(part.run()) for part in (*parts.informers, parts.audit)]
        try:
            async with asyncio.timeout(20):
                await parts.freshness.synced()
            await until(lambda: len(parts.feed.shown(Resource.PODS)) == 1, within_s=10, what="the pod is shown")
            await asyncio.to_thread(api.delete_now, f"{DEFAULT_PODS}/lost")
            await until(lambda: cluster.lost == 1, within_s=10, what="its end is lost")
            assert len(parts.feed.shown(Resource.PODS)) == 1

            await until(lambda: gone(parts) == 1, within_s=WATCH_LAG_S + 20, what="the audit has repaired it")
            assert not parts.feed.shown(Resource.PODS)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


def test_a_finished_pod_whose_event_was_lost_is_forgotten_after_the_audit(bed: Bed, api: Api) -> None:
    install(api)
    api.create(pod("lost", queue="nobody", scheduler="nobody"))

    asyncio.run(lose_the_end_of_a_pod(bed, api))
