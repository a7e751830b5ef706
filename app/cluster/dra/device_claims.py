"""Joins claims, devices and pods: what the claims of a pod demand, and which devices each node has for claims.

A claim without an allocation is charged with the reservation of its pod. kube-scheduler allocates it before the pod is
bound. From then on the claim holds the devices: the node shows fewer of them until the pod is bound there and charged,
and again from the end of the pod until the claim is released.
"""

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from heapq import nsmallest
from typing import Any

from app.cluster.decode.demand import GPU_RESOURCE
from app.cluster.dra.demands import ClaimDemands
from app.cluster.dra.device_models import DeviceDemand
from app.cluster.dra.device_uses import device_uses
from app.cluster.dra.node_devices import counted
from app.cluster.dra.pod_demands import resolved
from app.cluster.dra.pools import DevicePools
from app.model.dra import ClaimKey, DeviceClaim, DeviceClass, DeviceTaintRule, ResourceSlice
from app.model.explanation import ClaimNeed
from app.model.names import NodeName, PodUid
from app.model.node import NO_DEVICES, NodeDevices
from app.model.occupancy import ClaimDevice
from app.model.pod import Pod
from app.model.resources import Scalars

MOST_MADE = 64
"""Claims that name one pod as their owner. Further ones count as if the pod were not known."""

PODS_SHOWN = 32
"""Of one claim."""


class Listing(Enum):
    """The kinds without which it is not known what a claim costs."""

    CLAIMS = "claims"
    CLASSES = "classes"
    SLICES = "slices"


@dataclass(frozen=True, slots=True)
class Followed:
    """What a change of claims or devices affects."""

    nodes: Collection[NodeName] = ()
    """Their devices are to be counted again."""
    claims: Collection[ClaimKey] = ()
    """They are to be charged again."""
    pods: Collection[PodUid] = ()
    """Their claims are to be resolved again."""
    has_other_names: bool = False
    """Other extended resources stand for classes."""


class DeviceClaims:
    """All claims, classes and pools. Only `ClusterCache` calls the methods that change them."""

    def __init__(self) -> None:
        """Start without objects."""
        self.pools = DevicePools()
        self._demands = ClaimDemands(self.pools)
        self._claims: dict[ClaimKey, DeviceClaim] = {}
        self._held: dict[NodeName, dict[ClaimKey, None]] = {}
        """Allocated claims by the node of their devices."""
        self._made_for: dict[PodUid, dict[ClaimKey, None]] = {}
        """Claims by the pod for which they were created."""
        self._users: dict[ClaimKey, dict[PodUid, None]] = {}
        """Pods by the claims that they name, or that were created for them."""
        self._keys: dict[PodUid, tuple[ClaimKey, ...]] = {}
        self._pods: dict[PodUid, Pod] = {}
        """The pods that need devices of claims, as the watch shows them."""
        self._by_name: dict[PodUid, Scalars] = {}
        """What those of them ask for by the names of extended resources."""
        self._shared: dict[ClaimKey, NodeName] = {}
        """The nodes of the allocated claims that no pod alone owns. Every snapshot reads all of them."""
        self._unlisted: dict[Listing, None] = {}
        """The kinds that are not listed yet."""

    # Queries ----------------------------------------------------------------------------------------------------------

    def claim(self, key: ClaimKey) -> DeviceClaim | None:
        """Return a claim."""
        return self._claims.get(key)

    def concerns(self, pod: Pod) -> bool:
        """Return whether claims or classes matter for a pod, or did."""
        if pod.claim_names or pod.uid in self._pods or pod.uid in self._made_for:
            return True
        return bool(pod.scalars) and self._demands.names_class(pod.scalars)

    def as_shown(self, uid: PodUid) -> Pod | None:
        """Return a pod that needs claims as the watch shows it; None for other pods."""
        return self._pods.get(uid)

    def resolved(self, pod: Pod) -> Pod:
        """Return a pod, as the watch shows it, with what its claims and its resources of DRA demand."""
        return resolved(pod, self._claims.get, self._demands, are_listed=not self._unlisted)

    def devices(self, node: NodeName) -> NodeDevices:
        """Count the devices of a node that claims can get."""
        if self.pools.is_empty():
            return NO_DEVICES
        held = (self._claims[key] for key in self._held.get(node, ()))
        return counted(node, self.pools, held, self._demands)

    def uses(self, node: NodeName) -> tuple[ClaimDevice, ...]:
        """Return the GPUs of a node that claims can get, with the claims and pods that hold them."""
        held = ((self._claims[key], self.pods_of(key)) for key in self._held.get(node, ()))
        return device_uses(node, self.pools, held)

    def pods_of(self, key: ClaimKey) -> list[str]:
        """Return the names of the first pods with a node that use a claim."""
        names = (pod.name for uid in self._users.get(key, ()) if (pod := self._pods[uid]).node is not None)
        return nsmallest(PODS_SHOWN, names)

    def needs(self, pod: Pod) -> Iterator[ClaimNeed]:
        """Yield what the claims of a pod ask for, as their author wrote it."""
        for name in dict.fromkeys(pod.claim_names):
            claim = self._claims.get(ClaimKey(pod.namespace, name))
            if claim is None:
                yield ClaimNeed(name=name, problem="it does not exist")
                continue
            asked = [one for each in claim.requests for one in each.alternatives or (each,)]
            yield ClaimNeed(
                name=name,
                classes=tuple(dict.fromkeys(one.device_class for one in asked)),
                gpu_milli=self._demands.of(claim).cost_milli,
                node=claim.node if claim.allocated is not None else None,
                is_shared=claim.owner != pod.uid,
                problem=claim.problem,
            )

    def shared(self) -> Mapping[ClaimKey, NodeName]:
        """Return the allocated claims that several pods may use, each with its node."""
        return self._shared

    def is_allocated(self, key: ClaimKey) -> bool:
        """Return whether a claim has its devices."""
        claim = self._claims.get(key)
        return claim is not None and claim.allocated is not None

    def is_leaving(self, key: ClaimKey) -> bool:
        """Return whether every pod that uses a claim is being deleted; then the claim is released soon."""
        return all(self._pods[uid].deleting for uid in self._users.get(key, ()))

    def is_charged_to_owner(self, claim: DeviceClaim, node: NodeName | None) -> bool:
        """Return whether the pod for which a claim was created is charged with its devices, on this node."""
        owner = None if claim.owner is None else self._pods.get(claim.owner)
        if owner is None or owner.namespace != claim.key.namespace:
            return False
        if claim.key.name in owner.claim_names:
            return owner.node is not None and owner.node == node
        # For an extended resource the containers are charged, unless a pod makes use of the claim by its name.
        return claim.for_extended_resource and self._users.get(claim.key, {}).keys() == {owner.uid}

    def held_by(self, claim: DeviceClaim) -> DeviceDemand:
        """Return what a claim demands of its node."""
        return self._demands.of(claim)

    # Pods -------------------------------------------------------------------------------------------------------------

    def put_pod(self, pod: Pod) -> Collection[ClaimKey]:
        """Store a pod, as the watch shows it; return the claims that are to be charged again."""
        named = (ClaimKey(pod.namespace, name) for name in pod.claim_names)
        made = (key for key in self._made_for.get(pod.uid, ()) if key.namespace == pod.namespace)
        keys = tuple(dict.fromkeys((*named, *made)))
        before = self._pods.get(pod.uid)
        known = self._keys.get(pod.uid, ())
        self._pods[pod.uid] = pod
        if pod.scalars:
            self._by_name[pod.uid] = pod.scalars
        else:
            self._by_name.pop(pod.uid, None)
        if known != keys:
            self._forget_user(pod.uid)
            self._keys[pod.uid] = keys
            for key in keys:
                self._users.setdefault(key, {})[pod.uid] = None
        is_other = before is None or (before.node, before.deleting) != (pod.node, pod.deleting)
        return dict.fromkeys((*known, *keys)) if is_other or known != keys else ()

    def drop_pod(self, uid: PodUid) -> Collection[ClaimKey]:
        """Forget a pod; return the claims that are to be charged again."""
        if self._pods.pop(uid, None) is None:
            return ()
        self._by_name.pop(uid, None)
        keys = self._keys.get(uid, ())
        self._forget_user(uid)
        return keys

    def _forget_user(self, uid: PodUid) -> None:
        for key in self._keys.pop(uid, ()):
            _remove(self._users, key, uid)

    # Objects ----------------------------------------------------------------------------------------------------------

    def put_claim(self, claim: DeviceClaim) -> Followed:
        """Store a claim."""
        before = self._claims.get(claim.key)
        if claim.is_allocation_unread and before is not None:
            claim = replace(claim, allocated=before.allocated, node=before.node)
        return Followed() if before == claim else self._replaced(claim.key, before, claim)

    def drop_claim(self, key: ClaimKey) -> Followed:
        """Forget a claim, which holds nothing any more."""
        before = self._claims.get(key)
        return Followed() if before is None else self._replaced(key, before, None)

    def _replaced(self, key: ClaimKey, before: DeviceClaim | None, now: DeviceClaim | None) -> Followed:
        self._demands.forget(key)
        pods: dict[PodUid, None] = dict.fromkeys(self._users.get(key, ()))
        for claim in (before, now):
            if claim is not None and claim.owner is not None:
                pods[claim.owner] = None
        if before is not None:
            _remove(self._held, before.node, key)
            _remove(self._made_for, before.owner, key)
            self._shared.pop(key, None)
            del self._claims[key]
        if now is not None:
            self._claims[key] = now
            if now.allocated is not None and now.node is not None:
                self._held.setdefault(now.node, {})[key] = None
            if now.owner is None:
                if now.node is not None:
                    self._shared[key] = now.node
            elif len(made := self._made_for.setdefault(now.owner, {})) < MOST_MADE:
                made[key] = None
        nodes = dict.fromkeys(one.node for one in (before, now) if one is not None and one.node is not None)
        return Followed(nodes, (key,), pods)

    def put_class(self, stated: DeviceClass) -> Followed:
        """Store a class."""
        return self._after_class(stated.name, self._demands.names, has_changed=self._demands.put_class(stated))

    def drop_class(self, name: str) -> Followed:
        """Forget a class."""
        return self._after_class(name, self._demands.names, has_changed=self._demands.drop_class(name))

    def _after_class(self, name: str, before: Mapping[str, str], *, has_changed: bool) -> Followed:
        if not has_changed:
            return Followed()
        now = self._demands.names
        gives_gpus = name in {before.get(GPU_RESOURCE), now.get(GPU_RESOURCE)}
        claims, pods = self._rejudged()
        by_name = self._by_name if before != now else ()
        return Followed(
            nodes=self.pools.nodes() if gives_gpus else (),
            claims=claims,
            pods=dict.fromkeys((*pods, *by_name)),
            has_other_names=before != now,
        )

    def put_slice(self, stated: ResourceSlice) -> Followed:
        """Store a slice."""
        return self._after(self.pools.put(stated))

    def drop_slice(self, name: str) -> Followed:
        """Forget a slice."""
        return self._after(self.pools.drop(name))

    def put_rule(self, rule: DeviceTaintRule) -> Followed:
        """Store a taint rule."""
        return self._after(self.pools.put_rule(rule))

    def drop_rule(self, name: str) -> Followed:
        """Forget a taint rule."""
        return self._after(self.pools.drop_rule(name))

    def doubt(self) -> None:
        """Let pods with claims wait until `trust` was called for each kind."""
        self._unlisted = dict.fromkeys(Listing)

    def trust(self, kind: Listing) -> Followed:
        """Note that all objects of a kind are listed."""
        self._unlisted.pop(kind, None)
        return Followed() if self._unlisted else Followed(pods=tuple(self._pods))

    def _after(self, changed: tuple[Collection[NodeName], bool]) -> Followed:
        nodes, has_other_models = changed
        held = [key for node in nodes for key in self._held.get(node, ())]
        keys = [key for key in held if self._demands.has_changed(self._claims[key])]
        claims, pods = self._rejudged() if has_other_models else ((), ())
        return Followed(nodes, (*keys, *claims), dict.fromkeys((*self._using(keys), *pods)))

    def _rejudged(self) -> tuple[Collection[ClaimKey], Collection[PodUid]]:
        """Return the unallocated claims, and the pods, whose demand is another one: classes or models have changed."""
        keys = self._demands.rejudge(self._claims)
        by_name = (uid for uid, scalars in self._by_name.items() if self._demands.have_changed(scalars))
        return keys, dict.fromkeys((*self._using(keys), *by_name))

    def _using(self, keys: Iterable[ClaimKey]) -> Iterator[PodUid]:
        return (uid for key in keys for uid in self._users.get(key, ()))


def _remove(index: dict[Any, dict[Any, None]], at: Hashable, member: Hashable) -> None:
    """Remove a member of a group, and the group with its last member; either may be unknown."""
    members = index.get(at, {})
    members.pop(member, None)
    if not members:
        index.pop(at, None)
