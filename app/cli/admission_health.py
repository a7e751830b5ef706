"""Checks admission: the webhook configurations, the listeners and certificates behind them, and the policies."""

import asyncio
import base64
import binascii
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import urlsplit

from app.cli.findings import TELL_THE_FORM, Finding, broken, ok, warning
from app.kube.reviews import KubeReviews
from app.model.seam import ForbiddenError, RawObject

GROUP = "apis/admissionregistration.k8s.io/v1"
KINDS = {"mutating": "mutatingwebhookconfigurations", "validating": "validatingwebhookconfigurations"}
POLICIES = {"mutating": "mutatingadmissionpolicies", "validating": "validatingadmissionpolicies"}
OURS = "leeboard"
"""The name of every policy of Leeboard contains this."""

HTTPS = 443
HANDSHAKE_WITHIN_S = 3.0
SOON_S = 7 * 24 * 3600
"""A certificate that expires within this time should have been renewed long ago."""

BIND = "apply the manifests shipped with Leeboard, which bind them"
LOG = "look at /readyz and the log of Leeboard"


@dataclass(frozen=True, slots=True)
class Target:
    """The address that the API server calls, and the CA that it trusts there."""

    host: str
    port: int
    ca_pem: str


class _WrongTargetError(Exception):
    """A clientConfig that the API server cannot use."""


class Wanted(Enum):
    """Whether the settings require admission. It may exist even when they do not."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"
    """The settings do not say."""


async def webhooks(reviews: KubeReviews, name: str, wanted: Wanted) -> AsyncIterator[Finding]:
    """Check whether both configurations of this name exist and the API server can call their targets."""
    for short, plural in KINDS.items():
        title = f"webhook-{short}"
        try:
            found = await reviews.find(f"{GROUP}/{plural}/{name}")
        except ForbiddenError:
            if wanted is Wanted.NO:
                return
            raise
        if found is not None:
            async for finding in _configuration(title, found):
                yield finding
        elif wanted is Wanted.YES:
            yield broken(title, f"there is no configuration {name!r}", "apply the manifests shipped with Leeboard")
        elif wanted is Wanted.UNKNOWN:
            message = f"there is no configuration {name!r}; it is not known whether one is needed"
            yield warning(title, message, TELL_THE_FORM)
        else:
            yield ok(title, "there is none, and these settings need none")


async def holding(reviews: KubeReviews, wanted: Wanted) -> AsyncIterator[Finding]:
    """Tell what holds pods here until it is their turn."""
    if wanted is Wanted.NO:
        yield ok("holding", "pods are not held, because these settings have no admission")
    elif await _has_policies(reviews):
        yield ok("holding", "the API server can hold pods by a policy, whether Leeboard runs or not")
    else:
        message = "only the webhook can hold pods; while no replica answers, managed pods cannot be created"
        yield ok("holding", message)


async def policies(reviews: KubeReviews, wanted: Wanted) -> AsyncIterator[Finding]:
    """Check that the policies for holding pods exist, if the API server supports them, and that each is bound."""
    if wanted is Wanted.NO or not await _has_policies(reviews):
        return
    for short, plural in POLICIES.items():
        title = f"policies-{short}"
        ours = {_name(policy) for policy in await reviews.objects(f"{GROUP}/{plural}") if OURS in _name(policy)}
        bindings = await reviews.objects(f"{GROUP}/{plural.removesuffix('ies')}ybindings")
        unbound = ours - {str(binding.get("spec", {}).get("policyName")) for binding in bindings}
        if unbound:
            yield broken(title, f"without a binding and so without effect: {', '.join(sorted(unbound))}", BIND)
        elif ours:
            yield ok(title, f"{len(ours)} {'is' if len(ours) == 1 else 'are'} bound")
        elif wanted is Wanted.UNKNOWN:
            yield warning(title, "there are none; it is not known whether they are needed", TELL_THE_FORM)
        else:
            message = "there are none, so only the webhook enforces the rules"
            yield warning(title, message, "install admission policies, which this Kubernetes supports")


async def _has_policies(reviews: KubeReviews) -> bool:
    """Whether the API server itself can change pods."""
    return POLICIES["mutating"] in await reviews.served(GROUP.removeprefix("apis/"))


async def _configuration(title: str, configuration: RawObject) -> AsyncIterator[Finding]:
    try:
        targets = dict.fromkeys(_targets(configuration))
    except _WrongTargetError as error:
        yield broken(title, str(error), f"Leeboard writes caBundle within seconds: {LOG}")
        return
    if not targets:
        yield broken(title, "the configuration has no webhook", "apply the manifests shipped with Leeboard")
    for target in targets:
        yield await _called(title, target)


def _targets(configuration: RawObject) -> Iterator[Target]:
    for webhook in configuration.get("webhooks") or ():
        name, client = webhook.get("name"), webhook.get("clientConfig", {})
        if not client.get("caBundle"):
            raise _WrongTargetError(f"webhook {name} has no caBundle, so the API server trusts no certificate for it")
        try:
            ca_pem = base64.b64decode(client["caBundle"], validate=True).decode("ascii")
        except (binascii.Error, UnicodeDecodeError) as error:
            raise _WrongTargetError(f"the caBundle of webhook {name} cannot be read: {error}") from error
        host, port = _place(client)
        yield Target(host, port, ca_pem)


def _place(client: dict[str, Any]) -> tuple[str, int]:
    if client.get("url"):
        parts = urlsplit(client["url"])
        return parts.hostname or "", parts.port or HTTPS
    service = client.get("service") or {}
    # The API server uses exactly this name, whatever the cluster's domain is.
    return f"{service.get('name')}.{service.get('namespace')}.svc", service.get("port") or HTTPS


async def _called(title: str, target: Target) -> Finding:
    where = f"{target.host}:{target.port}"
    try:
        ends_at = await _handshake(target)
    except OSError as error:
        return _not_called(title, where, error)
    until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(ends_at))
    if ends_at - time.time() < SOON_S:
        return warning(
            title, f"{where} is trusted, but only until {until}", f"it should have been renewed by now: {LOG}"
        )
    return ok(title, f"{where} is trusted, until {until}")


def _not_called(title: str, where: str, error: OSError) -> Finding:
    match error:
        case ssl.SSLCertVerificationError():
            message = f"the API server will not trust {where}: {error.verify_message}"
            return broken(title, message, f"caBundle and certificate do not match: {LOG}")
        case ssl.SSLError():
            return broken(title, f"no TLS with {where}: {error.reason or error}", LOG)
        case socket.gaierror():
            return warning(
                title, f"{where} cannot be resolved here, so it was not called", "run leeboard doctor in the cluster"
            )
        case TimeoutError():
            return broken(
                title, f"{where} does not answer", "do its pods run, and does a NetworkPolicy allow this connection?"
            )
        case _:
            return broken(title, f"{where} cannot be reached: {error.strerror or error}", "do its pods run?")


async def _handshake(target: Target) -> float:
    """Return when the certificate expires, in seconds since the epoch. It is verified as the API server does it."""
    context = ssl.create_default_context(cadata=target.ca_pem)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # no Kubernetes component sets this flag
    async with asyncio.timeout(HANDSHAKE_WITHIN_S):
        _, writer = await asyncio.open_connection(target.host, target.port, ssl=context, server_hostname=target.host)
    try:
        certificate = writer.get_extra_info("peercert")
        return ssl.cert_time_to_seconds(certificate["notAfter"])
    finally:
        writer.transport.abort()


def _name(item: RawObject) -> str:
    return str(item.get("metadata", {}).get("name"))
