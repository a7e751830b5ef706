"""Objects as large as the API server stores them, one field at a time, are read alike and are reduced quickly."""

from time import process_time
from timeit import repeat

import orjson
import pytest

from app.cluster import decode
from app.cluster.decode.whereabouts import REQUIRED
from app.model.seam import Resource
from app.recording.reduce import reduced, reduced_question
from app.recording.whitelist import MOST
from app.simulation import manifests
from loadtest.scale_pods import written
from tests.control.test_hostile import KINDS, objects_of
from tests.hostile import merged
from tests.recording.readers import PROFILES, Raw, readings

SLOWEST_S = 0.25
"""A large object is parsed in 0.02 s. The limit is far above what is measured, because tests run on busy machines."""

IDENTITY: Raw = {"metadata": {"name": "it", "uid": "u1"}}


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_hostile_object_is_read_alike(name: str) -> None:
    kind, longest, largest = KINDS[name], 0.0, 0
    for one in objects_of(kind):
        raw = merged(one.raw, IDENTITY)
        began = process_time()
        kept = reduced(kind.resource.value, raw)
        longest = max(longest, process_time() - began)
        largest = max(largest, len(orjson.dumps(kept)))
        assert readings(kind.resource, kept) == readings(kind.resource, raw), one
        assert reduced(kind.resource.value, kept) == kept, one
    print(f"{name}: at most {1000 * longest:.1f} ms and {largest} bytes")
    assert longest < SLOWEST_S


LARGEST: dict[str, Raw] = {
    "containers": {"spec": {"containers": [{"name": f"c{at}", "image": "a"} for at in range(40_000)]}},
    "environment": {"spec": {"containers": [{"name": "c", "env": [{"name": f"e{at}"} for at in range(70_000)]}]}},
    "amounts": {"spec": {"overhead": {f"example.com/{at}": "1" for at in range(55_000)}}},
    "labels": {"metadata": IDENTITY["metadata"] | {"labels": {f"k{at}": "" for at in range(120_000)}}},
    "conditions": {"status": {"conditions": [{"type": "a", "status": "b"}] * 50_000}},
    "terms": {"spec": {"affinity": {"podAffinity": {REQUIRED: [{"topologyKey": "a"}] * 70_000}}}},
    "unread": {"spec": {f"k{at}": [] for at in range(120_000)}},
}


@pytest.mark.slow
@pytest.mark.parametrize("what", LARGEST)
def test_no_pod_of_the_largest_size_takes_long(what: str) -> None:
    raw = IDENTITY | LARGEST[what]
    began = process_time()
    kept = reduced(Resource.PODS.value, raw)
    took_s = process_time() - began

    print(f"{what}: {len(orjson.dumps(raw))} -> {len(orjson.dumps(kept))} bytes in {1000 * took_s:.0f} ms")
    assert took_s < SLOWEST_S


def test_a_text_beyond_the_limit_is_cut_and_a_count_beyond_the_limit_is_the_limit() -> None:
    raw = manifests.node("n", gpus=1, cpu=1, labels={}) | IDENTITY
    raw["metadata"] = IDENTITY["metadata"] | {"labels": {f"k{number}": "v" for number in range(MOST + 9)}}

    kept = reduced(Resource.NODES.value, raw)

    assert decode.node(raw).problem == f"field labels has {MOST + 9} entries; write at most 256"
    assert decode.node(kept).problem == f"field labels has {MOST} entries; write at most 256"


@pytest.mark.slow
def test_a_typical_pod_is_reduced_in_little_time_to_little() -> None:
    for kind, owner, gang in (("alone", "job-1", ""), ("gang", "", "g"), ("half", "", ""), ("foreign", "", "")):
        raw: Raw = orjson.loads(written("p-1", team="t", kind=kind, node=3, owner=owner, gang=gang))
        kept = reduced(Resource.PODS.value, raw)
        took_s = min(repeat(lambda of=raw: reduced_question(of), number=500, repeat=9)) / 500  # type: ignore[misc] # a default
        size = len(orjson.dumps(kept))

        print(f"{kind}: {1e6 * took_s:.1f} us, {len(orjson.dumps(raw))} -> {size} bytes")
        assert decode.seen_pod(kept, profiles=PROFILES) == decode.seen_pod(raw, profiles=PROFILES)
        assert size < 1500
        assert took_s < 0.001
