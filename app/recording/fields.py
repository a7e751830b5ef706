"""What a recording keeps of Commands, results, questions and answers: reduced objects, and digests of long lists."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from app.model.admission import AdmissionQuestion, Operation
from app.model.names import NodeName, PodUid
from app.model.question import BindQuestion, Fits, PodQuestion
from app.model.seam import PodRef, RawObject, Resource
from app.recording.lines import line
from app.recording.name_table import CodedNames, NameTable
from app.recording.reduce import reduced, reduced_question, reduced_review, reduced_sample

PODS = Resource.PODS.value

FEW = 8
"""So many nodes of an answer are written by name; of more nodes, only a digest."""


def command_fields(verb: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:
    """Return the arguments of a Command, with reduced objects."""
    shown = [*map(_shown, arguments)]
    if verb == "create_pod":
        shown[-1] = reduced(PODS, arguments[-1])
    elif verb in {"create_object", "amend_object"}:
        shown[-1] = reduced(arguments[0], arguments[-1])
    return [*shown, dict(options)] if options else shown


def _shown(value: Any) -> Any:
    return [value.namespace, value.name, value.uid] if isinstance(value, PodRef) else value


def result_fields(verb: str, arguments: Sequence[Any], result: Any) -> Any:
    """Return the result of a Command that is not a list, with reduced objects."""
    if not isinstance(result, dict):
        return result
    if verb != "read_object":
        return reduced(PODS, result)
    # The autoscaler copies more of a pod than any decision reads.
    return reduced_sample(result) if arguments[0] == PODS else reduced(arguments[0], result)


# Questions --------------------------------------------------------------------------------------------------------


def pod_question_fields(question: PodQuestion, table: NameTable) -> list[Any]:
    """Return the question of filter or prioritize."""
    offered = table.coded(question.offered)
    return [reduced_question(question.pod), question.uid, offered.new, offered.runs, offered.starts_over]


def pod_question_of(fields: Sequence[Any], table: NameTable) -> PodQuestion:
    """Return the question of `pod_question_fields`."""
    pod, uid, new, runs, starts_over = fields
    names = table.names(CodedNames(new, runs, starts_over))
    return PodQuestion(pod=pod, uid=None if uid is None else PodUid(uid), offered=tuple(map(NodeName, names)))


def bind_question_fields(question: BindQuestion) -> list[Any]:
    """Return the question of bind."""
    return [_shown(question.pod), question.node]


def bind_question_of(fields: Sequence[Any]) -> BindQuestion:
    """Return the question of `bind_question_fields`."""
    (namespace, name, uid), node = fields
    return BindQuestion(pod=PodRef(namespace=namespace, name=name, uid=PodUid(uid)), node=NodeName(node))


def admission_question_fields(question: AdmissionQuestion) -> list[Any]:
    """Return the question of mutate or validate."""
    cut = reduced_review(question)
    named = [cut.group, cut.kind, cut.namespace, cut.name, cut.operation.value]
    return [*named, cut.object, cut.old, cut.user, cut.dry_run]


def admission_question_of(fields: Sequence[Any]) -> AdmissionQuestion:
    """Return the question of `admission_question_fields`."""
    group, kind, namespace, name, operation, new, old, user, dry_run = fields
    return AdmissionQuestion(
        group=group,
        kind=kind,
        namespace=namespace,
        name=name,
        operation=Operation(operation),
        object=new,
        old=old,
        user=user,
        dry_run=dry_run,
    )


# Answers ----------------------------------------------------------------------------------------------------------


def answer_fields(answer: Any) -> Any:
    """Return an answer with the name of its type; of a long one, a digest."""
    kind = type(answer).__name__
    long = (isinstance(answer, Fits) and len(answer.nodes) > FEW) or isinstance(answer, Mapping)
    return [kind, digest(answer)] if long else [kind, answer]


def victims_fields(pod: RawObject, candidates: Mapping[Any, Any]) -> list[Any]:
    """Return the question of preempt. Its candidates are returned as they are, or none of them."""
    return [reduced_question(pod), sorted(candidates)]


def digest(value: Any) -> str:
    """Return 16 characters that differ where values differ."""
    return blake2b(line(value), digest_size=8).hexdigest()
