"""Defines for each watched kind how its objects become records, and how records are added to the cache and removed."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from app.cluster import decode
from app.cluster.dra.device_claims import Listing
from app.cluster.state.cache import ClusterCache
from app.control.groups.pod_grouper import PodGrouper
from app.control.informers.pod_kind import PodKind
from app.model.device import GpuNode
from app.model.dra import ClaimKey, DeviceClaim, DeviceClass, DeviceTaintRule, ResourceSlice
from app.model.names import NATIVE_API, GroupKey, NodeName, QueueName
from app.model.node import Node
from app.model.podgroup import GroupSpec
from app.model.priority import PriorityClass
from app.model.queue import Queue
from app.model.seam import RawObject, Resource
from app.model.topology import Topology

R = TypeVar("R")
K = TypeVar("K")


class WatchedKind(Protocol[R, K]):
    """One watched kind: its objects are first reduced to records, then applied."""

    def decode(self, raw: RawObject) -> R:
        """Decode an object."""
        ...

    def least(self, raw: RawObject) -> R:
        """Read the required fields of an object on which `decode` has failed; may raise as well."""
        ...

    def key(self, record: R) -> K:
        """Return the key of an object."""
        ...

    def former_key(self, record: R) -> K | None:
        """Return the key that an object may have had before; None when its key never changes."""
        ...

    def apply(self, record: R) -> None:
        """Add a record to the cache."""
        ...

    def forget(self, key: K) -> None:
        """Remove an object from the cache."""
        ...

    def fail(self, key: K) -> None:
        """After `apply` has failed, block what the cache may now show as too free."""
        ...

    def note_first_list(self) -> None:
        """Note that all existing objects of the kind have been applied for the first time."""
        ...


class _Kind(Generic[R, K]):
    """Defaults of most kinds: only the cache uses them."""

    def __init__(self, cache: ClusterCache) -> None:
        self._cache = cache

    def former_key(self, record: R) -> K | None:
        del record
        return None

    def fail(self, key: K) -> None:
        """Do nothing: objects of most kinds hold no resources."""

    def note_first_list(self) -> None:
        """Do nothing: most kinds need no complete first list."""


class _Nodes(_Kind[Node, NodeName]):
    """Nodes."""

    def decode(self, raw: RawObject) -> Node:
        return decode.node(raw)

    def least(self, raw: RawObject) -> Node:
        name = NodeName(decode.name_of(raw))
        return replace(self._cache.nodes.shown(name) or Node(name=name), problem=decode.LEAST)

    def key(self, record: Node) -> NodeName:
        return record.name

    def apply(self, record: Node) -> None:
        self._cache.apply_node(record)

    def forget(self, key: NodeName) -> None:
        self._cache.delete_node(key)

    def fail(self, key: NodeName) -> None:
        self._cache.fail_node(key)


class _Queues(_Kind[Queue, QueueName]):
    """Queues."""

    def decode(self, raw: RawObject) -> Queue:
        return decode.queue(raw)

    def least(self, raw: RawObject) -> Queue:
        name = QueueName(decode.name_of(raw))
        return replace(self._cache.queues.tree().get(name) or Queue(name=name), problem=decode.LEAST)

    def key(self, record: Queue) -> QueueName:
        return record.name

    def apply(self, record: Queue) -> None:
        self._cache.apply_queue(record)

    def forget(self, key: QueueName) -> None:
        self._cache.delete_queue(key)


class _PriorityClasses(_Kind[PriorityClass, str]):
    """PriorityClasses."""

    def decode(self, raw: RawObject) -> PriorityClass:
        return decode.priority_class(raw)

    def least(self, raw: RawObject) -> PriorityClass:
        return PriorityClass(name=decode.name_of(raw), value=0, problem=decode.LEAST)

    def key(self, record: PriorityClass) -> str:
        return record.name

    def apply(self, record: PriorityClass) -> None:
        self._cache.apply_class(record)

    def forget(self, key: str) -> None:
        self._cache.delete_class(key)


class _Topologies(_Kind[Topology, str]):
    """Topologies: pods that need a topology wait until all are listed."""

    def decode(self, raw: RawObject) -> Topology:
        return decode.topology(raw)

    def least(self, raw: RawObject) -> Topology:
        return Topology(name=decode.name_of(raw), levels=(), problem=decode.LEAST)

    def key(self, record: Topology) -> str:
        return record.name

    def apply(self, record: Topology) -> None:
        self._cache.topologies.apply(record)

    def forget(self, key: str) -> None:
        self._cache.topologies.delete(key)

    def note_first_list(self) -> None:
        self._cache.topologies.trust()


class _GpuNodes(_Kind[GpuNode, NodeName]):
    """GpuNodes, in which the agents report the GPUs of their nodes."""

    def __init__(self, cache: ClusterCache, *, clock: Callable[[], float]) -> None:
        super().__init__(cache)
        self._clock = clock

    def decode(self, raw: RawObject) -> GpuNode:
        return decode.gpu_node(raw)

    def least(self, raw: RawObject) -> GpuNode:
        return GpuNode(name=NodeName(decode.name_of(raw)), problem=decode.LEAST)

    def key(self, record: GpuNode) -> NodeName:
        return record.name

    def apply(self, record: GpuNode) -> None:
        self._cache.apply_gpu_node(record, heard_at=self._clock())

    def forget(self, key: NodeName) -> None:
        self._cache.delete_gpu_node(key)

    def fail(self, key: NodeName) -> None:
        self._cache.fail_gpu_node(key)


class _PodGroups(_Kind[GroupSpec, GroupKey]):
    """PodGroups, both those that Leeboard writes and those of other clients."""

    api = ""

    def __init__(self, cache: ClusterCache, grouper: PodGrouper, *, asks_owners: bool) -> None:
        super().__init__(cache)
        self._grouper = grouper
        self._asks_owners = asks_owners

    def decode(self, raw: RawObject) -> GroupSpec:
        return decode.pod_group(raw)

    def least(self, raw: RawObject) -> GroupSpec:
        key = GroupKey(decode.namespace_of(raw), decode.name_of(raw), self.api)
        return replace(self._cache.groups.specs.object(key) or GroupSpec(key=key), problem=decode.LEAST)

    def key(self, record: GroupSpec) -> GroupKey:
        return record.key

    def apply(self, record: GroupSpec) -> None:
        self._cache.apply_group(self._grouper.settle_object(record) if self._asks_owners else record)

    def forget(self, key: GroupKey) -> None:
        self._cache.delete_group(key)
        self._grouper.note_object_gone(key)


class _ResourceClaims(_Kind[DeviceClaim, ClaimKey]):
    """ResourceClaims: pods that name claims wait until all are listed."""

    def decode(self, raw: RawObject) -> DeviceClaim:
        return decode.resource_claim(raw)

    def least(self, raw: RawObject) -> DeviceClaim:
        key = ClaimKey(decode.namespace_of(raw), decode.name_of(raw))
        if not key.namespace:
            raise decode.DecodeError("the object has no metadata.namespace")
        return replace(self._cache.claims.claim(key) or DeviceClaim(key=key), problem=decode.LEAST)

    def key(self, record: DeviceClaim) -> ClaimKey:
        return record.key

    def apply(self, record: DeviceClaim) -> None:
        self._cache.follow_claims(self._cache.claims.put_claim(record))

    def forget(self, key: ClaimKey) -> None:
        self._cache.follow_claims(self._cache.claims.drop_claim(key))

    def note_first_list(self) -> None:
        self._cache.follow_claims(self._cache.claims.trust(Listing.CLAIMS))


class _DeviceClasses(_Kind[DeviceClass, str]):
    """DeviceClasses."""

    def decode(self, raw: RawObject) -> DeviceClass:
        return decode.device_class(raw)

    def least(self, raw: RawObject) -> DeviceClass:
        return DeviceClass(name=decode.name_of(raw), problem=decode.LEAST)

    def key(self, record: DeviceClass) -> str:
        return record.name

    def apply(self, record: DeviceClass) -> None:
        self._cache.follow_claims(self._cache.claims.put_class(record))

    def forget(self, key: str) -> None:
        self._cache.follow_claims(self._cache.claims.drop_class(key))

    def note_first_list(self) -> None:
        self._cache.follow_claims(self._cache.claims.trust(Listing.CLASSES))


class _ResourceSlices(_Kind[ResourceSlice, str]):
    """ResourceSlices: one that cannot be read makes its pool offer nothing."""

    def decode(self, raw: RawObject) -> ResourceSlice:
        return decode.resource_slice(raw)

    def least(self, raw: RawObject) -> ResourceSlice:
        return ResourceSlice(name=decode.name_of(raw), problem=decode.LEAST)

    def key(self, record: ResourceSlice) -> str:
        return record.name

    def apply(self, record: ResourceSlice) -> None:
        self._cache.follow_claims(self._cache.claims.put_slice(record))

    def forget(self, key: str) -> None:
        self._cache.follow_claims(self._cache.claims.drop_slice(key))

    def note_first_list(self) -> None:
        self._cache.follow_claims(self._cache.claims.trust(Listing.SLICES))


class _DeviceTaintRules(_Kind[DeviceTaintRule, str]):
    """DeviceTaintRules: one that cannot be read taints every device."""

    def decode(self, raw: RawObject) -> DeviceTaintRule:
        return decode.device_taint_rule(raw)

    def least(self, raw: RawObject) -> DeviceTaintRule:
        return DeviceTaintRule(name=decode.name_of(raw), problem=decode.LEAST)

    def key(self, record: DeviceTaintRule) -> str:
        return record.name

    def apply(self, record: DeviceTaintRule) -> None:
        self._cache.follow_claims(self._cache.claims.put_rule(record))

    def forget(self, key: str) -> None:
        self._cache.follow_claims(self._cache.claims.drop_rule(key))


class _NativePodGroups(_PodGroups):
    """Kubernetes' own PodGroups, which Leeboard never creates."""

    api = NATIVE_API

    def decode(self, raw: RawObject) -> GroupSpec:
        return decode.native_pod_group(raw)


def kinds_of(
    cache: ClusterCache, grouper: PodGrouper, pods: PodKind, *, clock: Callable[[], float]
) -> Mapping[Resource, WatchedKind[Any, Any]]:
    """Return every watched kind; `clock` is monotonic."""
    asks_owners = pods.keeps.is_on
    return {
        Resource.NODES: _Nodes(cache),
        Resource.QUEUES: _Queues(cache),
        Resource.PRIORITY_CLASSES: _PriorityClasses(cache),
        Resource.POD_GROUPS: _PodGroups(cache, grouper, asks_owners=asks_owners),
        Resource.NATIVE_POD_GROUPS: _NativePodGroups(cache, grouper, asks_owners=asks_owners),
        Resource.TOPOLOGIES: _Topologies(cache),
        Resource.GPU_NODES: _GpuNodes(cache, clock=clock),
        Resource.DEVICE_CLASSES: _DeviceClasses(cache),
        Resource.RESOURCE_SLICES: _ResourceSlices(cache),
        Resource.DEVICE_TAINT_RULES: _DeviceTaintRules(cache),
        Resource.RESOURCE_CLAIMS: _ResourceClaims(cache),
        Resource.PODS: pods,
    }
