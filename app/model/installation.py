"""What Leeboard keeps in the cluster for itself: the Secret of its CA, and the webhook configurations that trust it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from app.model.seam import RawObject


class WebhookKind(Enum):
    """The two kinds of configuration by which the API server calls admission, by their plural in its paths."""

    MUTATING = "mutatingwebhookconfigurations"
    VALIDATING = "validatingwebhookconfigurations"

    def __str__(self) -> str:
        return f"{self.name.capitalize()}WebhookConfiguration"


class Read(Enum):
    """How new the answer has to be."""

    CACHED = "cached"
    """What one API server remembers: cheap for both sides, and old by the delay of its watch."""
    LATEST = "latest"
    """What the store holds now: needed before anything is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSecret:
    """A Secret as it was read; the object itself goes along, since it is replaced as a whole."""

    contents: Mapping[str, bytes] = field(repr=False)
    raw: RawObject = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookBundles:
    """Which CAs the API server trusts when it calls the webhooks of one configuration."""

    kind: WebhookKind
    name: str
    version: str
    """The resourceVersion it was read at, the precondition of a write."""
    bundles: Mapping[str, bytes]
    """PEM by webhook name; empty where there is none."""
