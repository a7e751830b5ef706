"""Leeboard's own objects in the cluster: the Secret of its CA, and the objects by which the API server trusts it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from app.model.seam import RawObject


class WebhookKind(Enum):
    """The two kinds of webhook configurations, by their plural in API paths."""

    MUTATING = "mutatingwebhookconfigurations"
    VALIDATING = "validatingwebhookconfigurations"

    def __str__(self) -> str:
        return f"{self.name.capitalize()}WebhookConfiguration"


class AggregationKind(Enum):
    """The kind of an aggregated API, by its plural in API paths."""

    API_SERVICE = "apiservices"

    def __str__(self) -> str:
        return "APIService"


BundleKind = WebhookKind | AggregationKind
"""The kinds of objects with a caBundle."""


class Read(Enum):
    """How current an answer must be."""

    CACHED = "cached"
    """The cache of one API server. It is cheap for both sides, and late by the delay of the API server's watch."""
    LATEST = "latest"
    """The current state of the store. It is needed before a write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSecret:
    """A Secret as it was read. It keeps the raw object, because a write replaces the whole object."""

    contents: Mapping[str, bytes] = field(repr=False)
    raw: RawObject = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaBundles:
    """The CAs that the API server trusts when it calls the webhooks of one configuration, or an aggregated API."""

    kind: BundleKind
    name: str
    version: str
    """The resourceVersion of the read, and the precondition of a write."""
    bundles: Mapping[str, bytes]
    """PEM by webhook name; empty when there is none. An APIService has one, without a name."""
