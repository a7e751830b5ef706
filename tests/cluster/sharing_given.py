"""Builders: a node `a` of GPUs of 1,000 MiB, reservation pods, GPU shares, and reports of an agent."""

from collections.abc import Iterable
from dataclasses import replace

from app.cluster.gpus.judgement import node_gpus
from app.cluster.gpus.shared_gpus import NodeGpus, Part, SharedGpu, Sources
from app.cluster.gpus.upkeep import Circumstances, Need, needs
from app.model.device import Device, DeviceUuid, GpuNode, Holder
from app.model.names import NodeName, PodUid
from app.model.pod import Pod
from app.model.snapshot import PART
from tests import given

A = NodeName("a")
MIB = 1000
WHOLE = MIB * PART
RESERVATIONS = "kai-resource-reservation"


def device(uuid: str, *holders: Pod, **more: object) -> Device:
    """Build a healthy GPU that these pods hold, according to the kubelet."""
    held = tuple(Holder(pod.namespace, pod.name, pod.uid) for pod in holders)
    fields = {"memory_mib": MIB, "holders": held, **more}
    return Device(uuid=DeviceUuid(uuid), **fields)  # type: ignore[arg-type] # free-form by design


def reservation(name: str = "r", group: str = "g", **more: object) -> Pod:
    """Build a reservation pod on node `a`."""
    fields = {"gpus": 0, "queue": "", "node": A, "managed": False, "reserves": group, **more}
    return replace(given.pod(name, **fields), namespace=RESERVATIONS)  # type: ignore[arg-type] # free-form


def part(name: str, *names: str, uuids: Iterable[str] = (), mib: int = 500, **more: object) -> Part:
    """Build half a GPU of each of these names, `g` when there are none; bound if UUIDs are given."""
    fields = {"is_bound": bool(uuids), **more}
    return Part(
        pod=PodUid(f"uid-{name}"),
        node=A,
        names=names or ("g",),
        uuids=tuple(uuids),
        parts=mib * PART,
        memory_mib=mib,
        **fields,  # type: ignore[arg-type] # free-form by design
    )


def report(*devices: Device, **more: object) -> GpuNode:
    """Build the report of an agent whose kubelet answers."""
    return GpuNode(name=A, devices=devices, **{"kubelet_answers": True, **more})  # type: ignore[arg-type] # free-form


def sources(*of: Part | Pod, agent: GpuNode | None = None, offered: int = 2, **more: object) -> Sources:
    """Collect the facts about node `a`."""
    return Sources(
        agent=agent,
        memory_mib=MIB,
        offered=offered,
        parts=[each for each in of if isinstance(each, Part)],
        reservations=[each for each in of if isinstance(each, Pod)],
        **more,  # type: ignore[arg-type] # free-form by design
    )


def node(*of: Part | Pod, agent: GpuNode | None = None, **more: object) -> NodeGpus:
    """Compute the state of the GPUs of node `a`."""
    return node_gpus(sources(*of, agent=agent, **more))  # type: ignore[arg-type] # free-form by design


def gpu(*of: Part | Pod, agent: GpuNode | None = None, **more: object) -> SharedGpu:
    """Compute the state of the one shared GPU of node `a`."""
    (found,) = node(*of, agent=agent, **more).shared
    return found


def needed(
    *of: Part | Pod, agent: GpuNode | None = None, is_wanted: bool = False, is_over: bool = False, group: str = "g"
) -> list[Need]:
    """Compute what GPU `g` of node `a` needs."""
    known = sources(*of, agent=agent)
    (found,) = (each for each in node_gpus(known).shared if each.name == group)
    at = Circumstances(node=A, agent=agent, parts=known.parts, is_wanted=is_wanted, is_over=is_over)
    return list(needs(found, at))
