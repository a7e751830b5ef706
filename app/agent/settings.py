"""The agent's settings, frozen, from `LEEBOARD_AGENT_*` environment variables."""

import socket
from typing import Annotated

from pydantic import AliasChoices, Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

PREFIX = "LEEBOARD_AGENT_"


class AgentSettings(BaseSettings):
    """One frozen value. It is read once at start."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="ignore", allow_inf_nan=False, use_attribute_docstrings=True
    )

    node_name: str = Field(
        default_factory=socket.gethostname,
        validation_alias=AliasChoices(f"{PREFIX}NODE_NAME", "NODE_NAME"),
        min_length=1,
        max_length=253,
        pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$",
        validate_default=False,
    )
    """Name of the node, which is also the name of its GpuNode. `NODE_NAME` also sets it."""
    kubeconfig: str | None = None
    """Path of a kubeconfig. Without it the service account of the pod is used."""
    pod_resources_socket: str = "/var/lib/kubelet/pod-resources/kubelet.sock"
    """Socket on which the kubelet reports which pods hold which devices."""
    proc_root: str = "/proc"
    """Folder in which the processes of the node are visible under the pids that the driver reports."""
    pods_interval_s: float = Field(default=1.0, ge=0.1, le=60)
    """How often the kubelet is asked. A pod that shares a GPU waits for the answer."""
    devices_interval_s: float = Field(default=10.0, ge=1, le=300)
    """How often the driver is asked. Events of the driver, such as an XID, are seen at once. Also the shortest time
    between two reports that differ only in the measured memory.
    """
    heartbeat_s: float = Field(default=60.0, ge=1, le=3600)
    """After this time, varied by 10 %, a report is sent even if nothing has changed."""
    ignored_xids: Annotated[frozenset[int], NoDecode] = frozenset()
    """XIDs that do not make a device unhealthy, comma-separated, in addition to 13, 31, 43, 45, 68 and 109."""

    @field_validator("ignored_xids", mode="before")
    @classmethod
    def _split_on_commas(cls, value: object) -> object:
        return frozenset(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value
