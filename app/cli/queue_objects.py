"""The tree of queues as the status of the Queue objects shows it, in the form of the service's answer."""

from collections.abc import Mapping
from typing import Any

from app.cli.object_answers import API_VERSION, items_of, list_of, mapping
from app.client.api_server import QUEUES, ApiServer, Object, path_of
from app.client.reach_errors import NoSuchObjectError, NotAllowedError

MEGABYTE = 1_000_000
WEIGHT_SCALE = 1_000_000


def queue_list(cluster: ApiServer) -> Object:
    """Return the queues as their status shows them. Raise `ReachError`."""
    try:
        items = items_of(cluster.get(path_of(QUEUES)))
    except NoSuchObjectError:
        raise NoSuchObjectError("this cluster has no Queues of scheduling.run.ai; is Leeboard installed?") from None
    except NotAllowedError as error:
        raise NotAllowedError(
            f"{error}; ask for the ClusterRole leeboard-view, or see `leeboard why` of a pod"
        ) from None
    return {"apiVersion": API_VERSION, "kind": "QueueList", "items": [_queue(each) for each in items]}


def _queue(queue: Object) -> Object:
    metadata, spec, status = (mapping(queue, name) for name in ("metadata", "spec", "status"))
    resources = mapping(spec, "resources")
    invalid = [each for each in list_of(status, "conditions") if each.get("type") == "Valid"]
    problem = next((each.get("message") for each in invalid if each.get("status") == "False"), None)
    return {
        "name": str(metadata.get("name")),
        "parent": spec.get("parentQueue") or None,
        "displayName": spec.get("displayName") or None,
        "priority": spec.get("priority", 100),
        "deserved": _stated(resources, "quota", absent=0),
        "limit": _stated(resources, "limit", absent=-1),
        "overQuotaWeightMicro": {name: _weight(resources, name) for name in ("cpu", "memory", "gpu")},
        "fairShare": _amounts(mapping(status, "fairShare")) if status.get("fairShare") and not problem else None,
        "allocated": _amounts(mapping(status, "allocated")),
        "allocatedNonPreemptible": _amounts(mapping(status, "allocatedNonPreemptible")),
        "requested": _amounts(mapping(status, "requested")),
        "waitingPodGroups": None,
        "problem": problem,
    }


def _stated(resources: Object, field: str, *, absent: int) -> Object:
    """Return the amounts that the owner of a queue wrote; None is unlimited."""

    def of(name: str, unit: int) -> int | None:
        # Where there is no entry at all, the resource is neither guaranteed nor limited.
        written = mapping(resources, name).get(field, absent) if name in resources else -1
        return None if not isinstance(written, int | float) or written < 0 else round(written * unit)

    return {"cpuMilli": of("cpu", 1), "memoryBytes": of("memory", MEGABYTE), "gpuMilli": of("gpu", 1000)}


def _weight(resources: Object, name: str) -> int:
    weight = mapping(resources, name).get("overQuotaWeight")
    return round(weight * WEIGHT_SCALE) if isinstance(weight, int | float) else 0


def _amounts(stated: Mapping[str, Any]) -> Object:
    """Return the amounts of a status as Leeboard writes them."""
    return {
        "cpuMilli": _milli(stated.get("cpu")),
        "memoryBytes": None if (amount := _milli(stated.get("memory"))) is None else amount // 1000,
        "gpuMilli": _milli(stated.get("nvidia.com/gpu")),
    }


def _milli(amount: object) -> int | None:
    text = str(amount)
    digits, unit = (text[:-1], 1) if text.endswith("m") else (text, 1000)
    return int(digits) * unit if digits.isascii() and digits.isdigit() else None
