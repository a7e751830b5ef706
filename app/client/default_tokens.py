"""The token that is sent to the service when none is given, and to which addresses it may be sent."""

from ipaddress import ip_address
from typing import Protocol
from urllib.parse import urlsplit

from app.client.kubeconfig import Context, is_in_cluster
from app.client.reach_errors import ReachError
from app.client.tokens import payload


class ContextSource(Protocol):
    """Finds the context whose token is sent by default."""

    def __call__(self) -> Context | None:
        """Return the context; None when there is none. Raise `ReachError`."""
        ...


def default_token(url: str, context: ContextSource) -> str:
    """Return the token of the context when it may be sent to this address; empty otherwise."""
    from app.client.credentials import login  # noqa: PLC0415 # not needed with an explicit token

    if not may_be_told(url):
        return ""
    try:
        found = context()
        return login(found).token if found is not None else ""
    except ReachError:
        # A service with anonymous reads answers without a token.
        return ""


def bearer(token: str) -> dict[str, str]:
    """Return the header with a token."""
    return {"Authorization": f"Bearer {token}"} if token else {}


def may_be_told(url: str) -> bool:
    """Return whether the default token may be sent to this address: over HTTPS, on loopback, or inside the cluster."""
    return urlsplit(url).scheme == "https" or is_in_cluster() or is_on_loopback(url)


def account_of(token: str) -> tuple[str, str] | None:
    """Return namespace and name of the service account that a token belongs to; None when it is not of one."""
    try:
        kind, group, namespace, name = str(payload(token).get("sub")).split(":")
    except ValueError:
        return None
    return (namespace, name) if (kind, group) == ("system", "serviceaccount") else None


def is_on_loopback(url: str) -> bool:
    """Return whether an address is one of this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
