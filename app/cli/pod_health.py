"""Checks for pods that no installation change can place, or that kube-scheduler places without asking Leeboard."""

from collections.abc import AsyncIterator, Collection, Sequence

from app.cli.drawing import few
from app.cli.findings import Finding, warning
from app.kube.reviews import KubeReviews
from app.model.marks import ASK_MARKER, GATE
from app.model.seam import RawObject, Resource

PENDING = "status.phase=Pending"
MOST = 5000
"""The most pods that are checked. A fault in a template already shows in its first pods."""
ANEW = "delete them and create them again"


async def pods(reviews: KubeReviews, profiles: Collection[str], markers: Collection[str]) -> AsyncIterator[Finding]:
    """Check whether pending pods have what admission adds. It cannot be added later."""
    orphans: list[str] = []
    unmarked: list[str] = []
    looked_at = 0
    async for pod in reviews.each(Resource.PODS.value, fields=PENDING):
        if looked_at == MOST:
            break
        looked_at += 1
        spec, metadata = pod["spec"], pod["metadata"]
        if spec.get("nodeName") or "deletionTimestamp" in metadata:
            continue
        ours, place = spec.get("schedulerName") in profiles, f"{metadata.get('namespace')}/{metadata.get('name')}"
        if not ours and _is_held(pod):
            orphans.append(place)
        elif ours and ASK_MARKER in markers and not _asks_for(pod, ASK_MARKER):
            unmarked.append(place)
    if orphans:
        names = ", ".join(sorted(profiles))
        message = (
            f"{_counted(orphans)} the gate of Leeboard but not its schedulerName ({names}), so nothing releases them"
        )
        fix = f"if LEEBOARD_PROFILES is {names} where Leeboard runs, {ANEW}"
        yield warning("pods-held", f"{message}: {few(orphans)}", fix)
    if unmarked:
        # A pod may lack the bind marker: kube-scheduler itself binds a pod that is its own group.
        message = f"{_counted(unmarked)} no {ASK_MARKER}, so kube-scheduler does not ask Leeboard"
        yield warning("pods-unmarked", f"{message}: {few(unmarked)}", ANEW)


def _is_held(pod: RawObject) -> bool:
    return any(gate["name"] == GATE for gate in pod["spec"].get("schedulingGates") or ())


def _asks_for(pod: RawObject, marker: str) -> bool:
    return any(marker in (each.get("resources", {}).get("requests") or {}) for each in pod["spec"]["containers"])


def _counted(found: Sequence[str]) -> str:
    return f"{len(found)} pods have" if len(found) > 1 else "1 pod has"
