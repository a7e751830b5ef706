"""Looks up the owners of a pod, as far as they are known."""

from collections.abc import Sequence

from app.cluster.decode.pods import PRIORITY_CLASS_LABEL
from app.cluster.groups.owners import Owners
from app.cluster.state.cache import ClusterCache
from app.control.groups.owner_kinds import POD_KIND
from app.grouping import first_link
from app.model.names import PodUid
from app.model.owner import Owner, OwnerRef
from app.model.pod import Pod


class PodOwners:
    """The known owners; a pod may be an owner itself. `PodGrouper` follows the owners."""

    def __init__(self, cache: ClusterCache) -> None:
        """Start without owners, except the pods of the cache."""
        self._cache = cache
        self.owners = Owners(self._pod_as_owner)

    def of(self, pod: Pod) -> Sequence[OwnerRef]:
        """Return the owner of a pod and the known owners above it, `LONGEST_WALK` at most."""
        first = pod.origin.owner if pod.origin is not None else None
        if first is None or not first.uid:
            return ()
        above = [owner.ref for owner in self.owners.walk(first, pod.namespace).owners]
        return tuple({each.uid: each for each in (first, *above)}.values())

    def priority_class(self, pod: Pod) -> str:
        """Return the existing priority class that a label of an owner names; empty for none."""
        first = first_link(pod) if pod.origin is not None else None
        owners = self.owners.walk(first, pod.namespace).owners
        # The label of the topmost owner counts for all objects below it.
        named = (owner.labels.get(PRIORITY_CLASS_LABEL, "") for owner in reversed(owners))
        return next((name for name in named if name and self._cache.groups.specs.has_class(name)), "")

    def _pod_as_owner(self, uid: str) -> Owner | None:
        pod = self._cache.pods.get(PodUid(uid))
        if pod is None:
            return None
        ref, origin = OwnerRef(POD_KIND, pod.name, pod.uid), pod.origin
        return Owner(
            ref=ref,
            namespace=pod.namespace,
            labels=origin.labels if origin else {},
            annotations=origin.annotations if origin else {},
            owner=origin.owner if origin else None,
            created_at=pod.created_at,
        )
