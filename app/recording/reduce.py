"""Reduces what enters the core to what it reads, so that a recording holds no raw object.

The reduced object decodes to the same record, or to the same problem. No command, argument, environment value, Secret,
volume source, unknown field, unknown annotation or managed field is left. It takes time in proportion to the object,
raises nothing, and can be written as JSON.

Three things differ, and only in objects that no API server stores: a text longer than 65,536 characters is cut there; a
message that quotes the number of items of an unread list states at most 65,536; a value of the wrong type keeps its
type and not its content. `Owner.fields` lacks what grouping does not read.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial

from app.cluster.decode.demand import UNBOUNDED
from app.cluster.decode.parts import CONTAINERS
from app.cluster.encode import scaling
from app.model.admission import AdmissionQuestion
from app.model.owner import Kind
from app.model.seam import RawObject, Resource
from app.recording import container_fields, pod_fields
from app.recording.kind_fields import KINDS, METADATA, PROVISIONING_REQUEST
from app.recording.owner_fields import KINDS_BY_PLURAL, owner
from app.recording.whitelist import Cut, copied, entries, fields, items

RESOURCES = {resource.value: resource for resource in Resource}
PROVISIONING_REQUESTS = ("autoscaling.x-k8s.io", "provisioningrequests")

LEVELS = 16
"""Of the fields that are copied into a sample: affinity has ten."""

MOST_PATHS = 1024

NAMED_PATH = ("apis", "group", "version", "plural")
"""The parts of a path of a kind outside the core group, which has no group in its path."""

_SAMPLE = fields(
    {
        "metadata": fields({**pod_fields.STAMPS, "labels": entries()}),
        "spec": fields(
            {
                **dict.fromkeys(scaling.KEPT, copied(LEVELS)),
                **dict.fromkeys(CONTAINERS, items(fields(container_fields.REQUESTED), UNBOUNDED)),
            }
        ),
    }
)

_OTHER = fields({"metadata": METADATA})

_JUDGED: Mapping[tuple[str, str], Cut] = {
    ("", "Pod"): partial(pod_fields.pod, spec=pod_fields.ADMITTED),
    ("scheduling.run.ai", "Queue"): KINDS[Resource.QUEUES],
    ("scheduling.run.ai", "PodGroup"): KINDS[Resource.POD_GROUPS],
    ("kai.scheduler", "Topology"): KINDS[Resource.TOPOLOGIES],
}
"""The kinds that admission judges."""


def reduced(path: str, raw: object) -> RawObject:
    """Return what Leeboard reads of an object of the kind at an API path, such as `apis/batch/v1/jobs`.

    Of a kind that no part of Leeboard knows, only the metadata of an owner is kept.
    """
    kept: RawObject = _cut_of(path)(raw) if isinstance(raw, dict) else {}
    return kept


def reduced_sample(pod: RawObject) -> RawObject:
    """Return what is copied of a pod into the requests to a cluster autoscaler (`encode.scaling`)."""
    kept: RawObject = _SAMPLE(pod)
    return kept


def reduced_question(pod: RawObject) -> RawObject:
    """Return what the extender reads of the pod in a question, which need not exist."""
    return pod_fields.pod(pod)


def reduced_review(question: AdmissionQuestion) -> AdmissionQuestion:
    """Return the question with what admission reads of its objects, and without the name of the user."""
    cut = _JUDGED.get((question.group, question.kind), _OTHER)
    old = None if question.old is None else cut(question.old)
    return replace(question, object=cut(question.object), old=old, user="")


@lru_cache(maxsize=MOST_PATHS)
def _cut_of(path: str) -> Cut:
    if path in RESOURCES:
        return KINDS[RESOURCES[path]]
    parts = path.strip("/").split("/")
    group, version, plural = parts[1:] if len(parts) == len(NAMED_PATH) else ["", "", parts[-1]]
    if (group, plural) == PROVISIONING_REQUESTS:
        return PROVISIONING_REQUEST
    return partial(owner, Kind(group, version, KINDS_BY_PLURAL.get((group, plural), "")))
