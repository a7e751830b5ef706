"""Runs the vectors of KAI's topology plugin: which sets of nodes a sub-group tries, in which order, or why none."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from app.model.names import NodeName
from app.model.node import Node
from app.model.podgroup import TopologyConstraint
from app.model.reason import Reason, Refusal
from app.model.resources import GPU_MILLI, Amounts, Resources
from app.model.snapshot import Mask, NodeTable
from app.model.topology import Topology
from app.scheduling.placement.topology import NodeSets, Subtree, fitting_counts, node_sets
from tests.conformance.vectors import Case, exact

ACTIVE = {"Allocated", "Binding", "Bound", "Running"}
"""Statuses that hold a place and keep it (KAI's "active allocated")."""


def run(case: Case) -> Any:
    """Return the node sets by the names of their nodes, or in KAI's words why there is none."""
    table = NodeTable.of(_node(name, case) for name in case["nodes"])
    trees = case.get("trees") or {}
    topologies = {name: Topology(name=name, levels=tuple(tree["levels"])) for name, tree in trees.items()}
    everything = np.ones(len(table.nodes), dtype=np.bool_)
    constraint = _constraint(case["sub_group"].get("topology_constraint"))
    if constraint is None or not case["tasks_to_allocate"]:
        return {"fit_errors": [], "node_sets": [_names(everything, table)]}
    answer = node_sets(_subtree(case, constraint, table, everything), table, topologies)
    if isinstance(answer, NodeSets):
        return {"fit_errors": [], "node_sets": [_names(mask, table) for mask in answer]}
    if answer.reason is Reason.POD_GROUP_IS_INVALID and constraint.topology in topologies:
        return {"error": _unknown_level(answer, case, constraint), "fit_errors": [], "node_sets": []}
    return {"fit_errors": [_no_domain(answer, case, constraint)], "node_sets": []}


def _unknown_level(refusal: Refusal, case: Case, constraint: TopologyConstraint) -> str:
    name = case["sub_group"]["name"]
    if "level" not in refusal.details:
        return f"no topology constraints were found for subgroup {name}, with topology name {constraint.topology}"
    whose = "workload" if name == "default" else f"sub-group {name}"
    kind = "required" if refusal.details["level"] == constraint.required else "preferred"
    return (
        f"topology constraint error: {whose} specified '{refusal.details['level']}' as the {kind} topology constraint "
        f"level, but the topology tree '{constraint.topology}' does not contain a level with this name"
    )


def _no_domain(refusal: Refusal, case: Case, constraint: TopologyConstraint) -> str:
    if refusal.reason is Reason.POD_GROUP_IS_INVALID:
        return f"Requested topology {constraint.topology} does not exist"
    # KAI calls one domain by its own label, and all of several "the cluster".
    where = str(refusal.details["best"]).rpartition("/")[2] if refusal.details["domains"] == 1 else ""
    name, job = case["sub_group"]["name"], f"{case['job'].get('namespace', '')}/{case['job']['name']}"
    whose = f"job <{job}>" if name in {"", "default"} else f"job <{job}>, subgroup {name}"
    return (
        f"topology {constraint.topology}, requirement {constraint.required} couldn't be satisfied for {whose}: "
        f"not enough resources in {where or 'the cluster'} to allocate the job"
    )


def _constraint(stated: Case | None) -> TopologyConstraint | None:
    if not stated or not stated["topology"]:
        return None
    return TopologyConstraint(
        stated["topology"], required=stated["required_level"] or "", preferred=stated["preferred_level"] or ""
    )


def _subtree(case: Case, constraint: TopologyConstraint, table: NodeTable, within: Mask) -> Subtree:
    asked = np.array([_request(task["requests"]).amounts for task in case["tasks_to_allocate"]], dtype=np.int64)
    nodes = (case["nodes"][node.name] for node in table.nodes)
    free: Amounts = np.array([_free(node) for node in nodes], dtype=np.int64).T
    return Subtree(
        constraint=constraint,
        asked=asked,
        counts=fitting_counts(asked, free),
        free=free,
        within=within,
        occupied=table.mask(_places(case["pod_sets"])),
    )


def _places(pod_sets: Iterable[Case]) -> list[NodeName]:
    tasks = (task for pod_set in pod_sets for task in pod_set["tasks"])
    return [NodeName(task["node"]) for task in tasks if task["status"] in ACTIVE]


def _node(name: str, case: Case) -> Node:
    # The domains of these tests are made by hand; a node's labels need not match them.
    labels = {
        domain["level"]: domain["id"]
        for tree in case.get("trees", {}).values()
        for domain in tree["domains"]
        if name in domain["nodes"]
    }
    return Node(name=NodeName(name), labels={**case["nodes"][name].get("labels", {}), **labels})


def _free(node: Case) -> tuple[int, ...]:
    idle, releasing = _amounts(node["idle"]), _amounts(node["releasing"])
    return (idle + releasing).amounts


def _amounts(amounts: Case) -> Resources:
    return Resources(
        cpu_milli=exact(amounts["cpu_milli"], 1),
        memory_bytes=exact(amounts["memory_bytes"], 1),
        gpu_milli=exact(amounts["gpus"], GPU_MILLI),
        pods=int(amounts["scalars"].get("pods", 0)),
    )


def _request(requests: Case) -> Resources:
    # A GPU share may use a node without a free whole device: it is not bounded by them.
    whole = int(requests["gpus_total"]) if requests["gpus_total"] == int(requests["gpus_total"]) else 0
    return Resources(
        cpu_milli=exact(requests["cpu_milli"], 1),
        memory_bytes=exact(requests["memory_bytes"], 1),
        gpu_milli=whole * GPU_MILLI,
        pods=1,
    )


def _names(mask: Mask, table: NodeTable) -> list[str]:
    return [str(table.nodes[column].name) for column in np.flatnonzero(mask)]
