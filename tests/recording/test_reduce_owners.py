"""Pods are grouped alike by reduced owners, and grouping reads nothing of an owner that has no rule."""

from dataclasses import replace

import orjson
import pytest

from app.cluster import decode
from app.cluster.decode.origin import TOO_LARGE
from app.grouping import Chain, fields_read, group
from app.grouping.table import TABLE
from app.model.owner import Grouping, Kind, Owner
from app.model.seam import Depth
from app.recording.owner_fields import READ
from app.recording.reduce import reduced
from tests.grouping.objects import ray_cluster, ray_group
from tests.recording.owners import GANG, OWNERS, members, path_of
from tests.recording.readers import Raw, damaged
from tests.recording.watched import Watched, paths

DAMAGES = 300
CASES = [(kind, number) for kind, raws in OWNERS.items() for number in range(len(raws))]
KNOWN = {"PodGang": GANG, "RayCluster": ray_cluster(ray_group())}


def owner_of(kind: tuple[str, str], raw: Raw) -> Owner | None:
    try:
        found = Kind(kind[0], "v1", kind[1])
        return decode.owner(raw, kind=found, parts=fields_read(found))
    except decode.DecodeError:
        return None


def groupings(owner: Owner | None) -> list[Grouping | None]:
    if owner is None:
        return []
    chain = Chain(owners=(owner,), find=lambda kind, _: KNOWN.get(kind.name))
    return [group(pod, chain) for pod in members(owner)]


def without_fields(owner: Owner | None) -> object:
    return owner and (owner.ref, owner.namespace, owner.labels, owner.annotations, owner.owner, owner.created_at)


def test_every_kind_that_is_read_whole_has_rules() -> None:
    assert set(READ) == {kind for kind, row in TABLE.items() if row.depth is Depth.WHOLE} == set(OWNERS)


@pytest.mark.parametrize(("kind", "number"), CASES, ids=lambda one: one[1] if isinstance(one, tuple) else str(one))
def test_pods_of_a_damaged_owner_are_grouped_alike(kind: tuple[str, str], number: int) -> None:
    for seed in range(DAMAGES):
        raw = damaged(OWNERS[kind][number], seed) if seed else OWNERS[kind][number]
        kept = reduced(path_of(kind), raw)
        before, after = owner_of(kind, raw), owner_of(kind, kept)

        assert without_fields(after) == without_fields(before), seed
        assert (after and after.problem) == (before and before.problem), seed
        assert groupings(after) == groupings(before), seed
        assert reduced(path_of(kind), kept) == kept, seed
        assert orjson.loads(orjson.dumps(kept)) == kept, seed


def test_an_owner_that_is_too_large_stays_too_large_and_small() -> None:
    kind = ("batch", "Job")
    raw = OWNERS[kind][0] | {"spec": {"template": [{}] * 100_000}}

    kept = reduced(path_of(kind), raw)

    assert owner_of(kind, kept) == owner_of(kind, raw)
    assert (owner_of(kind, kept) or GANG).problem == TOO_LARGE
    assert len(orjson.dumps(kept)) < 50_000


@pytest.mark.parametrize(("kind", "number"), CASES, ids=lambda one: one[1] if isinstance(one, tuple) else str(one))
def test_grouping_reads_no_field_that_has_no_rule(kind: tuple[str, str], number: int) -> None:
    """A row of the table that begins to read a field fails here until the field has a rule."""
    raw, read = OWNERS[kind][number], set[str]()
    whole = owner_of(kind, raw)
    assert whole is not None

    groupings(replace(whole, fields=Watched(whole.fields, read)))

    kept = set(paths(reduced(path_of(kind), raw)))
    there = set(paths(raw))
    assert (read & there) - kept == set()
