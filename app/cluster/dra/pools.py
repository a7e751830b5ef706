"""Keeps the pools of devices that ResourceSlices publish, and tells which devices each node has.

Of a pool only the newest generation counts, and only when it is complete and readable: kube-scheduler allocates nothing
of another one either.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from app.cluster.dra.device_models import DeviceModel, DeviceModels, model_of
from app.model.dra import DeviceId, DeviceTaintRule, ResourceSlice, SliceDevice
from app.model.names import NodeName

NO_NODES: Collection[NodeName] = ()


class _PoolKey(NamedTuple):
    driver: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledDevice:
    """A device of a node."""

    id: DeviceId
    model: DeviceModel
    consumes: tuple[tuple[str, str, int], ...]
    is_tainted: bool


@dataclass(frozen=True, slots=True)
class _Pool:
    """The devices of a pool that count, by node, and its counters."""

    on: Mapping[NodeName, tuple[PooledDevice, ...]]
    counters: Mapping[tuple[str, str], int]


NO_POOL = _Pool({}, {})


class DevicePools:
    """All pools of a cluster."""

    def __init__(self) -> None:
        """Start without pools."""
        self.models = DeviceModels()
        self._slices: dict[str, ResourceSlice] = {}
        self._members: dict[_PoolKey, dict[str, None]] = {}
        """The names of the slices of a pool."""
        self._pools: dict[_PoolKey, _Pool] = {}
        self._on: dict[NodeName, dict[_PoolKey, None]] = {}
        """The pools with devices on a node."""
        self._rules: dict[str, DeviceTaintRule] = {}
        self._largest: dict[DeviceModel, Counter[int]] = {}
        """How many nodes have so many devices of a model, in one pool."""

    # Queries ----------------------------------------------------------------------------------------------------------

    def on(self, node: NodeName) -> Iterator[PooledDevice]:
        """Return the devices of a node."""
        for key in self._on.get(node, ()):
            yield from self._pools[key].on[node]

    def counters(self, device: DeviceId) -> Mapping[tuple[str, str], int]:
        """Return the counters that the devices of a pool share, by set and name."""
        return self._pools.get(_PoolKey(device.driver, device.pool), NO_POOL).counters

    def largest(self, model: DeviceModel) -> int:
        """Return the most devices of a model that a pool has on one node."""
        return max(self._largest.get(model, ()), default=1)

    def nodes(self) -> Collection[NodeName]:
        """Return the nodes that have devices."""
        return self._on.keys()

    def is_empty(self) -> bool:
        """Whether no node has any device."""
        return not self._on

    # Changes ----------------------------------------------------------------------------------------------------------

    def put(self, stated: ResourceSlice) -> tuple[Collection[NodeName], bool]:
        """Store a slice; return the nodes whose devices have changed, and whether a model is new or gone."""
        before = self._slices.get(stated.name)
        if before == stated:
            return NO_NODES, False
        keys: dict[_PoolKey, None] = {}
        if before is not None:
            keys[self._leave(before)] = None
        self._slices[stated.name] = stated
        key = _PoolKey(stated.driver, stated.pool)
        self._members.setdefault(key, {})[stated.name] = None
        return self._renewed({**keys, key: None})

    def drop(self, name: str) -> tuple[Collection[NodeName], bool]:
        """Forget a slice; return the same as `put`."""
        before = self._slices.pop(name, None)
        return (NO_NODES, False) if before is None else self._renewed([self._leave(before)])

    def put_rule(self, rule: DeviceTaintRule) -> tuple[Collection[NodeName], bool]:
        """Store a taint rule; return the same as `put`."""
        if self._rules.get(rule.name) == rule:
            return NO_NODES, False
        self._rules[rule.name] = rule
        return self._renewed(self._members)

    def drop_rule(self, name: str) -> tuple[Collection[NodeName], bool]:
        """Forget a taint rule; return the same as `put`."""
        return (NO_NODES, False) if self._rules.pop(name, None) is None else self._renewed(self._members)

    def _leave(self, stated: ResourceSlice) -> _PoolKey:
        key = _PoolKey(stated.driver, stated.pool)
        members = self._members[key]
        members.pop(stated.name, None)
        if not members:
            del self._members[key]
        return key

    def _renewed(self, keys: Collection[_PoolKey]) -> tuple[Collection[NodeName], bool]:
        nodes: dict[NodeName, None] = {}
        changes = False
        for key in keys:
            before, now = self._pools.get(key, NO_POOL), self._pool(key)
            if before == now:
                continue
            changes = self._count(now, 1) or changes
            changes = self._count(before, -1) or changes
            for node in before.on:
                self._part(node, key)
            for node in now.on:
                self._on.setdefault(node, {})[key] = None
            self._pools[key] = now
            if not now.on:
                del self._pools[key]
            nodes.update(dict.fromkeys((*before.on, *now.on)))
        return nodes, changes

    def _part(self, node: NodeName, key: _PoolKey) -> None:
        of_node = self._on[node]
        del of_node[key]
        if not of_node:
            del self._on[node]

    def _count(self, pool: _Pool, sign: int) -> bool:
        """Count the models of a pool; return whether one is new or gone, or a node has more of one than any had."""
        changes = False
        for devices in pool.on.values():
            for model, number in Counter(device.model for device in devices).items():
                changes = self.models.use(model, sign * number) or changes
                most = self.largest(model)
                sizes = self._largest.setdefault(model, Counter())
                sizes[number] += sign
                if not sizes[number]:
                    del sizes[number]
                if not sizes:
                    del self._largest[model]
                changes = changes or self.largest(model) != most
        return changes

    def _pool(self, key: _PoolKey) -> _Pool:
        members = [self._slices[name] for name in self._members.get(key, ())]
        newest = max((each.generation for each in members), default=0)
        members = [each for each in members if each.generation == newest]
        stated = [(each, device) for each in members for device in each.devices]
        is_whole = all(each.slices == len(members) and not each.problem for each in members)
        if not is_whole or len({device.name for _, device in stated}) < len(stated):
            return NO_POOL
        counters = tuple(counter for each in members for counter in each.counters)
        on: dict[NodeName, list[PooledDevice]] = {}
        for part, device in stated:
            if node := device.node or part.node:
                on.setdefault(node, []).append(self._device(key, device, counters))
        amounts = {(group, name): amount for group, name, amount in counters}
        return _Pool({node: tuple(devices) for node, devices in on.items()}, amounts)

    def _device(self, key: _PoolKey, stated: SliceDevice, counters: tuple[tuple[str, str, int], ...]) -> PooledDevice:
        groups = {group for group, _, _ in stated.consumes}
        whole = tuple(one for one in counters if one[0] in groups)
        device = DeviceId(key.driver, key.name, stated.name)
        return PooledDevice(
            id=device,
            model=self.models.known(model_of(key.driver, stated, whole)),
            consumes=stated.consumes,
            is_tainted=stated.is_tainted or any(_selects(rule, device) for rule in self._rules.values()),
        )


def _selects(rule: DeviceTaintRule, device: DeviceId) -> bool:
    stated = zip((rule.driver, rule.pool, rule.device), device, strict=True)
    return rule.is_effective and all(wanted in ("", name) for wanted, name in stated)
