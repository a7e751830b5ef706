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
    """Name of the node we run on, which is that of its GpuNode; `NODE_NAME` will do too."""
    kubeconfig: str | None = None
    """Path of a kubeconfig; without one the pod's service account is used."""
    pod_resources_socket: str = "/var/lib/kubelet/pod-resources/kubelet.sock"
    """Where the kubelet tells which pods hold which devices."""
    proc_root: str = "/proc"
    """Where the processes of the node are seen, by the pids that the driver knows."""
    pods_interval_s: float = Field(default=1.0, ge=0.1, le=60)
    """How often the kubelet is asked: a pod that shares a GPU waits for the answer."""
    devices_interval_s: float = Field(default=10.0, ge=1, le=300)
    """How often the driver is asked; what it says of itself, such as an XID, is seen at once. Also the least time
    between two reports of which only the measured memory differs."""
    heartbeat_s: float = Field(default=60.0, ge=1, le=3600)
    """After so long, by 10 % more or less, a report is sent though nothing has changed."""
    ignored_xids: Annotated[frozenset[int], NoDecode] = frozenset()
    """XIDs that say nothing against a device, comma-separated, beside 13, 31, 43, 45, 68 and 109."""

    @field_validator("ignored_xids", mode="before")
    @classmethod
    def _split_on_commas(cls, value: object) -> object:
        return frozenset(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value
