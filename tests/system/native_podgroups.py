"""Native PodGroups of Kubernetes 1.37: a control plane that serves them, and builders for them and their pods."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.deploy.rendering import rendered, scheduler_config
from tests.system.api import Api, Object, pod
from tests.system.bed import PLAIN_SCHEDULER, ApiServerOptions, Bed
from tests.system.controlplane import build
from tests.system.forms import Deployed, Form, deployed

GROUPS = "/apis/scheduling.k8s.io/v1beta1/podgroups"
DEFAULT_GROUPS = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"
GATES = "GenericWorkload=true,WorkloadWithJob=true,TopologyAwareWorkloadScheduling=true"
SERVED = (f"--feature-gates={GATES}", "--runtime-config=scheduling.k8s.io/v1beta1=true")
FIRST = (1, 37)
"""The first version of Kubernetes with this API."""

ARE_THERE = tuple(map(int, build.KUBERNETES_VERSION.split(".")[:2])) >= FIRST
"""Whether the API server of the test bed can serve them; it does so only if it is told to."""


@contextmanager
def serving_bed(folder: Path) -> Iterator[Bed]:
    """Run a control plane that serves native PodGroups, and whose Job controller creates them."""
    with Bed(folder, options=ApiServerOptions(flags=SERVED)) as bed:
        bed.start_control_plane()
        bed.start_controller_manager(f"--feature-gates={GATES}", "--controllers=podgroup-protection-controller")
        bed.start_kwok()
        bed.start_scheduler(PLAIN_SCHEDULER)
        yield bed


def group(name: str, *, min_count: int | None, **spec: object) -> Object:
    """Build a native PodGroup; without a minimum it is a basic one."""
    policy = {"basic": {}} if min_count is None else {"gang": {"minCount": min_count}}
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulingPolicy": policy, **spec},
    }


def members(name: str, size: int, *, queue: str, **more: object) -> list[Object]:
    """Build the pods of a native PodGroup, named `<group>-<index>`."""
    named = {"schedulingGroup": {"podGroupName": name}}
    return [pod(f"{name}-{index}", queue=queue, spec=named, **more) for index in range(size)]  # type: ignore[arg-type] # free-form by design


@contextmanager
def deployed_for_groups(bed: Bed, api: Api, form: Form) -> Iterator[Deployed]:
    """Run Leeboard as shipped for this version; only in the form `beside`, kube-scheduler schedules groups together."""
    is_on = form is Form.BESIDE
    manifests = rendered(form=form.value, kubernetes=build.KUBERNETES_VERSION)
    flags = [f"--feature-gates=GenericWorkload={str(is_on).lower()}"]
    more: dict[str, Any] = {"kube_scheduler_groups": "true"} if is_on else {}
    config = scheduler_config(manifests)
    with deployed(bed, api, form, PLAIN_SCHEDULER, scheduler_flags=flags, scheduler_config=config, **more) as running:
        yield running
