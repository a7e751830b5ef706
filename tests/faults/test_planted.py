"""That the invariants can fail: faults that are planted in the code are found within a few seeds."""

import pytest

from tests.faults.planted import FAULTS, Planted, found_by

pytestmark = pytest.mark.slow

FAST = {
    "a reservation is not charged": range(1),
    "filter answers another node": range(1),
    "held room is forgotten": range(1),
    "a gang binds without its barrier": range(1, 2),
    "the limit of a queue is ignored": range(2, 3),
    "the lease is ignored": range(4, 5),
    "deletions are not applied": range(1),
    "an unknown outcome counts as a refusal": range(178, 179),
}
"""The faults that few seeds find, and the seeds. `python -m tests.faults.planted` tries all of them."""


@pytest.mark.parametrize("planted", [one for one in FAULTS if one.name in FAST], ids=lambda one: one.name)
def test_a_planted_fault_is_found(planted: Planted) -> None:
    assert found_by(planted, FAST[planted.name]) is not None
