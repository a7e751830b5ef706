"""Keeps the charges of shared GPUs right: a change of GPUs recharges their node and the pods with parts of them.

`gpus` keeps the statements of all sources, `judgement` judges them; this module derives the charges of nodes and
queues.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from app.cluster.changes import ChangeLog
from app.cluster.gpus.gpus import Gpus, facts_of
from app.cluster.gpus.shared_gpus import NodeGpus, Part, WholeHolder
from app.cluster.gpus.sharers import Sharers
from app.cluster.ledger.charge import Charge, DeviceCharge, Hold
from app.cluster.ledger.charges import Charges
from app.cluster.ledger.nodes import NO_AGENT, AgentFacts, Nodes
from app.model.device import GpuNode
from app.model.names import NodeName, PodUid
from app.model.pod import Pod
from app.model.resources import GPU_MILLI
from app.model.snapshot import parts_of

Sizes = tuple[int, int]
"""The memory of each GPU of a node, and of the smallest GPU of the cluster, in MiB."""


class GpuBooks:
    """The first receiver of everything that the cache learns about GPUs."""

    def __init__(
        self,
        nodes: Nodes,
        charges: Charges,
        gpus: Gpus,
        changes: ChangeLog,
        *,
        recharge: Callable[[Iterable[PodUid]], None],
    ) -> None:
        """`recharge` charges pods again whose GPUs have another size than was known."""
        self._nodes = nodes
        self._charges = charges
        self._gpus = gpus
        self._changes = changes
        self._recharge = recharge
        self._sharers = Sharers()
        """What the queue pays for these pods depends on the GPUs of the cluster."""

    # Reports of agents ------------------------------------------------------------------------------------------------

    def report(self, node: GpuNode, *, heard_at: float) -> None:
        """Store the report of a node's agent."""
        if self._gpus.report(node, heard_at=heard_at):
            self.follow_agent(node.name)

    def forget(self, name: NodeName) -> None:
        """Forget the report of a node's agent."""
        if self._gpus.agents.forget(name):
            self.follow_agent(name)

    def age(self, since: float) -> None:
        """End the trust in agents that have not reported since this time."""
        for name in self._gpus.agents.age(since):
            self.follow_agent(name)

    def follow_agent(self, name: NodeName) -> None:
        """Update what is known about a node from its agent."""
        before = self.sizes(name)
        if self._nodes.put_facts(name, self._facts(name)):
            self.follow_sizes(name, before)
            self._changes.relieve()
        else:
            self.restand([name])

    def _facts(self, name: NodeName) -> AgentFacts:
        report = self._gpus.agents.reliable(name)
        if report is not None:
            return facts_of(report)
        if name not in self._gpus.agents.all():
            return NO_AGENT
        # The last known GPUs stay valid while there is no report.
        return replace(self._nodes.facts(name), opens_devices=False)

    # Shared GPUs that accept no more pods -----------------------------------------------------------------------------

    def close(self, node: NodeName, name: str) -> None:
        """Accept no more pods on a shared GPU whose reservation pod is being removed."""
        self._gpus.close(node, name)
        self.restand([node])

    def reopen(self, node: NodeName, name: str) -> None:
        """End `close`: the reservation pod could not be removed, or is gone."""
        self._gpus.reopen(node, name)
        self.restand([node])

    def doubt(self, node: NodeName, name: str) -> None:
        """Let no more pods wait for a shared GPU for which its node has provided no device in time."""
        self._gpus.doubt(node, name)
        self.restand([node])

    # Pods that share --------------------------------------------------------------------------------------------------

    def put_reservation(self, uid: PodUid, pod: Pod | None) -> None:
        """Store a reservation pod; None when it is gone."""
        self.restand(self._gpus.reservations.put(uid, pod))

    def meet(self, pod: Pod) -> None:
        """Note that a pod requests parts of GPUs, with or without a node."""
        if pod.sharing is not None and pod.uid not in self._sharers:
            self._sharers.put(pod.uid, None)

    def part_with(self, uid: PodUid) -> None:
        """Forget a deleted pod, which holds nothing any more."""
        self._sharers.drop(uid)

    def share(
        self, uid: PodUid, pod: Pod | None, charge: Charge | None, *, before: Charge | None
    ) -> Collection[NodeName]:
        """Note what a pod holds of shared GPUs beside its charge, and whether it has whole GPUs; return their nodes.

        The caller passes these nodes to `restand` once all pods that change together are noted.
        """
        nodes = self._gpus.hold_whole(uid, _whole(pod, charge), was_on=before.node if before else None)
        if uid not in self._sharers:
            return nodes
        self._sharers.put(uid, charge.node if charge else None)
        return [*nodes, *self._gpus.parts.put(uid, self._part(pod, charge))]

    def _part(self, pod: Pod | None, charge: Charge | None) -> Part | None:
        if pod is None or pod.sharing is None or charge is None or charge.node is None or not charge.devices:
            return None
        memory_mib = self._nodes.device_mib(charge.node)
        return Part(
            pod=pod.uid,
            node=charge.node,
            names=charge.devices,
            uuids=pod.device_uuids,
            parts=parts_of(pod.sharing, memory_mib),
            memory_mib=pod.sharing.mib_of(memory_mib),
            hold=charge.hold,
            is_bound=pod.node is not None,
        )

    # Consequences -----------------------------------------------------------------------------------------------------

    def sizes(self, name: NodeName) -> Sizes:
        """Return the present sizes of GPUs, for a comparison in `follow_sizes`."""
        return self._nodes.device_mib(name), self._nodes.device_mib(None)

    def follow_sizes(self, name: NodeName, before: Sizes) -> None:
        """Charge again the pods that request parts of GPUs whose known size has changed."""
        here, smallest = (one != now for one, now in zip(before, self.sizes(name), strict=True))
        concerned = list(self._sharers.on(name) if here else ())
        if smallest:
            # A pod without a node, or with an unknown one, is measured by the smallest GPU.
            concerned += self._sharers.elsewhere(lambda node: self._nodes.get(node) is not None)
        self._recharge(uid for uid in dict.fromkeys(concerned) if self._charges.get(uid) is not None)
        self.restand([name])

    def restand(self, names: Iterable[NodeName]) -> None:
        """Judge the GPUs of these nodes again, and charge the nodes accordingly."""
        for name in names:
            self._changes.show_node(name)
            before, now = self._gpus.refresh(name)
            if before is now or now.is_like(before):
                continue
            self._charges.set_devices(name, _devices_charged(now))
            if now.frees_more_than(before):
                self._changes.relieve(name)
            else:
                self._changes.change_node(name)


def _whole(pod: Pod | None, charge: Charge | None) -> WholeHolder | None:
    if pod is None or pod.node is None or charge is None or not (charge.request.gpu_milli or pod.claims):
        return None
    gpus = charge.request.gpu_milli // GPU_MILLI
    return WholeHolder(uid=pod.uid, namespace=pod.namespace, name=pod.name, node=pod.node, gpus=gpus, hold=charge.hold)


def _devices_charged(now: NodeGpus) -> DeviceCharge:
    return DeviceCharge(
        kept=now.held.get(Hold.KEPT, 0) + now.blocked + now.unusable_leaving,
        leaving=now.leaving,
        awaited=now.held.get(Hold.AWAITED, 0),
    )
