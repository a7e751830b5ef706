"""Finds out what has changed in the live view since the last frame. It reads the cache and changes nothing there.

1. The cache notes which pods and nodes may look different, while somebody watches.
2. The rows of these nodes are made again, a few at a time: other work of the loop comes in between.
3. Queues and waiting PodGroups are computed in a thread, from a Snapshot.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count

from app.cluster.state.cache import ClusterCache
from app.control.cycle.planning import Planning
from app.control.report.node_rows import NO_ROWS, NodeRows, NodeView
from app.control.report.queue_rows import Line, line_of
from app.model.live import GANG_SIZES, Row, changes
from app.model.names import GroupKey, NodeName, PodUid
from app.model.topology import Topology
from app.scheduling.policy import Policy

HOSTNAME = "kubernetes.io/hostname"

FIRST_PLACES = 50
"""So many PodGroups are shown with their exact position at once. The positions of others move with each start."""
PLACES_EVERY = 10
"""The other positions are brought up to date with one in so many changes of the line."""

Tables = dict[str, tuple[list[Row], list[str]]]
"""By table: rows that are new or differ, and keys that are gone."""


class LiveState:
    """What the viewers were told last, and what they have to be told next."""

    def __init__(
        self, cache: ClusterCache, planning: Planning, policy: Policy, *, wall_clock: Callable[[], float]
    ) -> None:
        """`wall_clock` is in seconds since the epoch. Nothing is collected until `begin`."""
        self._cache = cache
        self._planning = planning
        self._policy = policy
        self._wall_clock = wall_clock
        self._keys = count(1)
        self._view = NodeView(cache, self._next_key)
        self._forget()

    def _forget(self) -> None:
        self._places: dict[PodUid, NodeName] = {}
        self._on: dict[NodeName, dict[PodUid, None]] = {}
        self._rows: dict[NodeName, NodeRows] = {}
        self._sums: Counter[str] = Counter()
        self._gangs: Counter[int] = Counter()
        """How many nodes have so many whole GPUs free."""
        self._topologies: Mapping[str, Topology] = {}
        self._levels: tuple[str, ...] = ()
        self._pods_left: dict[PodUid, None] = {}
        self._nodes_left: dict[NodeName, None] = {}
        self._queues: dict[str, Row] = {}
        self._waiting: dict[GroupKey, Row] = {}
        self._left_out = 0
        self._lines = 0

    def begin(self) -> None:
        """Start again with everything."""
        self._forget()
        self._cache.changes.watch()
        self._pods_left = dict.fromkeys(pod.uid for pod in self._cache.pods.all())
        self._nodes_left = dict.fromkeys(self._cache.snapshots.table().index)

    def end(self) -> None:
        """Collect nothing any more."""
        self._cache.changes.unwatch()
        self._forget()

    # Nodes ------------------------------------------------------------------------------------------------------------

    def note(self) -> None:
        """Take in which pods and nodes may look different."""
        seen = self._cache.changes.drain_seen()
        self._pods_left.update(seen.pods)
        self._nodes_left.update(seen.nodes)
        now = self._cache.topologies.by_name()
        if now is not self._topologies:
            self._topologies, levels = now, _levels(now)
            if levels != self._levels:
                self._levels = levels
                self._nodes_left.update(dict.fromkeys(self._rows))

    def advance(self, tables: Tables) -> bool:
        """Do a small part of the work; return whether anything is left."""
        if self._pods_left:
            uid, _ = self._pods_left.popitem()
            self._place(uid)
        elif self._nodes_left:
            name, _ = self._nodes_left.popitem()
            self._show(name, tables)
        return bool(self._pods_left or self._nodes_left)

    def _place(self, uid: PodUid) -> None:
        """Note on which node a pod with GPUs is; pods that take GPUs to be shared are known by name alone."""
        pod, charge = self._cache.pods.get(uid), self._cache.charges.get(uid)
        has_gpus = pod is not None and (pod.asks_for_gpus or bool(pod.reserves))
        now = charge.node if charge is not None and has_gpus else None
        before = self._places.pop(uid, None)
        if before is not None:
            self._on[before].pop(uid, None)
            if not self._on[before]:
                del self._on[before]
            self._nodes_left[before] = None
        if now is not None:
            self._places[uid] = now
            self._on.setdefault(now, {})[uid] = None
            self._nodes_left[now] = None

    def _show(self, name: NodeName, tables: Tables) -> None:
        before = self._rows.get(name, NO_ROWS)
        now = self._view.rows(name, list(self._on.get(name, ())), self._levels, before)
        for table in ("nodes", "devices", "shares"):
            news, gone = changes(before.tables.get(table, {}), now.tables.get(table, {}))
            _add(tables, table, news, gone)
        self._sums.subtract(before.amounts)
        self._sums.update(now.amounts)
        self._gangs[before.free_whole] -= 1
        self._gangs[now.free_whole] += 1
        self._rows[name] = now
        if now is NO_ROWS:
            del self._rows[name]

    def summary(self) -> Mapping[str, object]:
        """Return the sums of all nodes, and how many pods of so many whole GPUs would fit now."""
        names = ("total", "free", "allocated", "reserved", "unhealthy", "unmanaged")
        fits = [(size, sum(free // size * nodes for free, nodes in self._gangs.items())) for size in GANG_SIZES]
        gangs = [{"gpus": size, "pods": pods} for size, pods in fits if pods]
        return {"gpuMilli": {name: self._sums[name] for name in names}, "largestGangs": gangs}

    # Queues and waiting PodGroups -------------------------------------------------------------------------------------

    def version(self) -> object:
        """Return a value that changes whenever the line may be another."""
        return self._planning.version

    def line(self) -> Callable[[], Line]:
        """Take a Snapshot; the returned function may run in any thread."""
        refusals = dict(self._planning.refusals_to_tell)
        return partial(line_of, self._cache.snapshot().apart(), refusals, self._policy, self._wall_clock())

    def take_line(self, line: Line, tables: Tables) -> None:
        """Take in the queues and the PodGroups that wait."""
        self._lines += 1
        self._left_out = line.left_out
        queues = {row[0]: row for row in line.queues}
        _add(tables, "queues", *changes(self._queues, queues))
        self._queues = queues
        waiting, is_exact = dict[GroupKey, Row](), self._lines % PLACES_EVERY == 1
        news: list[Row] = []
        for key, row in line.waiting:
            before = self._waiting.get(key)
            row[0] = before[0] if before is not None else self._next_key()
            if before is not None and not is_exact and row[1] > FIRST_PLACES and before[1] > FIRST_PLACES:
                row[1] = before[1]
            waiting[key] = row
            if row != before:
                news.append(row)
        gone = [row[0] for key, row in self._waiting.items() if key not in waiting]
        self._waiting = waiting
        _add(tables, "waiting", news, gone)

    @property
    def left_out(self) -> int:
        """How many PodGroups wait behind those that are shown."""
        return self._left_out

    def _next_key(self) -> str:
        return f"{next(self._keys):x}"


def _add(tables: Tables, table: str, news: Sequence[Row], gone: Sequence[str]) -> None:
    if news or gone:
        found = tables.setdefault(table, ([], []))
        found[0].extend(news)
        found[1].extend(gone)


def _levels(topologies: Mapping[str, Topology]) -> tuple[str, ...]:
    """Return the levels of the first Topology by name, without the level of single nodes."""
    names: Iterator[str] = (name for name in sorted(topologies) if not topologies[name].problem)
    first = next(names, None)
    return () if first is None else tuple(level for level in topologies[first].levels if level != HOSTNAME)
