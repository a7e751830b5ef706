"""Draws GPUs as text within the given width: one line per node, or the devices of one node with their pods."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from rich.table import Table

from app.cli.drawing import UNKNOWN, bar, drawn, folded, gib, row, table
from app.cli.link_tables import links_picture
from app.model.device import Health
from app.model.pod import PPM
from app.web.gpu_answers import DeviceAnswer, GpuNodeAnswer, GpuNodeDetail, GpuNodeList, OccupantAnswer, SharedAnswer

SHORT_UUID = 12
NOTHING = "-"
NO_AGENTS = "No agent reports any GPU; until one does, whole GPUs are counted from node labels."
READY = "ready"


def nodes_table(answer: GpuNodeList, *, width: int) -> str:
    """Return one line per node."""
    if not answer.items:
        return answer.incomplete or NO_AGENTS
    lines = table("NODE", ">GPUS", ">FREE", ">RESERVED", ">SHARED", ">GiB USED", "HEALTH")
    for node in answer.items:
        devices = node.devices
        free, shared = sum(each.free for each in devices), sum(bool(each.shared) for each in devices)
        counts = len(devices), free, sum(each.devices for each in node.reserved), shared
        row(lines, node.name, *map(str, counts), _used_of_all(devices), _condition(node))
    note = folded([answer.incomplete], width) if answer.incomplete else ""
    return "\n\n".join(filter(None, (drawn(lines, width), note)))


def node_picture(node: GpuNodeDetail, *, width: int) -> str:
    """Return the devices of a node with their pods, their problems, and the links between them."""
    lines = table(">GPU", "DEVICE AND PODS", "", ">GiB USED", ">PROMISED", "STATE")
    for device in node.devices:
        _add_device(lines, device)
    for shared in node.opening:
        row(lines, "", shared.name, "", NOTHING, gib(shared.promised_mib), shared.state)
        _add_pods(lines, shared.pods, None)
    indices = [device.index for device in node.devices]
    parts = [
        folded([_title(node)], width),
        drawn(lines, width) if node.devices or node.opening else "",
        folded(list(_notes(node)), width),
        links_picture(indices, node.links, width=width) if node.links else "",
    ]
    return "\n\n".join(filter(None, parts))


# Nodes ----------------------------------------------------------------------------------------------------------------


def _used_of_all(devices: Sequence[DeviceAnswer]) -> str:
    measured = [each.memory.used_mib for each in devices if each.memory.used_mib is not None]
    total_mib = sum(each.memory.total_mib for each in devices)
    return f"{gib(sum(measured) if measured else None)} of {gib(total_mib)}"


def _condition(node: GpuNodeAnswer) -> str:
    if not node.trusted:
        return f"silent for {_lately(node)}"
    if node.message:
        return node.message
    bad = Counter(each.health.value.lower() for each in node.devices if each.health is not Health.HEALTHY)
    return ", ".join(f"{count} {word}" for word, count in sorted(bad.items())) or "healthy"


def _lately(node: GpuNodeAnswer) -> str:
    seconds = node.heard_seconds_ago or 0
    return f"{seconds} s" if seconds < 2 * 60 else f"{seconds // 60} min"


def _title(node: GpuNodeDetail) -> str:
    kinds = Counter((each.product or "GPU", each.memory.total_mib) for each in node.devices)
    products = (f"{count} x {product} of {gib(mib)} GiB" for (product, mib), count in kinds.items())
    driver = [f"driver {node.driver_version}"] if node.driver_version else []
    heard = [] if node.heard_seconds_ago is None else [f"heard {_lately(node)} ago"]
    return f"{node.name}: {', '.join([*products, *driver, *heard])}"


# Devices --------------------------------------------------------------------------------------------------------------


def _add_device(lines: Table, device: DeviceAnswer) -> None:
    memory, pods = device.memory, [*device.pods, *(pod for each in device.shared for pod in each.pods)]
    promised = gib(memory.promised_mib) if pods or device.shared else NOTHING
    full, used = bar(memory.used_mib, memory.total_mib), gib(memory.used_mib)
    row(lines, f"{device.index}", device.uuid[:SHORT_UUID], full, used, promised, _state(device))
    _add_pods(lines, pods, memory.total_mib)


def _add_pods(lines: Table, pods: Iterable[OccupantAnswer], total_mib: int | None) -> None:
    for pod in pods:
        full, name = bar(pod.used_mib, total_mib), "/".join(filter(None, (pod.namespace, pod.name)))
        row(lines, "", f"  {name}", full, gib(pod.used_mib), gib(pod.promised_mib), _part(pod))


def _state(device: DeviceAnswer) -> str:
    # The order is from "no pod may use it" to "any pod may use it".
    if device.health is not Health.HEALTHY:
        return device.health.value.lower()
    if device.mig.enabled:
        profiles = Counter(device.mig.profiles).items()
        return " ".join(["MIG", *(f"{count}x {profile}" for profile, count in sorted(profiles))])
    if device.shared:
        states = {each.state for each in device.shared} - {READY}
        return ", ".join(["shared", *sorted(states)])
    if device.pods:
        return "whole"
    if device.memory.foreign_mib and not device.free:
        return "foreign"
    return "free" if device.free else "unknown"


def _part(pod: OccupantAnswer) -> str:
    part = "whole" if pod.portion_ppm >= PPM else f"{pod.portion_ppm / PPM:.2f}"
    over_mib = (pod.used_mib or 0) - pod.promised_mib
    return f"{part}, {gib(over_mib)} over" if over_mib > 0 else part


def _notes(node: GpuNodeDetail) -> Iterator[str]:
    """Yield sentences about what the table has no room for."""
    if not node.trusted:
        yield f"! its agent has sent no report for {_lately(node)}: this may be out of date"
    if node.message:
        yield f"! {node.message}"
    if not node.kubelet_answers:
        why = f": {node.kubelet_reason}" if node.kubelet_reason else ""
        yield f"! the kubelet does not report which pods have the devices{why}"
    for device in node.devices:
        if device.health is not Health.HEALTHY:
            yield f"! GPU {device.index} is {device.health.value.lower()}: {device.health_reason or 'no reason given'}"
        if device.memory.foreign_mib:
            yield f"! GPU {device.index}: {gib(device.memory.foreign_mib)} GiB are used by processes outside of pods"
    pods = [
        pod for one in node.devices for pod in (*one.pods, *(each for shared in one.shared for each in shared.pods))
    ]
    if any(pod.used_mib is None for pod in pods):
        yield f"{UNKNOWN}: what the pod uses is not measured"
    for held in node.reserved:
        gpus = f"{held.devices} GPUs" if held.devices > 1 else "1 GPU"
        waiting = f"{held.pods} pods that are" if held.pods > 1 else "1 pod that is"
        yield f"{gpus} reserved for {waiting} not bound yet: {held.state}"
    yield from _closed(node)
    yield from (f"! not reported: {each}" for each in node.failures)


def _closed(node: GpuNodeDetail) -> Iterator[str]:
    named: list[tuple[str, SharedAnswer]] = [(f"GPU {one.index}", each) for one in node.devices for each in one.shared]
    named += [(each.name, each) for each in node.opening]
    for name, shared in named:
        if shared.reason:
            yield f"! no new pod may share {name}: {shared.reason}"
