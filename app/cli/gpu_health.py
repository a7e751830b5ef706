"""Checks GPUs: which nodes have some, what their agents report, and whether GPUs can be shared."""

import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from app.cli.admission_health import Wanted
from app.cli.drawing import few
from app.cli.findings import TELL_THE_FORM, Finding, broken, ok, warning
from app.kube.reviews import KubeReviews
from app.model.device import Health
from app.model.seam import ForbiddenError, RawObject, Resource
from app.model.sentence import counted
from app.settings import Settings

GPU = "nvidia.com/gpu"
REPLICAS_LABEL = "nvidia.com/gpu.replicas"
NAMESPACES = "api/v1/namespaces"
RUNTIME_CLASSES = "apis/node.k8s.io/v1/runtimeclasses"
AGENTS_PODS = "their pods: kubectl get pods -A -l app.kubernetes.io/name=leeboard-agent -o wide"
NO_AGENTS = (
    f"look at {AGENTS_PODS}; where there are none, is agent.enabled true, and do the nodes have a label that the agent"
    " selects (else agent.allNodes=true)? If you share no GPUs, set gpuSharing.enabled=false"
)
WELL = Health.HEALTHY.value
APPLY = "apply the manifests shipped with Leeboard, or set LEEBOARD_GPU_SHARING to false"
MINUTE_S = 60.0
SICK_SHOWN = 3


async def gpus(reviews: KubeReviews, settings: Settings, wanted: Wanted) -> AsyncIterator[Finding]:
    """Check which nodes have GPUs, and what their agents report."""
    found = [node for node in await reviews.objects(Resource.NODES.value) if _has_gpus(node)]
    names = {_name(node) for node in found}
    if not names:
        yield warning("gpus", f"no node offers {GPU}", "install the device plugin on the GPU nodes")
        return
    reports = (each for each in await reviews.objects(Resource.GPU_NODES.value) if _status(each))
    told = {_name(each): each for each in reports if _name(each) in names}
    shares = settings.gpu_sharing and wanted is not Wanted.NO
    if told:
        yield _counted(names, told)
    else:
        message = (
            f"{_nodes_have(len(names))} GPUs; no agents: whole GPUs are counted from node labels, none can be shared"
        )
        yield warning("gpus", message, NO_AGENTS) if shares else ok("gpus", message)
    for finding in _of_agents(told, settings.agent_ttl_s):
        yield finding
    replicated = [_name(node) for node in found if _is_replicated(node)]
    if replicated and settings.gpu_sharing:
        message = f"the device plugin offers each GPU several times (label {REPLICAS_LABEL} above 1)"
        fix = "request nvidia.com/gpu there, or turn off time-slicing or MPS in the device plugin"
        yield warning("gpu-replicas", f"{message}, so no pod gets a part of one there: {few(replicated)}", fix)


async def sharing(reviews: KubeReviews, settings: Settings, wanted: Wanted) -> AsyncIterator[Finding]:
    """Check whether the objects for sharing GPUs exist. Without admission GPUs are not shared."""
    if not settings.gpu_sharing or wanted is Wanted.NO:
        return
    absent = [each async for each in _absent(reviews, settings)]
    if absent:
        message = f"there is no {' and no '.join(absent)}, so pods that request a part of a GPU wait"
        is_sure = wanted is Wanted.YES
        yield broken("gpu-sharing", message, APPLY) if is_sure else warning("gpu-sharing", message, TELL_THE_FORM)


async def runtime(reviews: KubeReviews, settings: Settings, wanted: Wanted) -> AsyncIterator[Finding]:
    """Check whether the RuntimeClass that admission sets on GPU pods exists. Without it these pods are refused."""
    name = settings.gpu_runtime_class
    if not name or wanted is Wanted.NO or await _may_be_there(reviews, f"{RUNTIME_CLASSES}/{name}"):
        return
    message = f"there is no RuntimeClass {name}, so no managed pod that requests GPUs can be created"
    fix = "create it (the GPU operator's is called nvidia), or set admission.gpuRuntimeClass to one that is there"
    yield broken("gpu-runtime", message, f"{fix}, or to nothing")


async def _absent(reviews: KubeReviews, settings: Settings) -> AsyncIterator[str]:
    if not await _may_be_there(reviews, f"{NAMESPACES}/{settings.reservation_namespace}"):
        yield f"namespace {settings.reservation_namespace}"
    classes = {_name(each) for each in await reviews.objects(Resource.PRIORITY_CLASSES.value)}
    if settings.reservation_priority_class not in classes:
        yield f"PriorityClass {settings.reservation_priority_class}"


async def _may_be_there(reviews: KubeReviews, path: str) -> bool:
    """Return whether an object exists, or may not be read: an administrator may read it, the own account may not."""
    try:
        return await reviews.find(path) is not None
    except ForbiddenError:
        return True


def _counted(names: Collection[str], told: Collection[str]) -> Finding:
    silent = set(names) - set(told)
    if not silent:
        return ok("gpus", f"{_nodes_have(len(names))} GPUs, and agents report all of them")
    message = f"no agent has reported {len(silent)} of {counted(len(names), 'GPU node')}: {few(silent)}"
    fix = f"look at {AGENTS_PODS}; agent.allNodes also puts an agent on nodes without labels"
    return warning("gpus", f"{message}; whole GPUs work there, and none can be shared", fix)


def _nodes_have(count: int) -> str:
    return "1 node has" if count == 1 else f"{count} nodes have"


def _of_agents(told: Mapping[str, RawObject], ttl_s: float) -> Iterator[Finding]:
    stale = {name for name, each in told.items() if _age_s(each) > ttl_s}
    if stale:
        message = f"agents have been silent for more than {ttl_s / MINUTE_S:g} min, so no further GPU is shared"
        yield warning("gpu-agents", f"{message} on: {few(stale)}", f"look at {AGENTS_PODS}")
    fresh = {name: each for name, each in told.items() if name not in stale}
    for said, names in _alike({name: str(_status(each).get("message") or "") for name, each in fresh.items()}):
        fix = "is the driver installed, and is agent.runtimeClassName right?"
        yield warning("gpu-driver", f"{few(names)}: {said}", fix)
    for said, names in _alike({name: _kubelets_silence(each) for name, each in fresh.items()}):
        message = f"the kubelet does not report which pods have which GPUs, so none can be shared on {few(names)}"
        yield warning("gpu-kubelet", f"{message}: {said}", "is agent.kubeletFolder the folder of the kubelet there?")
    if sick := [text for name, each in fresh.items() for text in _sick(name, each)]:
        fix = "leeboard gpus NODE shows the pods; once they end, reboot the node, or remove the agent and reset the GPU"
        takes = "takes" if len(sick) == 1 else "take"
        message = f"{counted(len(sick), 'GPU')} {takes} no new work: {few(sick, SICK_SHOWN)}"
        yield warning("gpu-health", message, fix)


def _sick(name: str, raw: RawObject) -> Iterator[str]:
    """Yield each unhealthy device of a node with its reason; none when another finding covers the whole node."""
    devices = () if _status(raw).get("message") else _status(raw).get("devices") or ()
    for each in devices:
        health = each.get("health") or WELL
        if health != WELL:
            yield f"{name} {each.get('uuid')} {health} ({each.get('healthReason') or 'no reason given'})"


def _alike(said: Mapping[str, str]) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield each distinct text, and its nodes."""
    for text in sorted(set(said.values()) - {""}):
        yield text, [name for name, each in said.items() if each == text]


def _kubelets_silence(raw: RawObject) -> str:
    kubelet = _status(raw).get("kubelet")
    if not isinstance(kubelet, dict) or kubelet.get("answers") is True:
        return ""
    return str(kubelet.get("reason") or "no reason given")


def _age_s(raw: RawObject) -> float:
    """Return the age of the last report in seconds; infinite when it is unreadable."""
    try:
        return time.time() - datetime.fromisoformat(_status(raw)["observedAt"]).timestamp()
    except (KeyError, TypeError, ValueError):
        return float("inf")


def _status(raw: RawObject) -> dict[str, Any]:
    status = raw.get("status")
    return status if isinstance(status, dict) else {}


def _has_gpus(node: RawObject) -> bool:
    # Unhealthy GPUs are only part of the capacity.
    status = node.get("status", {})
    return any(str(status.get(of, {}).get(GPU, "0")) != "0" for of in ("allocatable", "capacity"))


def _is_replicated(node: RawObject) -> bool:
    # The same rule as in `cluster.decode`.
    return str(node.get("metadata", {}).get("labels", {}).get(REPLICAS_LABEL, "")) not in {"", "0", "1"}


def _name(item: RawObject) -> str:
    return str(item.get("metadata", {}).get("name"))
