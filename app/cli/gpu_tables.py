"""Draws GPUs as text within the given width: one line per node, or the devices of one node with their pods."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from app.cli.drawing import UNKNOWN, USUAL, Look, Table, bar, folded, gib
from app.cli.link_tables import links_picture

Answer = Mapping[str, Any]
"""A node, a device or a pod of `/api/v1/gpus`."""

SHORT_UUID = 12
NOTHING = "-"
NO_AGENTS = "No agent reports any GPU; until one does, whole GPUs are counted from node labels."
READY = "ready"
HEALTHY = "Healthy"
PPM = 1_000_000


def nodes_table(answer: Answer, *, width: int, look: Look = USUAL) -> str:
    """Return one line per node."""
    incomplete = answer.get("incomplete") or ""
    if not answer["items"]:
        return (incomplete or NO_AGENTS) if look.has_headings else ""
    headings = ("NODE", ">GPUS", ">FREE", ">RESERVED", ">SHARED", ">GiB USED", "HEALTH")
    more = ("PRODUCT", "DRIVER", ">HEARD")
    lines = Table(*headings, *(more if look.is_wide else ()), has_headings=look.has_headings)
    for node in answer["items"]:
        devices, by_claim = node["devices"], [each for each in node.get("claimDevices", ()) if not each["partition"]]
        # An agent may report the same GPUs as a driver of DRA.
        free = sum(each["free"] for each in by_claim or devices)
        shared = sum(bool(each["shared"]) for each in devices)
        counts = max(len(devices), len(by_claim)), free, sum(each["devices"] for each in node["reserved"]), shared
        used = NOTHING if by_claim and not devices else _used_of_all(devices)
        cells = (node["name"], *map(str, counts), used, _condition(node))
        lines.add(*cells, *(_more(node) if look.is_wide else ()))
    note = folded([incomplete], width) if incomplete and look.has_headings else ""
    return "\n\n".join(filter(None, (lines.drawn(width), note)))


def node_picture(node: Answer, *, width: int) -> str:
    """Return the devices of a node with their pods, their problems, and the links between them."""
    lines = Table(">GPU", "DEVICE AND PODS", "", ">GiB USED", ">PROMISED", "STATE")
    for device in node["devices"]:
        _add_device(lines, device)
    for shared in node["opening"]:
        lines.add("", shared["name"], "", NOTHING, gib(shared["promisedMib"]), shared["state"])
        _add_pods(lines, shared["pods"], None)
    indices = [device["index"] for device in node["devices"]]
    parts = [
        folded([_title(node)], width),
        lines.drawn(width) if node["devices"] or node["opening"] else "",
        _by_claims(node.get("claimDevices", ())).drawn(width) if node.get("claimDevices", ()) else "",
        folded(list(_notes(node)), width),
        links_picture(indices, node["links"], width=width) if node["links"] else "",
    ]
    return "\n\n".join(filter(None, parts))


# Nodes ----------------------------------------------------------------------------------------------------------------


def _used_of_all(devices: Sequence[Answer]) -> str:
    measured = [each["memory"]["usedMib"] for each in devices if each["memory"]["usedMib"] is not None]
    total_mib = sum(each["memory"]["totalMib"] for each in devices)
    return f"{gib(sum(measured) if measured else None)} of {gib(total_mib)}"


def _condition(node: Answer) -> str:
    if not node["trusted"]:
        return f"silent for {_lately(node)}"
    if node["message"]:
        return f"{node['message']}"
    if node.get("claimDevices", ()) and not node["devices"]:
        return "by ResourceClaims"
    bad = Counter(each["health"].lower() for each in node["devices"] if each["health"] != HEALTHY)
    return ", ".join(f"{count} {word}" for word, count in sorted(bad.items())) or "healthy"


def _more(node: Answer) -> tuple[str, ...]:
    products = sorted({each["product"] or "GPU" for each in node["devices"]})
    heard = NOTHING if node["heardSecondsAgo"] is None else _lately(node)
    return ", ".join(products) or NOTHING, node["driverVersion"] or NOTHING, heard


def _lately(node: Answer) -> str:
    seconds = node["heardSecondsAgo"] or 0
    return f"{seconds} s" if seconds < 2 * 60 else f"{seconds // 60} min"


def _title(node: Answer) -> str:
    kinds = Counter((each["product"] or "GPU", each["memory"]["totalMib"]) for each in node["devices"])
    products = [f"{count} x {product} of {gib(mib)} GiB" for (product, mib), count in kinds.items()]
    models = Counter(each["model"] or each["driver"] for each in node.get("claimDevices", ()))
    products += [f"{count} x {model} for ResourceClaims" for model, count in models.items()]
    driver = [f"driver {node['driverVersion']}"] if node["driverVersion"] else []
    heard = [] if node["heardSecondsAgo"] is None else [f"heard {_lately(node)} ago"]
    return f"{node['name']}: {', '.join([*products, *driver, *heard])}"


# Devices of DRA -------------------------------------------------------------------------------------------------------


def _by_claims(devices: Sequence[Answer]) -> Table:
    lines = Table("DEVICE AND CLAIMS", "MODEL", "STATE", "PODS")
    pools = {(each["driver"], each["pool"]) for each in devices}
    for device in devices:
        name = device["name"] if len(pools) == 1 else f"{device['driver']}/{device['pool']}/{device['name']}"
        lines.add(name, device["model"] or NOTHING, _claim_state(device), "")
        for holder in device["claims"]:
            claim = f"{holder['namespace']}/{holder['name']}" if holder["name"] else "a claim in another namespace"
            lines.add(f"  {claim}", "", "", ", ".join(holder["pods"]))
    return lines


def _claim_state(device: Answer) -> str:
    if device["claims"]:
        return "held"
    if device["tainted"]:
        return "tainted"
    # Another partition of its GPU is in use, or all of the GPU.
    return "free" if device["free"] else "in part used"


# Devices --------------------------------------------------------------------------------------------------------------


def _add_device(lines: Table, device: Answer) -> None:
    memory, pods = device["memory"], [*device["pods"], *(pod for each in device["shared"] for pod in each["pods"])]
    promised = gib(memory["promisedMib"]) if pods or device["shared"] else NOTHING
    full, used = bar(memory["usedMib"], memory["totalMib"]), gib(memory["usedMib"])
    lines.add(f"{device['index']}", device["uuid"][:SHORT_UUID], full, used, promised, _state(device))
    _add_pods(lines, pods, memory["totalMib"])


def _add_pods(lines: Table, pods: Iterable[Answer], total_mib: int | None) -> None:
    for pod in pods:
        full, name = bar(pod["usedMib"], total_mib), "/".join(filter(None, (pod["namespace"], pod["name"])))
        lines.add("", f"  {name}", full, gib(pod["usedMib"]), gib(pod["promisedMib"]), _part(pod))


def _state(device: Answer) -> str:
    # The order is from "no pod may use it" to "any pod may use it".
    if device["health"] != HEALTHY:
        return f"{device['health'].lower()}"
    if device["mig"]["enabled"]:
        profiles = Counter(device["mig"]["profiles"]).items()
        return " ".join(["MIG", *(f"{count}x {profile}" for profile, count in sorted(profiles))])
    if device["shared"]:
        states = {each["state"] for each in device["shared"]} - {READY}
        return ", ".join(["shared", *sorted(states)])
    if device["pods"]:
        return "whole"
    if device["memory"]["foreignMib"] and not device["free"]:
        return "foreign"
    return "free" if device["free"] else "unknown"


def _part(pod: Answer) -> str:
    part = "whole" if pod["portionPpm"] >= PPM else f"{pod['portionPpm'] / PPM:.2f}"
    over_mib = (pod["usedMib"] or 0) - pod["promisedMib"]
    return f"{part}, {gib(over_mib)} over" if over_mib > 0 else part


def _notes(node: Answer) -> Iterator[str]:
    """Yield sentences about what the table has no room for."""
    if not node["trusted"]:
        yield f"! its agent has sent no report for {_lately(node)}: this may be out of date"
    if node["message"]:
        yield f"! {node['message']}"
    if not node["kubeletAnswers"]:
        why = f": {node['kubeletReason']}" if node["kubeletReason"] else ""
        yield f"! the kubelet does not report which pods have the devices{why}"
    for device in node["devices"]:
        index, foreign_mib = device["index"], device["memory"]["foreignMib"]
        if device["health"] != HEALTHY:
            yield f"! GPU {index} is {device['health'].lower()}: {device['healthReason'] or 'no reason given'}"
        if foreign_mib:
            yield f"! GPU {index}: {gib(foreign_mib)} GiB are used by processes outside of pods"
    if any(pod["usedMib"] is None for pod in _pods(node)):
        yield f"{UNKNOWN}: what the pod uses is not measured"
    for held in node["reserved"]:
        gpus = f"{held['devices']} GPUs" if held["devices"] > 1 else "1 GPU"
        waiting = f"{held['pods']} pods that are" if held["pods"] > 1 else "1 pod that is"
        yield f"{gpus} reserved for {waiting} not bound yet: {held['state']}"
    yield from _closed(node)
    yield from (f"! not reported: {each}" for each in node["failures"])


def _pods(node: Answer) -> Iterator[Answer]:
    for device in node["devices"]:
        yield from device["pods"]
        for shared in device["shared"]:
            yield from shared["pods"]


def _closed(node: Answer) -> Iterator[str]:
    named = [(f"GPU {one['index']}", each) for one in node["devices"] for each in one["shared"]]
    named += [(each["name"], each) for each in node["opening"]]
    for name, shared in named:
        if shared["reason"]:
            yield f"! no new pod may share {name}: {shared['reason']}"
