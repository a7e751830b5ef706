"""A cluster as stand-in operators see it at one moment, and their writes: the same for every kind."""

import copy
import hashlib
import sys
from collections.abc import Callable, Container, Iterable, Mapping

import httpx

from tests.system.api import Api, ApiError, Object
from tests.system.workloads.kinds import POD, Kind

TERMINAL = ("Succeeded", "Failed")
TOO_EARLY = (httpx.codes.CONFLICT, httpx.codes.NOT_FOUND)
"""A name in use, or an object that has changed or was deleted: the event of that change starts another round."""


class Seen:
    """The objects of one round, each kind listed when it is first read."""

    def __init__(self, api: Api, there: Container[Kind], departed: Iterable[Object] = ()) -> None:
        self._api = api
        self._there = there
        self._left_by = {_controller_of(pod) for pod in departed}
        # Filled by `all`.
        self._listed: dict[Kind, list[Object]] = {}

    def all(self, kind: Kind) -> list[Object]:
        """Return every object of a kind that is not terminating; nothing if there is none."""
        return [item for item in self._list(kind) if not is_leaving(item)]

    def owned(self, owner: Object, kind: Kind) -> list[Object]:
        """Return the objects of a kind that an object controls, including terminating ones, by name."""
        return [item for item in self._list(kind) if _controller_of(item) == owner["metadata"]["uid"]]

    def pods(self, owner: Object) -> list[Object]:
        """Return the pods of an owner that are not terminating, including ended ones."""
        return [pod for pod in self.owned(owner, POD) if not is_leaving(pod)]

    def has_lost_a_pod(self, owner: Object) -> bool:
        """Whether a pod of an owner has been deleted since the last round."""
        return owner["metadata"]["uid"] in self._left_by

    def _list(self, kind: Kind) -> list[Object]:
        if kind not in self._there:
            return []
        if kind not in self._listed:
            items = self._api.items(kind.path)
            self._listed[kind] = sorted(items, key=lambda item: str(item["metadata"]["name"]))
        return self._listed[kind]

    # -- writing

    def create(self, kind: Kind, item: Object, *, owner: Object, owner_kind: Kind) -> None:
        """Create an object that its owner controls, unless one of that name exists."""
        item["metadata"]["ownerReferences"] = [_reference(owner, owner_kind)]
        path, _, _ = kind.path_of(item).rpartition("/")
        self._write("POST", path, item)

    def delete(self, kind: Kind, item: Object) -> None:
        """Delete an object, and what it owns after it."""
        if not is_leaving(item):
            self._write("DELETE", kind.path_of(item), {"propagationPolicy": "Background"})

    def delete_whole(self, kind: Kind, item: Object) -> None:
        """Delete an object once everything that it owns is gone."""
        if not is_leaving(item):
            self._write("DELETE", kind.path_of(item), {"propagationPolicy": "Foreground"})

    def set_spec(self, kind: Kind, item: Object, **fields: object) -> None:
        """Set these fields of a spec where they differ."""
        self._set(kind.path_of(item), item, "spec", fields)

    def set_status(self, kind: Kind, item: Object, **fields: object) -> None:
        """Set these fields of a status where they differ."""
        self._set(f"{kind.path_of(item)}/status", item, "status", fields)

    def _set(self, path: str, item: Object, part: str, fields: Mapping[str, object]) -> None:
        has = item.get(part, {})
        if any(has.get(name) != value for name, value in fields.items()):
            self._unless_too_early(lambda: self._api.patch(path, {part: dict(fields)}))

    def _write(self, method: str, path: str, body: Object) -> None:
        self._unless_too_early(lambda: self._api.call(method, path, body=body))

    @staticmethod
    def _unless_too_early(write: Callable[[], object]) -> None:
        try:
            write()
        except ApiError as refused:
            if refused.status in TOO_EARLY:
                return
            if refused.status >= httpx.codes.INTERNAL_SERVER_ERROR:
                raise
            # A submitted object that cannot create its objects is an error of its author; the operators continue.
            print(f"A stand-in operator was refused: {refused}", file=sys.stderr, flush=True)


def is_leaving(item: Object) -> bool:
    """Whether an object has been deleted and is still there."""
    return "deletionTimestamp" in item["metadata"]


def phase_of(pod: Object) -> str:
    """Return the phase of a pod."""
    return str(pod["status"].get("phase", "Pending"))


def all_run(pods: Iterable[Object], number: int) -> bool:
    """Whether exactly this number of pods run."""
    return [phase_of(pod) for pod in pods] == ["Running"] * number


def is_true(item: Object, condition: str) -> bool:
    """Whether a condition of an object is true."""
    return any(one["type"] == condition and one["status"] == "True" for one in conditions_of(item))


def conditions_of(item: Object) -> list[Object]:
    """Return the conditions of an object."""
    found: list[Object] = item.get("status", {}).get("conditions") or []
    return found


def now_true(item: Object, condition: str) -> list[Object]:
    """Return the conditions of an object with one more true one, and the contradicted ones no longer true."""
    others = [{**one, "status": "False"} for one in conditions_of(item) if one["type"] != condition]
    same = [one for one in conditions_of(item) if one["type"] == condition and one["status"] == "True"]
    since = item["metadata"]["creationTimestamp"]
    fresh = {"type": condition, "status": "True", "reason": condition, "message": "", "lastTransitionTime": since}
    return [*others, *(same or [fresh])]


def pod_of(
    owner: Object,
    template: Object,
    name: str,
    *,
    labels: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
) -> Object:
    """Build a pod from a template, with labels and annotations of the operator."""
    made = POD.named(owner, name, copy.deepcopy(template["spec"]))
    own = template.get("metadata", {})
    made["metadata"]["labels"] = {**own.get("labels", {}), **labels}
    made["metadata"]["annotations"] = {**own.get("annotations", {}), **(annotations or {})}
    return made


def short_hash(text: str) -> str:
    """Return a replacement for the random end of a name: always the same for the same text."""
    return hashlib.sha256(text.encode()).hexdigest()[:5]


def _reference(owner: Object, kind: Kind) -> Object:
    metadata = owner["metadata"]
    named = {"apiVersion": kind.api_version, "kind": kind.name, "name": metadata["name"], "uid": metadata["uid"]}
    return named | {"controller": True, "blockOwnerDeletion": True}


def _controller_of(item: Object) -> str:
    owners = item["metadata"].get("ownerReferences", ())
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), "")
