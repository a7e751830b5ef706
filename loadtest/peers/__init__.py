"""The other schedulers that are given the same work: KAI-Scheduler, kube-scheduler with coscheduling, and Volcano.

Each is pinned by a small Go module in `go/`; its sources and its kinds come from there and are not copied.
"""

from collections.abc import Sequence

from loadtest.contender import Contender
from loadtest.peers.coscheduling import Coscheduling
from loadtest.peers.kai import Kai
from loadtest.peers.volcano import Volcano


def peers() -> Sequence[Contender]:
    """Return all of them."""
    return (Kai(), Coscheduling(), Volcano())
