"""How a token of Kubernetes travels to the service, and what it says of itself. The service uses this too."""

import base64
import json
from collections.abc import Mapping
from typing import Any

TOKEN_HEADER = "X-Leeboard-Token"  # noqa: S105 # the name of a header
"""The API server's service proxy removes `Authorization`, and passes this header on."""

AUDIENCE = "leeboard.dev"
"""The audience of a token that is made for the service alone, so that nobody else accepts it."""


def payload(token: str) -> Mapping[str, Any]:
    """Return what a JSON web token says of itself; nothing when it is none. Nothing here is verified."""
    parts = token.split(".")
    try:
        said = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, IndexError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}
