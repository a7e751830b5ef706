"""Checks the objects that users write for Leeboard, and reports those that cannot be used."""

from collections.abc import AsyncIterator, Callable

from app.cli.drawing import few
from app.cli.findings import Finding, warning
from app.cluster import decode
from app.kube.reviews import KubeReviews
from app.model.seam import RawObject, Resource

MOST = 5000
"""The most objects of one kind that are checked."""
SHOWN = 3


async def objects(reviews: KubeReviews) -> AsyncIterator[Finding]:
    """Check PodGroups and Topologies. The service itself reports unusable queues."""
    for name, resource, problem_of in (
        ("podgroups", Resource.POD_GROUPS, lambda raw: decode.pod_group(raw).problem),
        ("topologies", Resource.TOPOLOGIES, lambda raw: decode.topology(raw).problem),
    ):
        problems = [each async for each in _problems(reviews, resource, problem_of)]
        if problems:
            fix = f"correct these objects: kubectl edit {name}; their pods wait until then"
            yield warning(name, f"{len(problems)} cannot be used: {few(problems, SHOWN)}", fix)


async def _problems(
    reviews: KubeReviews, resource: Resource, problem_of: Callable[[RawObject], str]
) -> AsyncIterator[str]:
    looked_at = 0
    async for raw in reviews.each(resource.value):
        looked_at += 1
        if looked_at > MOST:
            return
        problem = problem_of(raw)
        if problem:
            yield f"{_place(raw)} ({problem.rstrip('.')})"


def _place(raw: RawObject) -> str:
    metadata = raw.get("metadata", {})
    return "/".join(filter(None, [str(metadata.get("namespace") or ""), str(metadata.get("name"))]))
