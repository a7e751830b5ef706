"""Tells what a pod asks for with its claims, and with the extended resources that stand for classes.

A claim of the pod alone is a part of what the pod requests. A claim that it shares is kept apart: its devices are taken
once, and each queue pays for it once.
"""

from collections.abc import Callable
from dataclasses import replace

from app.cluster.dra.demands import ClaimDemands
from app.cluster.dra.device_models import NO_DEMAND, DeviceDemand, summed
from app.model.dra import ClaimKey, DeviceClaim
from app.model.pod import NODE_NAME_FIELD, Constraint, Operator, Pod, Requirement, ResourceClaim, Term
from app.model.quantity import shown

MOST_TERMS = 256
"""Of the constraint of a pod with claims."""

MOST_PLACES = 8
"""Requests for different devices that narrow the nodes of one pod."""

UNREAD_CLAIMS = "Leeboard cannot list ResourceClaims, DeviceClasses or ResourceSlices now; its /readyz says why"


def resolved(
    pod: Pod, claim_of: Callable[[ClaimKey], DeviceClaim | None], demands: ClaimDemands, *, are_listed: bool
) -> Pod:
    """Return a pod, as the watch shows it, with what its claims and its resources of DRA demand."""
    own: list[DeviceDemand] = []
    shared: list[ResourceClaim] = []
    pins: list[Requirement] = []
    lacks, problem = pod.lacks_claim, ""
    for name in dict.fromkeys(pod.claim_names):
        claim = claim_of(ClaimKey(pod.namespace, name))
        problem = problem or (f"ResourceClaim {shown(name)}: {claim.problem}" if claim and claim.problem else "")
        if claim is None or not (are_listed or pod.node is not None):
            lacks = lacks or ("" if pod.node is not None else _unknown(name, are_listed=are_listed))
        elif claim.owner == pod.uid:
            own.append(_of_own(claim, demands.of(claim), pod, pins))
        elif (demand := demands.of(claim)) != NO_DEMAND:
            shared.append(_as_shared(claim, demand))
            own.append(DeviceDemand(places=() if claim.allocated is not None else demand.places))
    by_name, scalars = demands.by_name(pod.scalars)
    total = summed([*own, *by_name])
    amounts = tuple(sorted({**dict(scalars), **dict(total.scalars)}.items()))
    return replace(
        pod,
        request=replace(pod.request, gpu_milli=pod.request.gpu_milli + total.gpu_milli),
        by_claim_milli=total.gpu_milli,
        claims_milli=total.cost_milli - total.gpu_milli,
        scalars=amounts,
        constraint=pod.constraint if pod.node is not None else _narrowed(pod.constraint, total, pins),
        claims=tuple(shared),
        lacks_claim=lacks,
        problem=pod.problem or ("" if pod.node is not None else problem),
    )


def _unknown(name: str, *, are_listed: bool) -> str:
    return shown(name) if are_listed else f"{shown(name)} ({UNREAD_CLAIMS})"


def _of_own(claim: DeviceClaim, demand: DeviceDemand, pod: Pod, pins: list[Requirement]) -> DeviceDemand:
    if claim.allocated is None or pod.node is not None:
        return demand
    if claim.node is not None:
        pins.append(Requirement(NODE_NAME_FIELD, Operator.IN, (claim.node,)))
    # The claim holds the devices itself.
    return DeviceDemand(cost_milli=demand.cost_milli)


def _as_shared(claim: DeviceClaim, demand: DeviceDemand) -> ResourceClaim:
    return ResourceClaim(
        key=claim.key,
        gpu_milli=demand.gpu_milli,
        scalars=demand.scalars,
        cost_milli=demand.cost_milli,
        queue=claim.queue or None,
        shared=True,
    )


def _narrowed(stated: Constraint, demand: DeviceDemand, pins: list[Requirement]) -> Constraint:
    """Return the constraint of a pod that also needs the devices of its claims, and the nodes that hold them."""
    # Kubernetes: an empty term matches no node.
    terms: list[Term] = [()] if stated.terms is None else [term for term in stated.terms if term]
    if not demand.places and not pins:
        return stated
    for place in (*((pin,) for pin in pins[:MOST_PLACES]), *demand.places[:MOST_PLACES]):
        # What is left out, kube-scheduler decides.
        if len(terms) * len(place) <= MOST_TERMS:
            terms = [(*term, one) for term in terms for one in place]
    return replace(stated, terms=None if terms == [()] else tuple(terms))
