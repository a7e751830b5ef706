"""The part of the OpenAPI document about what the view answers: state, stream and version."""

from collections.abc import Mapping
from typing import Any

from app.model.live import TABLES

Schema = dict[str, Any]

COLUMNS: Mapping[str, Mapping[str, str]] = {
    "nodes": {
        "key": "The name of the node. Nodes without GPUs are left out.",
        "model": "The model of its GPUs; empty when it is unknown.",
        "gpus": "How many devices it has.",
        "freeMilli": "What of them is free for new pods, in thousandths of a GPU.",
        "domain": "Its topology domain: the levels of the first Topology by name, joined by `/`; empty without one.",
        "state": "ready, cordoned, notReady, or contested: two records claim one of its devices.",
        "agent": "ok, stale, or none: whether its agent reports.",
        "reason": "One sentence why it is not used in full; empty without one.",
        "by": "plugin or claims: how pods ask for its GPUs.",
    },
    "devices": {
        "key": "The node and a number.",
        "node": "The node.",
        "index": "The number of the device on its node.",
        "model": "The model; empty when it is unknown.",
        "memoryMib": "Its memory; null when it is unknown.",
        "usedMib": "What of it is used; null when it is not measured.",
        "health": "healthy, unhealthy, or unknown without an agent.",
        "clique": "The number of its NVLink clique, in which every pair is connected; null outside of one.",
        "profile": "Its MIG profiles; empty without MIG.",
    },
    "shares": {
        "key": "An opaque text.",
        "device": "The key of the device.",
        "milli": "How much of it the pod has, in thousandths.",
        "state": "bound, reserved, leaving, or foreign: the pod belongs to another scheduler.",
        "queue": "The queue that pays; empty without one.",
        "namespace": "The namespace of the pod; empty when the reader may not see it.",
        "pod": "The name of the pod; empty when the reader may not see it.",
        "group": "The PodGroup of the pod, or the pod where it is alone; empty when the reader may not see it.",
        "since": "Since when the pod runs; null when it does not, or when this is unknown.",
    },
    "queues": {
        "key": "The name; empty for pods whose queue does not exist.",
        "parent": "The queue above; empty at the top.",
        "displayName": "The name for people; empty without one.",
        "priority": "Queues of a higher priority go first.",
        "deservedMilli": "What it is guaranteed, in thousandths of a GPU; null for everything.",
        "fairShareMilli": "What it may have now; null when it takes no part in the division.",
        "allocatedMilli": "What pods in it and below it have.",
        "requestedMilli": "The same, and what its pods wait for.",
        "limitMilli": "What it can have at most; null without a limit.",
        "waitingGroups": "How many PodGroups wait in it and below it.",
        "waitingPods": "How many pods of them.",
    },
    "waiting": {
        "key": "An opaque text.",
        "position": "The place in line, over all queues, from 1.",
        "queue": "The queue.",
        "namespace": "The namespace; empty when the reader may not see it.",
        "name": "The name of the PodGroup, or of the pod where it is alone; empty when the reader may not see it.",
        "pods": "How many of its pods have no place.",
        "minimum": "How many pods start together.",
        "gpuMilli": "What these pods ask for together, in thousandths of a GPU.",
        "reason": "The reason code.",
        "sentence": "The reason in one sentence, without names that the reader may not see.",
        "since": "Since when it waits.",
    },
}

REFUSED = {"401": "No token, or an unknown one.", "503": "Try again later."}
FULL = {"429": "The user reads the stream often enough already."}

STREAM = (
    "An event `state` with the whole state, unless the header `Last-Event-ID` names one that is still known. Then"
    " an event `delta` for each change, at most two a second: the fields of the state that have changed, and for each"
    " changed table `set` (whole rows), `delete` (keys), and for what waits `move` (keys with positions, where nothing"
    " else has changed). The id of an event is `EPOCH-TICK`. A client that lags gets `state` again."
)


def with_view(document: Mapping[str, Any]) -> Schema:
    """Return the document of the operations listener with what the view answers."""
    paths = {
        "/api/v1/state": _get(
            "The whole cluster as tables, for the rights of the reader.", "application/json", _state()
        ),
        "/api/v1/stream": _get(STREAM, "text/event-stream", {"type": "string"}, REFUSED | FULL),
        "/version": _get("The version of Leeboard.", "application/json", _version(), {}),
    }
    return {**document, "paths": {**document["paths"], **paths}}


def _get(text: str, media_type: str, schema: Schema, refused: Mapping[str, str] = REFUSED) -> Schema:
    answered = {"description": text, "content": {media_type: {"schema": schema}}}
    return {
        "get": {
            "summary": text.partition(".")[0],
            "responses": {"200": answered, **{status: {"description": cause} for status, cause in refused.items()}},
        }
    }


def _text(description: str, *, nullable: bool = False) -> Schema:
    return {"type": ["string", "null"] if nullable else "string", "description": description}


def _object(description: str, **properties: Schema) -> Schema:
    return {"type": "object", "description": description, "properties": properties, "required": [*properties]}


def _state() -> Schema:
    milli = {"type": "integer", "description": "In thousandths of a GPU."}
    amounts = ("total", "free", "allocated", "reserved", "unhealthy", "unmanaged")
    gang = _object(
        "How many pods of one size fit now, as far as GPUs go.",
        gpus={"type": "integer", "description": "Whole GPUs of one pod."},
        pods={"type": "integer", "description": "How many such pods fit."},
    )
    return _object(
        "The state of the cluster.",
        apiVersion=_text("leeboard.dev/v1alpha1"),
        kind=_text("State"),
        epoch=_text("Another text whenever the state does not follow from the one before."),
        tick={"type": "integer", "description": "Grows by one with each change of an epoch."},
        time=_text("The clock of the server at the last frame."),
        stale={
            **_object(
                "Since when the state is old, and why; null while it is not.",
                since=_text("The time."),
                sentence=_text("Why."),
            ),
            "type": ["object", "null"],
        },
        active={"type": "boolean", "description": "Whether this replica decides."},
        plan=_object(
            "The last plan.",
            at=_text("When it was seen; null when there was none.", nullable=True),
            milliseconds={"type": ["number", "null"], "description": "How long it took to compute."},
        ),
        summary=_object(
            "Sums over all nodes.",
            gpuMilli=_object(
                "The GPUs. `unhealthy` has also what is free on nodes that take no pods, so that the parts add up.",
                **dict.fromkeys(amounts, milli),
            ),
            largestGangs={
                "type": "array",
                "items": gang,
                "description": "By size; sizes that do not fit are left out.",
            },
        ),
        leftOut={
            "type": "integer",
            "description": "How many PodGroups wait behind those that the table of what waits has.",
        },
        incomplete=_text("What is hidden, and which right shows it; null when nothing is.", nullable=True),
        tables=_object("The tables.", **{name: _table(name) for name in TABLES}),
    )


def _table(name: str) -> Schema:
    text = "; ".join(f"`{column}`: {COLUMNS[name][column]}" for column in TABLES[name])
    return _object(
        f"Rows with these columns. {text}",
        columns={"type": "array", "items": {"enum": [*TABLES[name]]}, "description": "The columns, in their order."},
        rows={
            "type": "array",
            "items": {"type": "array"},
            "description": "The rows; the first value of each is its key.",
        },
    )


def _version() -> Schema:
    return _object(
        "The version.",
        version=_text("The version of Leeboard."),
        gitCommit=_text(
            "The commit that the image was built from; null outside of an image that `make image` built.", nullable=True
        ),
        apiVersions={"type": "array", "items": {"type": "string"}, "description": "The versions of the read API."},
    )
