"""What a recording keeps of Commands, results, questions and answers: reduced objects, and digests of long lists."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from app.model.admission import AdmissionQuestion, Operation
from app.model.names import NodeName, PodUid
from app.model.question import BindQuestion, Fits, PodQuestion
from app.model.seam import PodRef, RawObject, Resource
from app.recording.lines import line
from app.recording.reduce import reduced, reduced_question, reduced_review

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
    return reduced(arguments[0] if verb == "read_object" else PODS, result)


# Questions --------------------------------------------------------------------------------------------------------


class Offered:
    """Writes the offered nodes of questions: those of a recent question by their number."""

    MOST = 64

    def __init__(self) -> None:
        self._numbers: dict[tuple[NodeName, ...], int] = {}
        self._lists: dict[int, tuple[NodeName, ...]] = {}
        self._next = 0

    def fields(self, offered: tuple[NodeName, ...]) -> int | list[NodeName]:
        """Return the number of a known list, or the list, which becomes known."""
        number = self._numbers.get(offered)
        if number is not None:
            return number
        self._note(offered)
        return list(offered)

    def of(self, fields: int | list[NodeName]) -> tuple[NodeName, ...]:
        """Return the nodes of `fields`."""
        if isinstance(fields, int):
            return self._lists[fields]
        self._note(tuple(fields))
        return tuple(fields)

    def _note(self, offered: tuple[NodeName, ...]) -> None:
        self._numbers[offered], self._lists[self._next] = self._next, offered
        forgotten = self._lists.pop(self._next - self.MOST, None)
        if forgotten is not None:
            del self._numbers[forgotten]
        self._next += 1


def pod_question_fields(question: PodQuestion, offered: Offered) -> list[Any]:
    """Return the question of filter or prioritize."""
    return [reduced_question(question.pod), question.uid, offered.fields(question.offered)]


def pod_question_of(fields: Sequence[Any], offered: Offered) -> PodQuestion:
    """Return the question of `pod_question_fields`."""
    pod, uid, nodes = fields
    return PodQuestion(pod=pod, uid=None if uid is None else PodUid(uid), offered=offered.of(nodes))


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
