"""Converts extender v1 JSON to questions and answers to JSON (k8s.io/kube-scheduler/extender/v1).

The extender decides what to answer. kube-scheduler sends exact Go field names; people with curl may write them in lower
case. Unreadable input comes back as `Failed`, whose text says what is expected.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_never

import orjson

from app.model.names import NodeName, PodUid
from app.model.question import BindQuestion, Failed, FilterAnswer, Fits, PodQuestion, Refused, Scores
from app.model.reason import phrase
from app.model.seam import PodRef, RawObject
from app.telemetry import Verb
from app.web.body import too_many_values

Victims = Mapping[NodeName, RawObject]
"""Pods to preempt by node, each `{"Pods": [{"UID": ...}], "NumPDBViolations": n}`, for both input forms."""

CACHE_NODES = "set nodeCacheCapable: true in this extender's entry: Leeboard takes node names, not Node objects"
NAMES = ("name", "namespace", "uid")
_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptQuestion:
    """The question of preempt: lower-priority pods, by node, that would have to leave for this pod."""

    pod: RawObject
    candidates: Victims


class _UnreadableError(Exception):
    """Says what input is expected. It never leaves this module."""


def read_pod_question(body: bytes) -> PodQuestion | Failed:
    """Read the arguments of filter and prioritize."""
    try:
        arguments = _arguments(body)
        pod = _pod(arguments)
        return PodQuestion(pod=pod, uid=_uid(pod), offered=_offered(arguments))
    except _UnreadableError as error:
        return Failed(str(error))


def read_preempt_question(body: bytes) -> PreemptQuestion | Failed:
    """Read the arguments of preempt, with full victims or with their uids only."""
    try:
        arguments = _arguments(body)
        return PreemptQuestion(pod=_pod(arguments), candidates=_candidates(arguments))
    except _UnreadableError as error:
        return Failed(str(error))


def read_bind_question(body: bytes) -> BindQuestion | Failed:
    """Read the arguments of bind."""
    try:
        arguments = _arguments(body)
        pod = PodRef(
            namespace=_object_name(arguments, "PodNamespace"),
            name=_object_name(arguments, "PodName"),
            uid=PodUid(_text(arguments, "PodUID")),
        )
        return BindQuestion(pod=pod, node=NodeName(_object_name(arguments, "Node")))
    except _UnreadableError as error:
        return Failed(str(error))


def write_filter(answer: FilterAnswer, offered: tuple[NodeName, ...]) -> bytes:
    """Write the reply of filter.

    It has no `FailedNodes` entry: kube-scheduler would try preemption for it, in a loop (facts/extender.md A4).
    """
    match answer:
        case Fits(nodes):
            return _filter_reply(names=nodes)
        case Refused(reason):
            return _filter_reply(unresolvable=dict.fromkeys(offered, phrase(reason)))
        case Failed(error):
            return _filter_reply(error=error)
        case _:
            assert_never(answer)


def write_scores(scores: Scores, offered: tuple[NodeName, ...]) -> bytes:
    """Write the reply of prioritize: every offered node once, with 0 for a node without a score."""
    return orjson.dumps([{"Host": name, "Score": scores.get(name, 0)} for name in offered])


def write_victims(victims: Victims) -> bytes:
    """Write the reply of preempt. No node means that preemption does not help."""
    return orjson.dumps({"NodeNameToMetaVictims": victims})


def write_bind(error: str) -> bytes:
    """Write the reply of bind. An empty error means bound."""
    return orjson.dumps({"Error": error})


def write_error(verb: Verb, error: str) -> bytes:
    """Write the verb's form of an error; prioritize and preempt have no field for a text."""
    match verb:
        case Verb.FILTER:
            return _filter_reply(error=error)
        case Verb.PRIORITIZE:
            return b"[]"
        case Verb.PREEMPT:
            return write_victims({})
        case Verb.BIND:
            return write_bind(error)
        case _:
            assert_never(verb)


def _filter_reply(
    *, names: tuple[NodeName, ...] = (), unresolvable: Mapping[NodeName, str] | None = None, error: str = ""
) -> bytes:
    return orjson.dumps(
        {
            "NodeNames": names,
            "Nodes": None,
            "FailedNodes": {},
            "FailedAndUnresolvableNodes": unresolvable or {},
            "Error": error,
        }
    )


def _arguments(body: bytes) -> RawObject:
    if found := too_many_values(body):
        raise _UnreadableError(f"the arguments have {found}")
    try:
        arguments = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _UnreadableError(f"the body is not JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise _UnreadableError("the body must be one JSON object: the arguments of an extender call")
    return arguments


def _field(arguments: RawObject, name: str) -> Any:
    if name in arguments:
        return arguments[name]
    return next((value for key, value in arguments.items() if key.lower() == name.lower()), None)


def _text(arguments: RawObject, name: str) -> str:
    value = _field(arguments, name)
    if not isinstance(value, str) or not value:
        raise _UnreadableError(f"{name} must be a non-empty string")
    return value


def _object_name(arguments: RawObject, name: str) -> str:
    # These values become parts of an API path. A value such as "../secrets/x" must be refused here.
    value = _text(arguments, name)
    if not _OBJECT_NAME.fullmatch(value):
        raise _UnreadableError(f"{name} must be the name of a Kubernetes object (lower-case letters, digits, '-', '.')")
    return value


def _pod(arguments: RawObject) -> RawObject:
    pod = _field(arguments, "Pod")
    if not isinstance(pod, dict):
        raise _UnreadableError("Pod must be an object: the pod to be scheduled")
    metadata = pod.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise _UnreadableError("Pod.metadata must be an object")
    for key in NAMES:
        value = None if metadata is None else metadata.get(key)
        if value is not None and not isinstance(value, str):
            raise _UnreadableError(f"Pod.metadata.{key} must be a string, or absent for a what-if")
    return pod


def _uid(pod: RawObject) -> PodUid | None:
    uid = (pod.get("metadata") or {}).get("uid")
    return PodUid(uid) if uid else None


def _offered(arguments: RawObject) -> tuple[NodeName, ...]:
    names = _field(arguments, "NodeNames")
    if names is None and _field(arguments, "Nodes") is not None:
        raise _UnreadableError(CACHE_NODES)
    if not isinstance(names, list) or not _are_strings(names):
        raise _UnreadableError("NodeNames must be a list of strings: the names of the nodes to choose from")
    return tuple(names)


def _are_strings(names: list[Any]) -> bool:
    # Only strings can be joined. For 5,000 names, a join takes a fifth of the time of a type check.
    try:
        "".join(names)
    except TypeError:
        return False
    return True


def _candidates(arguments: RawObject) -> Victims:
    by_node = _field(arguments, "NodeNameToMetaVictims")
    if by_node is None:
        by_node = _field(arguments, "NodeNameToVictims")
    if not isinstance(by_node, dict):
        raise _UnreadableError("NodeNameToMetaVictims must be an object: victims by node name")
    return {NodeName(node): _meta_victims(victims) for node, victims in by_node.items()}


def _meta_victims(victims: object) -> RawObject:
    if not isinstance(victims, dict):
        raise _UnreadableError("each node's victims must be an object with Pods and NumPDBViolations")
    violations = _field(victims, "NumPDBViolations") or 0
    if type(violations) is not int:  # isinstance accepts a bool as an int; Go does not
        raise _UnreadableError("NumPDBViolations must be an integer")
    pods = _field(victims, "Pods") or []
    if not isinstance(pods, list):
        raise _UnreadableError("a node's Pods must be a list of victims")
    return {"Pods": [{"UID": _victim_uid(pod)} for pod in pods], "NumPDBViolations": violations}


def _victim_uid(victim: object) -> str:
    if isinstance(victim, dict):
        full = victim.get("metadata")
        uid = full.get("uid") if isinstance(full, dict) else _field(victim, "UID")
        if isinstance(uid, str) and uid:
            return uid
    raise _UnreadableError("each victim must carry its UID")
