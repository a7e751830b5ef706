"""Keeps the books of shared GPUs right: what changes about a GPU recharges its node, and those who pay for parts of it.

`gpus` remembers what everybody says, `judgement` judges it; here it comes to what nodes and queues are charged with.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from app.cluster.changes import ChangeLog
from app.cluster.gpus.gpus import Gpus, facts_of
from app.cluster.gpus.shared_gpus import NodeGpus, Part
from app.cluster.gpus.sharers import Sharers
from app.cluster.ledger.charge import Charge, DeviceCharge, Hold
from app.cluster.ledger.charges import Charges
from app.cluster.ledger.nodes import NO_AGENT, AgentFacts, Nodes
from app.model.device import GpuNode
from app.model.names import NodeName, PodUid
from app.model.pod import Pod
from app.model.snapshot import parts_of

Sizes = tuple[int, int]
"""The memory of each GPU of a node, and of the smallest there is anywhere, in MiB."""


class GpuBooks:
    """What the cache hears of GPUs comes here first."""

    def __init__(
        self,
        nodes: Nodes,
        charges: Charges,
        gpus: Gpus,
        changes: ChangeLog,
        *,
        recharge: Callable[[Iterable[PodUid]], None],
    ) -> None:
        """`recharge` has pods charged again whose GPUs turned out to have another size."""
        self._nodes = nodes
        self._charges = charges
        self._gpus = gpus
        self._changes = changes
        self._recharge = recharge
        self._sharers = Sharers()
        """What their queue pays depends on the GPUs there are."""

    # What agents say --------------------------------------------------------------------------------------------------

    def report(self, node: GpuNode, *, heard_at: float) -> None:
        """Take over what a node's agent says."""
        if self._gpus.report(node, heard_at=heard_at):
            self.follow_agent(node.name)

    def forget(self, name: NodeName) -> None:
        """Forget what a node's agent has said."""
        if self._gpus.agents.forget(name):
            self.follow_agent(name)

    def age(self, since: float) -> None:
        """Trust no agent any more that has not been heard since this time."""
        for name in self._gpus.agents.age(since):
            self.follow_agent(name)

    def follow_agent(self, name: NodeName) -> None:
        """Take over what is known of a node from its agent now."""
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
        # What its GPUs are, they still are while nothing is heard of them.
        return replace(self._nodes.facts(name), opens_devices=False)

    # Shared GPUs on which no other pod may come ----------------------------------------------------------------------

    def close(self, node: NodeName, name: str) -> None:
        """Let no other pod on a shared GPU whose reservation is being removed."""
        self._gpus.close(node, name)
        self.restand([node])

    def reopen(self, node: NodeName, name: str) -> None:
        """Take that back: its reservation could not be removed, or has been."""
        self._gpus.reopen(node, name)
        self.restand([node])

    def doubt(self, node: NodeName, name: str) -> None:
        """Let no other pod wait for a shared GPU that its node has given no device in time."""
        self._gpus.doubt(node, name)
        self.restand([node])

    # Who shares -------------------------------------------------------------------------------------------------------

    def put_reservation(self, uid: PodUid, pod: Pod | None) -> None:
        """Note a reservation pod as it is now, None when it is gone."""
        self.restand(self._gpus.reservations.put(uid, pod))

    def meet(self, pod: Pod) -> None:
        """Note that a pod asks for parts of GPUs, wherever it may be."""
        if pod.sharing is not None and pod.uid not in self._sharers:
            self._sharers.put(pod.uid, None)

    def part_with(self, uid: PodUid) -> None:
        """Forget a pod that is gone, which holds nothing any more."""
        self._sharers.drop(uid)

    def share(self, uid: PodUid, pod: Pod | None, charge: Charge | None) -> Collection[NodeName]:
        """Note what a pod holds of shared GPUs beside what it is charged with; return the nodes that are concerned.

        They are to be looked at by `restand`, when all who change together have been noted.
        """
        if uid not in self._sharers:
            return ()
        self._sharers.put(uid, charge.node if charge else None)
        return self._gpus.parts.put(uid, self._part(pod, charge))

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

    # What follows -----------------------------------------------------------------------------------------------------

    def sizes(self, name: NodeName) -> Sizes:
        """Return how large GPUs are, for `follow_sizes` to compare with."""
        return self._nodes.device_mib(name), self._nodes.device_mib(None)

    def follow_sizes(self, name: NodeName, before: Sizes) -> None:
        """Charge anew whoever asks for parts of GPUs of which another size is known now."""
        here, smallest = (one != now for one, now in zip(before, self.sizes(name), strict=True))
        concerned = set(self._sharers.on(name)) if here else set[PodUid]()
        if smallest:
            # Who has no node, or one that is not known, is measured by the smallest.
            concerned |= self._sharers.elsewhere(lambda node: self._nodes.get(node) is not None)
        self._recharge(uid for uid in concerned if self._charges.get(uid) is not None)
        self.restand([name])

    def restand(self, names: Iterable[NodeName]) -> None:
        """Work out how the GPUs of these nodes stand, and charge the nodes accordingly."""
        for name in names:
            before, now = self._gpus.refresh(name)
            if before is now or now.is_like(before):
                continue
            self._charges.set_devices(name, _devices_charged(now))
            if now.frees_more_than(before):
                self._changes.relieve(name)
            else:
                self._changes.change_node(name)


def _devices_charged(now: NodeGpus) -> DeviceCharge:
    return DeviceCharge(
        kept=now.held.get(Hold.KEPT, 0) + now.blocked,
        leaving=now.held.get(Hold.LEAVING, 0),
        awaited=now.held.get(Hold.AWAITED, 0),
    )
