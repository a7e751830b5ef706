"""Checks the environment of Leeboard: rights, served kinds, and other schedulers."""

from collections.abc import AsyncIterator, Collection, Sequence

from app.cli.drawing import few
from app.cli.findings import Finding, broken, ok, warning
from app.control.leadership.freshness import UNSERVED
from app.kube.reviews import KubeReviews
from app.model.rights import ASKING, Right
from app.model.seam import ForbiddenError, RawObject, Resource

LEASES = "apis/coordination.k8s.io/v1/leases"
USUAL_LEASE = "leeboard-scheduler"
SEVERAL = 2


async def rights(
    reviews: KubeReviews, needed: Sequence[Right], account: str | None, *, form_is_known: bool
) -> AsyncIterator[Finding]:
    """Check whether all rights that these settings need are granted to the caller or to the named service account.

    When the form of the installation is unknown, these are the rights that every form needs.
    """
    whose = f"service account {account}" if account else "this account"
    missing = await _missing(reviews, needed, account)
    if not missing and form_is_known:
        yield ok("rights", f"all {len(needed)} are granted to {whose}")
    elif not missing:
        # Not a warning: a caller outside the cluster, as with `make cluster`, may have no Deployment to look at.
        every = f"the {len(needed)} that every form needs are granted to {whose}"
        yield ok(
            "rights", f"those of optional parts were not checked (set LEEBOARD_... as the service has them); {every}"
        )
    for right in missing:
        yield broken("rights", f"{whose} {right.sentence}", "apply the roles that are shipped with Leeboard")


async def owners(reviews: KubeReviews, readable: Sequence[Right], account: str | None) -> AsyncIterator[Finding]:
    """Check whether the owners of pods are readable, as far as their kinds are installed."""
    served = await _served(reviews, {right.group for right in readable})
    installed = [right for right in readable if (right.group, right.resource) in served]
    missing = {f"{right.resource}.{right.group}" for right in await _missing(reviews, installed, account)}
    if missing - {f"{ASKING.resource}.{ASKING.group}"}:
        message = f"{few(missing)} may not be read, so pods are grouped as if these kinds owned none of them"
        fix = "apply the roles that are shipped with Leeboard; or set LEEBOARD_POD_GROUPING=false"
        yield warning("owners", message, fix)


async def _served(reviews: KubeReviews, groups: Collection[str]) -> set[tuple[str, str]]:
    """Return the served resources of these API groups, as group and plural."""
    versions = [(group, each) for group, of in (await reviews.versions()).items() if group in groups for each in of]
    return {(group, plural) for group, version in versions for plural in await reviews.served(version)}


async def _missing(reviews: KubeReviews, needed: Sequence[Right], account: str | None) -> list[Right]:
    if account:
        return [right for right in needed if not await reviews.allows_account(right, account)]
    try:
        return [right for right in needed if not await reviews.allows(right)]
    except ForbiddenError:
        return [ASKING]


async def kinds(reviews: KubeReviews) -> AsyncIterator[Finding]:
    """Check whether the API server serves all kinds that are read, in the versions that are read."""
    needed = [resource.value for resource in Resource if resource not in UNSERVED]
    wanted = [path.removeprefix("apis/") for path in needed if path.startswith("apis/")]
    absent = []
    for path in wanted:
        version, _, plural = path.rpartition("/")
        if plural not in await reviews.served(version):
            absent.append(f"{plural} in {version}")
    if absent:
        fix = "apply deploy/leeboard/files/crds; a version that is not served belongs to a newer KAI Scheduler"
        yield broken("kinds", f"not served: {', '.join(absent)}", fix)
    else:
        yield ok("kinds", f"all {len(wanted)} are served in the versions that are read")


async def schedulers(reviews: KubeReviews, lease: str) -> AsyncIterator[Finding]:
    """Check whether another scheduler may schedule the same pods. Without the right to list Leases, report nothing."""
    name = lease.rpartition("/")[2] or USUAL_LEASE
    try:
        leases = await reviews.objects(LEASES)
    except ForbiddenError:
        return
    ours = [_place(each) for each in leases if _name(each) == name]
    kai = [_place(each) for each in leases if _name(each).startswith("kai-scheduler")]
    if len(ours) >= SEVERAL:
        yield warning("schedulers", f"there are several Leeboards: leases {few(ours)}", "remove all but one")
    if kai:
        fix = "remove it, or give one of them another schedulerName (LEEBOARD_PROFILES)"
        yield warning("schedulers", f"KAI Scheduler seems to run here too: leases {few(kai)}", fix)


def _name(item: RawObject) -> str:
    return str(item.get("metadata", {}).get("name"))


def _place(item: RawObject) -> str:
    return f"{item.get('metadata', {}).get('namespace')}/{_name(item)}"
