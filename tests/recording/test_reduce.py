"""A reduced object is read like the raw one, whatever is in it."""

from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.model.seam import Resource
from app.recording.reduce import reduced, reduced_question
from tests.cluster.test_decode_garbage import JSON
from tests.recording.readers import FULL, damaged, readings

DAMAGES = 400
RECORDED = Path(__file__).parents[1] / "web" / "data" / "recorded.jsonl"


@pytest.mark.parametrize("resource", Resource, ids=repr)
def test_a_full_object_is_read_alike(resource: Resource) -> None:
    for raw in FULL[resource]:
        assert readings(resource, reduced(resource.value, raw)) == readings(resource, raw)


@pytest.mark.parametrize("resource", Resource, ids=repr)
def test_a_damaged_object_is_read_alike_and_reduced_once(resource: Resource) -> None:
    for number, raw in enumerate(FULL[resource]):
        for seed in range(DAMAGES):
            wrong = damaged(raw, seed=1000 * number + seed)
            kept = reduced(resource.value, wrong)
            assert readings(resource, kept) == readings(resource, wrong), (number, seed)
            assert reduced(resource.value, kept) == kept, (number, seed)
            assert orjson.loads(orjson.dumps(kept)) == kept


@given(resource=st.sampled_from(list(Resource)), raw=JSON)
def test_any_json_can_be_reduced(resource: Resource, raw: object) -> None:
    kept = reduced(resource.value, raw)

    assert reduced(resource.value, kept) == kept
    assert isinstance(orjson.dumps(kept), bytes)


def test_the_pods_in_recorded_questions_of_a_kube_scheduler_are_read_alike() -> None:
    lines = [orjson.loads(line) for line in RECORDED.read_bytes().splitlines()]
    pods = [line["request"]["Pod"] for line in lines if "Pod" in line["request"]]

    assert pods
    for raw in pods:
        assert readings(Resource.PODS, reduced_question(raw)) == readings(Resource.PODS, raw)
