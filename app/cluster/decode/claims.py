"""Finds the ResourceClaims of a pod, and one that does not exist yet, as kube-scheduler does (`resourceclaim.Name`)."""

from app.cluster.decode.parts import items
from app.cluster.decode.reading import LONGEST_NAME, Fields
from app.model.quantity import shown

MOST_CLAIMS = 32
"""Of one pod; the API server accepts no more."""


def claims_of(spec: Fields, status: Fields) -> tuple[tuple[str, ...], str]:
    """Return the names of a pod's claims, and the first claim that must still be created from a template, in words.

    The pod's status names each created claim, or says that none is needed. kube-scheduler does not queue the pod before
    all claims are there.
    """
    wanted = items(spec, "resourceClaims")
    if not wanted:
        return (), ""
    made = {str(each.get("name")): each.get("resourceClaimName") for each in items(status, "resourceClaimStatuses")}
    names: dict[str, None] = {}
    lacks = ""
    for claim in wanted[:MOST_CLAIMS]:
        entry, template = str(claim.get("name")), claim.get("resourceClaimTemplateName")
        name = claim.get("resourceClaimName")
        if template and not name:
            if entry not in made:
                lacks = lacks or f"{shown(entry)} (from ResourceClaimTemplate {shown(template)})"
            name = made.get(entry)
        if isinstance(name, str) and 0 < len(name) <= LONGEST_NAME:
            names[name] = None
    return tuple(names), lacks
