"""Checks what the version of Kubernetes and its feature gates mean for Leeboard."""

from collections.abc import AsyncIterator

from app.cli.findings import Finding, broken, ok, warning
from app.kube.reviews import KubeReviews, Version
from app.model.seam import KubeError

OLDEST = Version(1, 30)
TESTED = (Version(1, 34), Version(1, 37))
"""The oldest and the newest version that is tested."""
CLAIMS = "resourceclaims"
CLAIMS_GROUP = "resource.k8s.io"
NATIVE_GROUPS = frozenset({"podgroups", "workloads"})
NATIVE_GROUPS_GROUP = "scheduling.k8s.io"
READ_GROUPS = "scheduling.k8s.io/v1beta1"
NATIVE_GROUPS_GATE = "GenericWorkload"


async def api_server(reviews: KubeReviews) -> AsyncIterator[Finding]:
    """Check whether the API server answers, and whether its version is supported."""
    name, (oldest, newest) = "api-server", TESTED
    try:
        version = await reviews.version()
    except KubeError as error:
        yield broken(name, str(error), "does it run, and is this its kubeconfig? (--kubeconfig)")
        return
    if version < OLDEST:
        yield broken(name, f"Kubernetes {version} is older than {OLDEST}", f"use Kubernetes {oldest} or later")
    elif version < oldest:
        yield warning(name, f"Kubernetes {version} is not tested any more", f"use Kubernetes {oldest} or later")
    elif version > newest:
        message = f"Kubernetes {version} was not tested; the newest that was is {newest}"
        yield warning(name, message, f"use a release of Leeboard that was tested on {version}")
    else:
        yield ok(name, f"Kubernetes {version}, which is supported")


async def claims(reviews: KubeReviews) -> AsyncIterator[Finding]:
    """Tell whether ResourceClaims exist here, and in which versions of their API."""
    found = [version.rpartition("/")[2] for version in await _serving(reviews, CLAIMS_GROUP, frozenset({CLAIMS}))]
    if not found:
        yield ok("dra", "ResourceClaims are not served")
    else:
        yield ok("dra", f"ResourceClaims are served ({', '.join(found)}); the GPUs that they ask for count")


async def native_groups(reviews: KubeReviews) -> AsyncIterator[Finding]:
    """Tell whether pods may be in a PodGroup of Kubernetes, and whether Leeboard reads it.

    The gate of kube-scheduler cannot be read. Pods name such a PodGroup only where the API server has the gate too.
    """
    name = "native-podgroups"
    found = await _serving(reviews, NATIVE_GROUPS_GROUP, NATIVE_GROUPS)
    if not found:
        yield ok(name, f"{NATIVE_GROUPS_GROUP} serves none")
        return
    served = f"served in {', '.join(found)}"
    if READ_GROUPS in found:
        fix = "in the form beside, say whether kube-scheduler has the gate (beside.groupScheduling)"
    else:
        fix = f"turn the feature gate {NATIVE_GROUPS_GATE} off: only {READ_GROUPS} is read, and pods in others wait"
    enabled = await reviews.feature(NATIVE_GROUPS_GATE)
    if enabled is None:
        yield warning(name, f"{served}; cannot tell whether their feature gate is on, in kube-scheduler too", fix)
    elif enabled and READ_GROUPS in found:
        yield ok(name, f"{served}; their pods start as gangs")
    elif enabled:
        yield warning(name, f"{served}; their feature gate is on", fix)
    else:
        yield ok(name, f"{served}, but no pod can name one: the feature gate {NATIVE_GROUPS_GATE} is off")


async def _serving(reviews: KubeReviews, group: str, plurals: frozenset[str]) -> list[str]:
    """Return the versions of an API group that serve one of these kinds, as `group/version`."""
    versions = (await reviews.versions()).get(group, ())
    return [version for version in versions if plurals & await reviews.served(version)]
