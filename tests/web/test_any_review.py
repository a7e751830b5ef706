"""Whatever is posted to admission, the answer is a review with the request's uid, or a problem, never a failure."""

import http.client
from base64 import b64decode
from collections.abc import Iterator

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.cluster.state.cache import ClusterCache
from app.control.webhooks.admission import Admission
from app.model.marks import ASK_MARKER
from app.model.seam import RawObject
from app.settings import Settings
from app.telemetry import Metrics, Review
from app.web import admission
from tests.cluster.patched import patched
from tests.control.desk import FakeEntrance
from tests.control.ready import Told
from tests.web.served import HOST, serving_from_a_thread

pytestmark = pytest.mark.slow

FIELDS = (
    *("metadata", "name", "namespace", "uid", "generateName", "labels", "annotations", "spec", "containers", "env"),
    *("initContainers", "schedulingGates", "schedulerName", "resources", "requests", "limits", "nodeName", "queue"),
    *("priorityClassName", "kai.scheduler/queue", "gpu-fraction", "gpu-memory", "gpu-fraction-num-devices", "mps"),
    *("gpu-fraction-container-name", "nvidia.com/gpu", "parentQueue", "quota", "limit", "gpu", "minMember", "parent"),
    *("subGroups", "topologyConstraint", "levels", "nodeLabel", "preemptibility", "deletionTimestamp", "status"),
)
TEXTS = st.sampled_from(
    ["kai-scheduler", "default-scheduler", "0.5", "٣", "NaN", "1e400", "9" * 400, "main", "GPU_PORTION", "q", "\x00"]
) | st.text(max_size=8)
SCALARS = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False) | TEXTS
KEYS = st.sampled_from(FIELDS) | st.text(max_size=4)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=12)


def either(right: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """Draw the expected value, or any other."""
    return right | JSON


CONTAINERS = either(st.lists(st.fixed_dictionaries({"name": TEXTS}, optional={"env": JSON, "resources": JSON})))
OBJECT = st.fixed_dictionaries(
    {
        "metadata": either(
            st.fixed_dictionaries(
                {"name": TEXTS}, optional={"labels": JSON, "annotations": either(st.dictionaries(KEYS, TEXTS))}
            )
        ),
        "spec": either(
            st.fixed_dictionaries(
                {"schedulerName": TEXTS, "containers": CONTAINERS},
                optional={name: JSON for name in FIELDS if name not in ("schedulerName", "containers")},
            )
        ),
    }
)
KINDS = st.sampled_from(
    [
        {"group": "", "kind": "Pod"},
        {"group": "scheduling.run.ai", "kind": "Queue"},
        {"group": "scheduling.run.ai", "kind": "PodGroup"},
        {"group": "kai.scheduler", "kind": "Topology"},
    ]
)
REQUEST = st.fixed_dictionaries(
    {
        "uid": st.text(min_size=1, max_size=8),
        "kind": KINDS,
        "operation": st.sampled_from(["CREATE", "UPDATE", "DELETE", "CONNECT"]),
        "object": OBJECT,
    },
    optional={"oldObject": st.none() | OBJECT, "namespace": st.text(max_size=4), "name": st.text(max_size=4)},
)
REVIEW = st.fixed_dictionaries(
    {"apiVersion": st.just("admission.k8s.io/v1"), "kind": st.just("AdmissionReview"), "request": REQUEST}
)


DEEP = "so deep"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:

    judge = Admission(ClusterCache(), FakeEntrance(), Settings(markers=frozenset({ASK_MARKER})), freshness=Told())
    with serving_from_a_thread(admission.application(judge, Metrics())) as port:
        yield port


def posted(port: int, verb: Review, body: bytes) -> tuple[int, object]:
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    try:
        connection.request("POST", f"/{verb}", body)
        response = connection.getresponse()
        return response.status, orjson.loads(response.read())
    finally:
        connection.close()


@pytest.mark.parametrize("verb", Review)
@settings(max_examples=60, deadline=None)
@given(review=REVIEW)
def test_any_object_is_answered_with_a_review_whose_patch_applies(port: int, verb: Review, review: RawObject) -> None:
    request = review["request"]
    status, answer = posted(port, verb, orjson.dumps(review))

    assert isinstance(answer, dict)
    assert (status, answer["response"]["uid"]) == (200, request["uid"])
    assert answer["response"]["allowed"] or answer["response"]["status"]["message"]
    if patch := answer["response"].get("patch"):
        review = review | {"request": request | {"object": patched(request["object"], orjson.loads(b64decode(patch)))}}
        again = posted(port, verb, orjson.dumps(review))[1]
        assert isinstance(again, dict)
        assert "patch" not in again["response"]


@pytest.mark.parametrize("verb", Review)
@settings(max_examples=30, deadline=None)
@given(body=JSON.map(orjson.dumps) | st.binary(max_size=200))
def test_anything_else_is_a_problem(port: int, verb: Review, body: bytes) -> None:
    status, answer = posted(port, verb, body)

    assert isinstance(answer, dict)
    assert (status, answer["title"]) == (400, "Bad Request")


@pytest.mark.parametrize("verb", Review)
@pytest.mark.parametrize("depth", [200, 1000, 5000])
def test_json_of_any_depth_is_answered(port: int, verb: Review, depth: int) -> None:
    pod = {
        "metadata": {"name": "p", "annotations": {"gpu-fraction": DEEP}},
        "spec": {"schedulerName": "kai-scheduler", "schedulingGates": DEEP, "containers": [{"env": [{"value": DEEP}]}]},
    }
    request = {"uid": "u", "kind": {"group": "", "kind": "Pod"}, "operation": "CREATE", "object": pod}
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    body = orjson.dumps(review).replace(orjson.dumps(DEEP), b"[" * depth + b"]" * depth)

    assert posted(port, verb, body)[0] == (200 if depth <= 1000 else 400)
