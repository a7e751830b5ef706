"""Freezes the present state into Snapshots, and shows the nodes as columns."""

from app.cluster.changes import ChangeLog
from app.cluster.gpus.gpus import Gpus
from app.cluster.groups.membership import Membership
from app.cluster.ledger.charges import Charges
from app.cluster.ledger.nodes import Nodes
from app.cluster.queues.tree import Queues
from app.cluster.queues.usage import UsageHistory
from app.cluster.state.claim_charges import ClaimCharges
from app.cluster.state.findings import SchedulerFindings
from app.cluster.state.labelled import LabelledPods
from app.cluster.state.pod_arrivals import PodArrivals
from app.cluster.state.topologies import Topologies
from app.cluster.state.unread import UnreadPods
from app.model.names import NodeName
from app.model.pod import Pod
from app.model.resources import NOTHING, Amounts
from app.model.snapshot import NodeTable, Snapshot


class Snapshots:
    """Reads all parts of the cache."""

    def __init__(  # noqa: PLR0913 # every part that a Snapshot shows
        self,
        *,
        changes: ChangeLog,
        groups: Membership,
        nodes: Nodes,
        queues: Queues,
        charges: Charges,
        gpus: Gpus,
        history: UsageHistory,
        topologies: Topologies,
        labelled: LabelledPods,
        findings: SchedulerFindings,
        unread: UnreadPods,
        arrivals: PodArrivals,
        claim_charges: ClaimCharges,
    ) -> None:
        self._changes = changes
        self._groups = groups
        self._nodes = nodes
        self._queues = queues
        self._charges = charges
        self._gpus = gpus
        self._history = history
        self._topologies = topologies
        self._labelled = labelled
        self._findings = findings
        self._unread = unread
        self._arrivals = arrivals
        self._claim_charges = claim_charges

    def table(self) -> NodeTable:
        """Return the nodes as columns."""
        table = self._nodes.table()
        self._charges.use_table(table, self._nodes.scalars())
        return table

    def free(self) -> Amounts:
        """Return what is free on each node of the table, shape [resource, node]."""
        self.table()
        return self._charges.free()

    def residents(self) -> Amounts:
        """Return what pods hold that belong to their nodes, shape [resource, node]."""
        self.table()
        return self._charges.residents()

    def take(self) -> Snapshot:
        """Freeze the present state; the cost is that of the changes, and one copy of each column."""
        waiting = self._groups.waiting()
        table, charges = self.table(), self._charges
        return Snapshot(
            version=self._changes.version,
            nodes=table,
            free=charges.free(),
            residents=charges.residents(),
            releasing=charges.releasing(),
            scalars=charges.free_scalars(),
            releasing_scalars=charges.releasing_scalars(),
            claimed=self._claim_charges.claimed(),
            claim_users=self._claim_charges.users(),
            queues=self._queues.tree(),
            usage=charges.usage(),
            groups=waiting,
            running=self._groups.running(),
            total=charges.divided(self._unread.closed()),
            topologies=self._topologies.by_name(),
            past=self._history.past(),
            labelled=self._labelled.freeze(),
            refused=self._findings.refused_nodes().freeze(),
            shared=self._gpus.listed(),
            idle_devices=self._gpus.idle(table),
            blocked_devices=self._gpus.blocked(),
            unusable_devices=self._gpus.unusable(),
            mix=self._arrivals.last,
        )

    def places_without(self, pod: Pod, node: NodeName) -> Snapshot:
        """Freeze what is needed to choose a node for one pod alone, as if it had no place on this node; without groups.

        Forming all groups again would be half of the response time whenever kube-scheduler offers other nodes.
        """
        if pod.near or pod.labels is not None:
            return self.take().without([(pod, node)])
        table, free = self.table(), self._charges.free()
        if node in table.index:
            free[:, table.index[node]] += pod.request.amounts
        return Snapshot(
            version=self._changes.version,
            nodes=table,
            free=free,
            scalars=self._charges.free_scalars(),
            claimed=self._claim_charges.claimed(),
            queues={},
            usage={},
            groups={},
            total=NOTHING,
            topologies=self._topologies.by_name(),
            refused=self._findings.refused_nodes().freeze(),
            shared=self._gpus.listed(),
            idle_devices=self._gpus.idle(table),
            blocked_devices=self._gpus.blocked(),
            unusable_devices=self._gpus.unusable(),
            mix=self._arrivals.last,
        )
