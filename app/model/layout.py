"""The links between the devices of one machine. Sets of devices are scored by them."""

from dataclasses import dataclass, field

Scores = tuple[tuple[int, ...], ...]
"""Shape [device, device], symmetric, 0 on the diagonal."""

NVLINK_SCORE = 100
"""What each NVLink between two devices adds to the score of their PCIe path."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The links between the devices of a machine, in the driver's order. Machines of one model have equal layouts.

    The score of a pair is its PCIe level (10 System .. 60 Board, 0 unknown) plus `NVLINK_SCORE` for each NVLink between
    the two. Behind a switch, these are the links that both have to the switch. (NVIDIA's go-gpuallocator scores the
    same way, but counts no links behind a switch.)
    """

    scores: Scores
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Layouts are dictionary keys, and one layout may have 4,096 numbers.
        object.__setattr__(self, "_hash", hash(self.scores))

    def __hash__(self) -> int:
        return self._hash

    @property
    def size(self) -> int:
        """The number of devices."""
        return len(self.scores)

    def __repr__(self) -> str:
        return f"<Layout of {self.size}>"
