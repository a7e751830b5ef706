"""Examines what Leeboard stands on: the API server, our rights, the kinds it serves, GPU nodes, other schedulers."""

from collections.abc import AsyncIterator, Sequence

from app.cli.findings import TELL_THE_FORM, Finding, broken, few, ok, warning
from app.kube.reviews import Reviews, Version
from app.model.rights import ASKING, Right
from app.model.seam import ForbiddenError, KubeError, RawObject, Resource

OLDEST = Version(1, 30)
WITH_POLICIES = Version(1, 36)
"""From here on the API server itself can hold pods, whether we run or not."""

GPU = "nvidia.com/gpu"
GPU_NODES = "apis/leeboard.dev/v1alpha1/gpunodes"
LEASES = "apis/coordination.k8s.io/v1/leases"
USUAL_LEASE = "leeboard-scheduler"
SEVERAL = 2


async def api_server(reviews: Reviews) -> AsyncIterator[Finding]:
    """See whether it answers, and whether its version is one we know."""
    try:
        version = await reviews.version()
    except KubeError as error:
        yield broken("api-server", str(error), "does it run, and do these credentials lead to it? (--kubeconfig)")
        return
    if version < OLDEST:
        yield broken("api-server", f"Kubernetes {version} is older than {OLDEST}", f"use Kubernetes {OLDEST} or later")
    elif version < WITH_POLICIES:
        yield ok("api-server", f"Kubernetes {version}; before {WITH_POLICIES} only our webhook can hold pods")
    else:
        yield ok("api-server", f"Kubernetes {version}, which has admission policies")


async def rights(
    reviews: Reviews, needed: Sequence[Right], account: str | None, *, form_is_known: bool
) -> AsyncIterator[Finding]:
    """See whether everything is granted that these settings need: to us, or to the service account named.

    Where the form of the installation is not known, that is what every form needs.
    """
    whose = f"service account {account}" if account else "our own account"
    missing = await _missing(reviews, needed, account)
    if not missing and form_is_known:
        yield ok("rights", f"all {len(needed)} are granted to {whose}")
    elif not missing:
        message = f"only the {len(needed)} that every form needs were examined, and are granted to {whose}"
        yield warning("rights", message, TELL_THE_FORM)
    for right in missing:
        yield broken("rights", f"{whose} {right.sentence}", "apply the roles that are shipped with Leeboard")


async def _missing(reviews: Reviews, needed: Sequence[Right], account: str | None) -> list[Right]:
    if account:
        return [right for right in needed if not await reviews.allows_account(right, account)]
    try:
        return [right for right in needed if not await reviews.allows(right)]
    except ForbiddenError:
        return [ASKING]


async def kinds(reviews: Reviews) -> AsyncIterator[Finding]:
    """See whether the API server serves what we read, in the versions in which we read it."""
    wanted = [resource.value.removeprefix("apis/") for resource in Resource if resource.value.startswith("apis/")]
    absent = []
    for path in wanted:
        version, _, plural = path.rpartition("/")
        if plural not in await reviews.served(version):
            absent.append(f"{plural} in {version}")
    if absent:
        fix = "apply deploy/leeboard/files/crds; a version not served is that of a newer KAI Scheduler"
        yield broken("kinds", f"not served: {', '.join(absent)}", fix)
    else:
        yield ok("kinds", f"all {len(wanted)} are served in the versions that are read")


async def gpus(reviews: Reviews) -> AsyncIterator[Finding]:
    """See which nodes have GPUs, and on which of them an agent tells more of these."""
    nodes = {_name(node) for node in await reviews.objects(Resource.NODES.value) if _has_gpus(node)}
    if not nodes:
        yield warning("gpus", f"no node offers {GPU}", "install the device plugin on the GPU nodes")
        return
    told = {_name(each) for each in await reviews.objects(GPU_NODES)}
    silent = nodes - told
    if not told:
        yield ok("gpus", f"{len(nodes)} nodes have GPUs; no agents: whole GPUs work from node labels")
    elif silent:
        message = f"no agent has told of {len(silent)} of {len(nodes)} GPU nodes: {few(silent)}"
        yield warning("gpus", message, "look at the agent's pods there; whole GPUs work from labels meanwhile")
    else:
        yield ok("gpus", f"{len(nodes)} nodes have GPUs, and agents tell of all of them")


async def schedulers(reviews: Reviews, lease: str) -> AsyncIterator[Finding]:
    """See whether somebody else may schedule the same pods; who may not look sees nothing, and nothing is said."""
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


def _has_gpus(node: RawObject) -> bool:
    amount = node.get("status", {}).get("allocatable", {}).get(GPU, "0")
    return str(amount) != "0"


def _name(item: RawObject) -> str:
    return str(item.get("metadata", {}).get("name"))


def _place(item: RawObject) -> str:
    return f"{item.get('metadata', {}).get('namespace')}/{_name(item)}"
