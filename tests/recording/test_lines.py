from typing import Any

import pytest

from app.kube.errors import UnauthenticatedError
from app.model.names import PodUid
from app.model.seam import (
    BudgetError,
    Changed,
    Deleted,
    KubeError,
    Lease,
    Listed,
    Lost,
    OutcomeUnknownError,
    PodRef,
    Progress,
    Resource,
    UnavailableError,
    WatchEvent,
)
from app.recording.lines import (
    UnreadableLineError,
    error_fields,
    error_of,
    event_fields,
    event_of,
    indexes,
    plain,
    result_of,
    runs,
)


@pytest.mark.parametrize(
    "error",
    [BudgetError("guarded"), OutcomeUnknownError("cut"), UnavailableError("later", retry_after_s=7.5), KubeError("?")],
)
def test_errors_of_the_cluster_come_back_as_they_were(error: KubeError) -> None:
    read = error_of(plain(error_fields(error)))

    assert type(read) is type(error)
    assert str(read) == str(error)
    assert getattr(read, "retry_after_s", None) == getattr(error, "retry_after_s", None)


def test_an_error_that_only_the_client_knows_comes_back_as_what_the_core_takes_it_for() -> None:
    read = error_of(plain(error_fields(UnauthenticatedError("who?"))))

    assert type(read).__name__ == "ForbiddenError"


def test_another_error_comes_back_with_its_name() -> None:
    assert str(error_of(plain(error_fields(ValueError("odd"))))) == "ValueError: odd"


@pytest.mark.parametrize(
    "event",
    [
        Listed([0, 1, 2, 4, 3]),
        Listed([3], restored=True),
        Changed(2),
        Deleted(0),
        Progress(),
        Lost("cut", denied=True),
    ],
)
def test_events_come_back_with_the_objects_of_their_numbers(event: WatchEvent[int]) -> None:
    kept = ["zero", "one", "two", "three", "four"]

    read = event_of(plain(event_fields(event)), kept)

    match event:
        case Listed(numbers):
            assert read == Listed([kept[number] for number in numbers], restored=event.restored)
        case Changed(number):
            assert read == Changed(kept[number])
        case Deleted(number):
            assert read == Deleted(kept[number])
        case _:
            assert read == event


def test_an_unknown_event_is_refused() -> None:
    with pytest.raises(UnreadableLineError):
        event_of(["?"], [])


@pytest.mark.parametrize(("numbers", "pairs"), [([], []), ([5, 6, 7], [5, 3]), ([3, 1, 2, 9], [3, 1, 1, 2, 9, 1])])
def test_numbers_in_a_row_are_one_pair(numbers: list[int], pairs: list[int]) -> None:
    assert runs(numbers) == pairs
    assert indexes(pairs, known=max(numbers, default=0) + 1) == numbers


@pytest.mark.parametrize(
    ("verb", "result"),
    [
        ("read_lease", Lease(holder="a", duration_s=15.0, renewed="1")),
        ("read_lease", None),
        ("tight_budgets", frozenset({"b", "a"})),
        ("may_evict", True),
        ("bind", None),
        ("path_of", "apis/batch/v1/jobs"),
    ],
)
def test_results_come_back_as_they_were(verb: str, result: Any) -> None:
    assert result_of(verb, plain(result), []) == result


def test_equal_values_are_written_alike() -> None:
    pod = PodRef(namespace="n", name="p", uid=PodUid("u"))
    assert plain({"b": pod, "a": {Resource.PODS}}) == {
        "b": {"namespace": "n", "name": "p", "uid": "u"},
        "a": ["api/v1/pods"],
    }


@pytest.mark.parametrize("pairs", [[0, 10**12], [-1, 1], [2, 1], [1, -1]])
def test_numbers_of_objects_that_were_not_read_are_refused(pairs: list[int]) -> None:
    with pytest.raises(UnreadableLineError, match="of 2 are not known"):
        result_of("listed", pairs, ["a", "b"])
