"""How the devices of one machine reach each other: what choosing a set of them is judged by."""

from dataclasses import dataclass, field

Scores = tuple[tuple[int, ...], ...]
"""Shape [device, device], symmetric, 0 on the diagonal."""

NVLINK_SCORE = 100
"""What each NVLink connection between two devices adds to what their PCIe paths are worth."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The connections between the devices of a machine, in the order of the driver; equal for machines of one kind.

    A pair is worth its PCIe level (10 System .. 60 Board, 0 when unknown) and `NVLINK_SCORE` for each NVLink between
    the two; behind a switch these are the links that both have to the switch (NVIDIA's go-gpuallocator, besides that it
    counts none behind a switch).
    """

    scores: Scores
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Answers are looked up by layout, and there may be 4,096 numbers in one.
        object.__setattr__(self, "_hash", hash(self.scores))

    def __hash__(self) -> int:
        return self._hash

    @property
    def size(self) -> int:
        """How many devices there are."""
        return len(self.scores)

    def __repr__(self) -> str:
        return f"<Layout of {self.size}>"
