"""Everything that one bench has measured and on what, as JSON from which its tables can be made again."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from loadtest.admission import Creation, Others
from loadtest.ratios import Ceilings, Verdict, verdicts
from loadtest.results import Row, Run, Spread, rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What has been measured so far, and on what."""

    machine: str
    control_plane: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Program -> its flags."""
    scenarios: Mapping[str, str] = field(default_factory=dict)
    """Name -> title."""
    versions: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    """Contender -> program -> its flags."""
    runs: Sequence[Run] = ()
    deletions_per_s: Sequence[float] = ()
    """Deletions a second when only the bench deletes pods, as many at once as Leeboard evicts."""
    evictions_per_s: Sequence[float] = ()
    """The same by the Eviction API."""
    creations: Sequence[Creation] = ()
    others: Sequence[Others] = ()
    unfinished: str = ""
    """Why there is no more; empty when all was done."""

    def with_run(self, run: Run, flags: Mapping[str, Sequence[str]]) -> Self:
        """Return it with one run more, of programs with these flags."""
        return replace(self, runs=(*self.runs, run), flags={**self.flags, run.contender: flags or {}})

    def with_removals(self, deleted: float, evicted: float) -> Self:
        """Return it with one measurement more of how many pods can leave a second."""
        return replace(
            self,
            deletions_per_s=(*self.deletions_per_s, deleted),
            evictions_per_s=(*self.evictions_per_s, evicted),
        )

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return what `to_json` has written."""
        read: dict[str, Any] = json.loads(text)
        read["runs"] = tuple(Run.from_json(run) for run in read["runs"])
        read["creations"] = tuple(
            Creation(**{**one, "pods_per_s": tuple(one["pods_per_s"])}) for one in read["creations"]
        )
        read["others"] = tuple(Others(**one) for one in read["others"])
        read |= {name: tuple(read.get(name, ())) for name in ("deletions_per_s", "evictions_per_s")}
        return cls(**read)

    @property
    def rows(self) -> Sequence[Row]:
        """The runs of the same work through the same scheduler together."""
        return rows(self.runs)

    @property
    def ceilings(self) -> Ceilings:
        """How fast pods can leave at all."""
        return Ceilings(deletions=Spread.of(self.deletions_per_s), evictions=Spread.of(self.evictions_per_s))

    @property
    def verdicts(self) -> Sequence[Verdict]:
        """Each budget beside what was measured."""
        return verdicts(self.rows, self.ceilings)
