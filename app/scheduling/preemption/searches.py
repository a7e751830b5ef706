"""Decides which searches of an action are due, and how deep each may go. Results of earlier plans are reused.

1. A search that failed is not repeated until the conditions are better for it (`conditions`).
2. Wide: every PodGroup gets one search in each cycle of plans. The first plan gives each search what it probably needs,
   as far as its budget goes: usually that is enough for all. Each further plan shares its budget among an equal part of
   the PodGroups that are still due. So no search that finds nothing can delay the search of another PodGroup.
3. Deep: the rest of the budget, of which a part is reserved for this (`DEEP`), goes to the searches that were cut off.
   Each of these searches gets twice as much each time, again in turn.
"""

from collections.abc import Collection, Container, Mapping
from collections.abc import Set as AbstractSet

from app.model.memory import NOT_SEARCHED, Likeness, Searched
from app.scheduling.preemption.budget import PARTS, Budget

LEAST = 8
"""How many what-ifs a wide search gets if there are enough for all; it gets `EACH` more for each pod to place."""

EACH = 2

CYCLE = 4
"""In so many plans all pending PodGroups are searched once, up to `MOST_GROUPS` of them; more PodGroups take more
plans.
"""

MOST_GROUPS = 2000

DEEP = 33
"""While searches are cut off, deep searches get at least so many per cent of the budget of the wide searches."""

SPARE = 2
"""How many what-ifs a wide search needs beside one for each pod; at most `MOST_NEEDED` pods count."""

MOST_NEEDED = 16


def needed(pods: int) -> int:
    """Return how many what-ifs a search for so many pods needs, compared with other searches."""
    return SPARE + min(pods, MOST_NEEDED)


class Searches:
    """The searches of one action during one plan."""

    def __init__(self, most: int, known: Searched = NOT_SEARCHED) -> None:
        """`most` is how many what-ifs the deepest search may try."""
        self._most = most
        self._in_vain, self._too_dear, self._owed = dict(known.in_vain), set(known.too_dear), set(known.owed)
        self._shallow, self._asked = dict(known.shallow), dict(known.asked)
        self._deepened, self._caps = set(known.deepened), dict(known.caps)
        # Plans left in the cycle, including this one; then the budget that is still to be shared in this plan.
        self._plans_left, self._to_share = known.plans_left, 0
        self._is_first = False

    def is_hopeless(self, likeness: Likeness, pods: int) -> bool:
        """Whether a search for so many pods is known to find nothing."""
        return pods >= self._in_vain.get(likeness, pods + 1)

    def is_due(self, likeness: Likeness, pods: int) -> bool:
        """Whether this cycle has still to search for so many pods."""
        # A search for more pods first does the steps of a search for fewer pods. So it ends where that search ends.
        return all(pods < known.get(likeness, pods + 1) for known in (self._in_vain, self._shallow, self._asked))

    def is_due_deeper(self, likeness: Likeness, pods: int) -> bool:
        """Whether a search for so many pods was cut off, and was not repeated in this cycle."""
        asked = likeness, pods
        return asked in self._caps and asked not in self._deepened and not self.is_hopeless(likeness, pods)

    @property
    def is_unfinished(self) -> bool:
        """Whether some searches were cut off."""
        return any(not self.is_hopeless(*asked) for asked in self._caps)

    def begin_cycle(self) -> None:
        """Make the searches of all groups due again."""
        self._asked.clear()
        self._plans_left = 0

    def begin_plan(self, due: Collection[int], whole: Budget) -> Budget:
        """Return the budget of the wide searches of this plan; `due` has the number of pods of each due group.

        The whole budget grows, up to twice the budget of an action, if the groups of this plan need so much.
        """
        kept, self._is_first = DEEP if self.is_unfinished else 0, self._plans_left <= 0
        if self._is_first:
            self._plans_left = CYCLE * max(1, -(-len(due) // MOST_GROUPS))
        else:
            self._to_share = -(-sum(map(needed, due)) // self._plans_left)
            whole.grow(min(self._to_share * (100 + kept) // 100, 2 * self._most))
        return whole.part(whole.left * 100 // (100 + kept))

    def end_plan(self) -> None:
        """Leave the groups that are still due to the next plans of the cycle."""
        self._plans_left = max(1, self._plans_left - 1)

    def begin_deep_cycle(self) -> None:
        """Make all searches that were cut off due again."""
        self._deepened.clear()

    def wide(self, pods: int, whole: Budget, due: int) -> Budget:
        """Return the budget of a search for so many pods; `due` is what this search and all searches still due need."""
        own, left, ample = needed(pods), whole.common, LEAST + EACH * pods
        if self._is_first:
            return whole.part(max(ample, min(left // PARTS, (self._plans_left - 1) * left * own // max(due, own))))
        if self._to_share <= 0:  # The searches so far have left something.
            self._to_share = -(-due // max(self._plans_left, 1))
        share = left * own // max(self._to_share, own)
        self._to_share -= own
        return whole.part(min(share, max(ample, left // PARTS)))

    def deep(self, likeness: Likeness, pods: int, whole: Budget) -> Budget:
        """Return the budget of a repeated search for so many pods that was cut off."""
        return whole.part(self._caps.get((likeness, pods), LEAST))

    def ended_in_vain(self, likeness: Likeness, pods: int, *, too_dear: bool = False, owed: bool = False) -> None:
        """Record that a search tried everything, and whether victims were too expensive or the room is owed."""
        _lower(self._in_vain, likeness, pods)
        for known, is_so in ((self._too_dear, too_dear), (self._owed, owed)):
            known.discard(likeness)
            if is_so:
                known.add(likeness)
        _lower(self._asked, likeness, pods)
        self._forget_depth(likeness, pods)

    def was_cut_off(self, likeness: Likeness, pods: int, part: Budget, whole: Budget) -> None:
        """Record that a search needs more than its part."""
        asked = likeness, pods
        if whole.is_over and part.most < min(self._caps.get(asked, needed(pods)), self._most):
            return  # It did not even get its old limit: it is first in the next plan.
        if part.most >= self._most:
            self.ended_in_vain(likeness, pods)  # A plan has no more.
            return
        _lower(self._asked, likeness, pods)
        _lower(self._shallow, likeness, pods)
        self._deepened.add(asked)
        self._caps[asked] = min(max(2 * part.most, self._caps.get(asked, 0)), self._most)

    def found(self, likeness: Likeness, pods: int) -> None:
        """Forget failed searches: pods were evicted or moved."""
        self._in_vain.clear()
        self._shallow.clear()
        self._forget_depth(likeness, pods)

    def _forget_depth(self, likeness: Likeness, pods: int) -> None:
        self._caps.pop((likeness, pods), None)
        self._deepened.discard((likeness, pods))
        if self._shallow.get(likeness) == pods:
            del self._shallow[likeness]

    def frozen(self, waiting: AbstractSet[tuple[Likeness, int]]) -> Searched:
        """Return what the next plan needs about the groups that are still pending, with their numbers of pods."""
        likenesses = {likeness for likeness, _ in waiting}
        return Searched(
            in_vain=_among(self._in_vain, likenesses),
            too_dear=frozenset(self._too_dear & likenesses),
            owed=frozenset(self._owed & likenesses),
            # The group that requested so few pods may be gone. Then the other groups are searched on their own.
            shallow={each: pods for each, pods in self._shallow.items() if (each, pods) in waiting},
            asked=_among(self._asked, likenesses),
            deepened=frozenset(each for each in self._deepened if each in waiting),
            plans_left=self._plans_left,
            caps={each: most for each, most in self._caps.items() if each in waiting and not self.is_hopeless(*each)},
        )


def _lower(known: dict[Likeness, int], likeness: Likeness, pods: int) -> None:
    known[likeness] = min(pods, known.get(likeness, pods))


def _among(known: Mapping[Likeness, int], waiting: Container[Likeness]) -> Mapping[Likeness, int]:
    return {each: pods for each, pods in known.items() if each in waiting}
