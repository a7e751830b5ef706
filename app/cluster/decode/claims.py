"""Finds a ResourceClaim of a pod that does not exist yet, by the rule of kube-scheduler (`resourceclaim.Name`)."""

from app.cluster.decode.parts import items
from app.cluster.decode.reading import Fields
from app.model.quantity import shown


def missing_claim(spec: Fields, status: Fields) -> str:
    """Return the first claim that must still be created from a template, in words; empty when there is none.

    The pod's status names each created claim. kube-scheduler does not queue the pod before all claims are there.
    """
    wanted = items(spec, "resourceClaims")
    if not wanted:
        return ""
    made = {str(each.get("name")) for each in items(status, "resourceClaimStatuses")}
    for claim in wanted:
        name, template = str(claim.get("name")), claim.get("resourceClaimTemplateName")
        if template and not claim.get("resourceClaimName") and name not in made:
            return f"{shown(name)} (from ResourceClaimTemplate {shown(template)})"
    return ""
