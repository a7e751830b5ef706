"""The GPU machines that simulated nodes can be: product, memory, and the connections of the devices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.system.api import Object, gpu_node

GPU = "nvidia.com/gpu"
PRODUCT_LABEL = "nvidia.com/gpu.product"
MEMORY_LABEL = "nvidia.com/gpu.memory"
COUNT_LABEL = "nvidia.com/gpu.count"
SIMULATED = "gpu-"
"""The prefix of nodes whose GPU pods these tests start instead of kwok (see `controlplane/stages.yaml`)."""
RUNTIME_CLASS: Object = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "nvidia",
}
"""Created by NVIDIA's GPU operator; pods name it where its runtime is not the default."""

DGX_1V_NVLINKS = (
    (0, 1, 1, 2, 2, 0, 0, 0),
    (1, 0, 2, 1, 0, 2, 0, 0),
    (1, 2, 0, 2, 0, 0, 1, 0),
    (2, 1, 2, 0, 0, 0, 0, 1),
    (2, 0, 0, 0, 0, 1, 1, 2),
    (0, 2, 0, 0, 1, 0, 2, 1),
    (0, 0, 1, 0, 1, 2, 0, 2),
    (0, 0, 0, 1, 2, 1, 2, 0),
)
"""NVLinks of a DGX-1 with V100s, as NVIDIA's go-gpuallocator tests state them (876e7b7, Apache-2.0)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A kind of machine, whose devices are all alike."""

    product: str
    memory_mib: int
    switch_nvlinks: int = 0
    """Of each device to the NVSwitch, over which it reaches every other; 0 where there is no switch."""
    nvlinks: Sequence[Sequence[int]] = ()
    """Between each two, where there is no switch."""

    @property
    def label(self) -> str:
        """Return the product in the form of a label."""
        return self.product.replace(" ", "-")

    def links(self, uuids: Sequence[str], index: int) -> list[Object]:
        """Return the connections of one device to the others, as the agent reports them."""
        others = [(other, uuid) for other, uuid in enumerate(uuids) if other != index]
        return [
            self._link(uuid, nvlinks=self._nvlinks(index, other), near=index // 4 == other // 4)
            for other, uuid in others
        ]

    def _nvlinks(self, index: int, other: int) -> int:
        if self.switch_nvlinks:
            return self.switch_nvlinks
        return self.nvlinks[index][other] if max(index, other) < len(self.nvlinks) else 0

    @staticmethod
    def _link(uuid: str, *, nvlinks: int, near: bool) -> Object:
        ancestor = "Node" if near else "System"
        return {"uuid": uuid, "nvlinks": nvlinks, "p2p": "NVLink" if nvlinks else "PCIe", "ancestor": ancestor}


H100 = Machine(product="NVIDIA H100 80GB HBM3", memory_mib=81559, switch_nvlinks=18)
DGX_1V = Machine(product="Tesla V100-SXM2-16GB", memory_mib=16384, nvlinks=DGX_1V_NVLINKS)
L4 = Machine(product="NVIDIA L4", memory_mib=23034)
MACHINES: Mapping[str, Machine] = {machine.label: machine for machine in (H100, DGX_1V, L4)}


def machine_node(
    name: str, *, gpus: int = 8, machine: Machine = H100, labels: Mapping[str, str] | None = None
) -> Object:
    """Build a node of such a machine, labelled as GPU feature discovery does; its name must begin with `SIMULATED`."""
    own = {PRODUCT_LABEL: machine.label, MEMORY_LABEL: str(machine.memory_mib)}
    return gpu_node(name, gpus=gpus, labels=own | dict(labels or {}))
