"""The two admission webhooks over a real socket."""

from base64 import b64decode
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from app.model.admission import AdmissionAnswer, AdmissionQuestion, Admitted, Denied, Operation, Undecided
from app.telemetry import Metrics, Review, ReviewOutcome
from app.web import admission
from tests.web.served import HttpReply, Served, post, serving

POD = {"metadata": {"name": "p"}, "spec": {}}
REQUEST: dict[str, Any] = {
    "uid": "705ab4f5",
    "kind": {"group": "", "version": "v1", "kind": "Pod"},
    "resource": {"group": "", "version": "v1", "resource": "pods"},
    "namespace": "team",
    "name": "p",
    "operation": "CREATE",
    "userInfo": {"username": "ada", "groups": ["system:authenticated"]},
    "object": POD,
    "oldObject": None,
    "dryRun": False,
    "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
}
ADDED = {"op": "add", "path": "/spec/schedulingGates", "value": [{"name": "leeboard.dev/held"}]}


@dataclass
class FakeAdmission:
    """Gives the answers of the test, and records its calls."""

    answer: AdmissionAnswer = field(default_factory=Admitted)
    breaks_with: Exception | None = None
    asked: list[tuple[str, AdmissionQuestion]] = field(default_factory=list)

    def mutate(self, question: AdmissionQuestion) -> AdmissionAnswer:
        return self._note("mutate", question)

    def validate(self, question: AdmissionQuestion) -> AdmissionAnswer:
        return self._note("validate", question)

    def _note(self, verb: str, question: AdmissionQuestion) -> AdmissionAnswer:
        self.asked.append((verb, question))
        if self.breaks_with is not None:
            raise self.breaks_with
        return self.answer


@pytest.fixture
def fake() -> FakeAdmission:
    return FakeAdmission()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
async def served(fake: FakeAdmission, metrics: Metrics) -> AsyncIterator[Served]:
    async with serving(admission.application(fake, metrics), admission.CONNECTIONS) as one:
        yield one


def review(**request: object) -> bytes:
    said = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": REQUEST | request}
    return orjson.dumps(said)


def response(reply: HttpReply) -> Any:
    """Return the response inside the review, which must be complete."""
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    said: Any = reply.json
    assert (said.pop("apiVersion"), said.pop("kind")) == ("admission.k8s.io/v1", "AdmissionReview")
    answer = said.pop("response")
    assert said == {}
    assert answer.pop("uid") == REQUEST["uid"]
    return answer


def counted(metrics: Metrics, verb: Review, outcome: ReviewOutcome) -> float | None:
    labels = {"verb": verb.value, "outcome": outcome.value}
    return metrics.registry.get_sample_value("leeboard_admission_reviews_total", labels)


@pytest.mark.parametrize("verb", Review)
async def test_each_verb_calls_its_own_method(served: Served, fake: FakeAdmission, verb: Review) -> None:
    assert response(await served.ask(post(f"/{verb}?timeout=5s", review(dryRun=True)))) == {"allowed": True}

    question = AdmissionQuestion(
        group="",
        kind="Pod",
        namespace="team",
        name="p",
        operation=Operation.CREATE,
        object=POD,
        user="ada",
        dry_run=True,
    )
    assert fake.asked == [(verb.value, question)]


async def test_a_deletion_is_reviewed_with_the_old_object(served: Served, fake: FakeAdmission) -> None:
    await served.ask(post("/validate", review(operation="DELETE", object=None, oldObject=POD)))

    assert [(question.object, question.old) for _, question in fake.asked] == [(POD, POD)]


async def test_changes_are_a_json_patch(served: Served, fake: FakeAdmission) -> None:
    fake.answer = Admitted(patch=[ADDED], warnings=["one"])

    answer = response(await served.ask(post("/mutate", review())))

    assert orjson.loads(b64decode(answer.pop("patch"), validate=True)) == [ADDED]
    assert answer == {"allowed": True, "patchType": "JSONPatch", "warnings": ["one"]}


async def test_a_denial_gives_the_reason(served: Served, fake: FakeAdmission) -> None:
    fake.answer = Denied("write 1 instead")

    status = {"code": 403, "reason": "Forbidden", "message": "write 1 instead"}
    assert response(await served.ask(post("/validate", review()))) == {"allowed": False, "status": status}


async def test_long_messages_are_cut_to_what_is_shown(served: Served, fake: FakeAdmission) -> None:
    fake.answer = Admitted(warnings=["é" * 200, "two\nlines"])
    warned = response(await served.ask(post("/validate", review())))
    fake.answer = Denied("x" * 300_000)
    denied = response(await served.ask(post("/validate", review())))

    assert warned["warnings"] == ["é" * 126 + "...", "two lines"]
    assert len(denied["status"]["message"]) == admission.MESSAGE_BYTES


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"", "the body is not JSON"),
        (b'{"a": NaN}', "the body is not JSON"),
        (b"[" * 100_000, "the body is not JSON"),
        (b"[]", "expected a AdmissionReview of admission.k8s.io/v1: list v1 in admissionReviewVersions"),
        (review().replace(b"k8s.io/v1", b"k8s.io/v1beta1"), "list v1 in admissionReviewVersions"),
        (orjson.dumps(orjson.loads(review()) | {"request": None}), "field request is None; expected a mapping"),
        (review(uid=""), "field uid of the request is missing"),
        (review(uid=7), "field uid is 7; expected a text"),
        (review(operation="PATCH"), "field operation is 'PATCH'; expected CREATE, UPDATE, DELETE, CONNECT"),
        (review(object=None), "field object is None; expected a mapping"),
        (review(kind="Pod"), "field kind is 'Pod'; expected a mapping"),
        (review(oldObject=[]), "field oldObject is a list; expected a mapping"),
        (review(userInfo={"username": {}}), "field username is a dict; expected a text"),
        (review(object={"a": [[]] * 1_000_000}), "about 2000026 values, more than the 100000 that are read"),
    ],
)
async def test_a_malformed_review_gets_a_message_about_what_is_expected(
    served: Served, fake: FakeAdmission, metrics: Metrics, body: bytes, detail: str
) -> None:
    reply = await served.ask(post("/mutate", body))

    assert (reply.status, reply.headers["content-type"]) == (400, "application/problem+json")
    assert isinstance(reply.json, dict)
    assert detail in reply.json["detail"]
    assert fake.asked == []
    assert counted(metrics, Review.MUTATE, ReviewOutcome.BAD_REQUEST) == 1


async def test_a_service_that_cannot_decide_yet_leaves_the_review_to_the_failure_policy(
    served: Served, fake: FakeAdmission, metrics: Metrics
) -> None:
    fake.answer = Undecided("nodes are not listed yet")

    reply = await served.ask(post("/mutate", review()))

    assert isinstance(reply.json, dict)
    assert (reply.status, reply.json["detail"]) == (503, "nodes are not listed yet")
    assert counted(metrics, Review.MUTATE, ReviewOutcome.UNDECIDED) == 1


async def test_an_internal_error_is_logged_once_and_leaves_the_review_to_the_failure_policy(
    served: Served, fake: FakeAdmission, metrics: Metrics
) -> None:
    fake.breaks_with = RuntimeError("broken")

    with capture_logs() as logs:
        reply = await served.ask(post("/validate", review()))

    assert (reply.status, reply.headers["content-type"]) == (500, "application/problem+json")
    assert [(line["event"], line["verb"], line["exc_info"]) for line in logs] == [("review failed", "validate", True)]
    assert counted(metrics, Review.VALIDATE, ReviewOutcome.ERROR) == 1


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (Admitted(), ReviewOutcome.UNCHANGED),
        (Admitted(patch=[ADDED]), ReviewOutcome.CHANGED),
        (Denied("no"), ReviewOutcome.DENIED),
    ],
)
async def test_reviews_are_counted_by_verb_and_outcome(
    served: Served, fake: FakeAdmission, metrics: Metrics, answer: AdmissionAnswer, outcome: ReviewOutcome
) -> None:
    fake.answer = answer
    await served.ask(post("/mutate", review()))

    assert counted(metrics, Review.MUTATE, outcome) == 1


async def test_an_object_of_the_largest_size_is_answered_and_a_larger_one_is_refused(served: Served) -> None:
    object_bytes = "x" * 1_500_000
    most = review(object={"a": object_bytes}, oldObject={"a": object_bytes})

    assert response(await served.ask(post("/validate", most))) == {"allowed": True}
    assert (await served.ask(post("/validate", b" " * (4 * 1024 * 1024 + 1)))).status == 413
