"""Calls the read API of the service. When it does not answer, one line says what to do."""

import os
from collections.abc import Callable
from http import HTTPStatus
from ipaddress import ip_address
from typing import TypeVar

import aiohttp
import click
import orjson
from yarl import URL

from app.cli.options import WrongSettingError, check_kubeconfig
from app.kube.access import Credentials
from app.kube.errors import AccessError
from app.settings import Settings

IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
IN_CLUSTER_URL = "http://leeboard.leeboard.svc:8080"

WITHIN_S = aiohttp.ClientTimeout(total=10.0)

MOST_BYTES = 64 << 20
"""The limit of an answer, because a wrong address may lead to any server. The GPUs of 5,000 nodes take 20 MB."""

NO_ANSWER_FIX = (
    "do its pods run? outside the cluster: kubectl -n leeboard port-forward deploy/leeboard 8080;"
    " or name the operations address with --url"
)
SAY_WHO_FIX = (
    "send a token of an account that may list pods: --token $(kubectl -n leeboard create token leeboard-reader);"
    " without --token, the token of the kubeconfig or of the pod's service account is sent, which {had}"
)
NOT_SENT = "is not sent to {url}, neither HTTPS nor loopback"

Command = TypeVar("Command", bound=Callable[..., None])


class NotFoundAnswer(click.ClickException):
    """The service has no such object."""


def service_options(command: Command) -> Command:
    """Add the options for the service's address and the caller's token: `url` and `token`."""
    text = f"Operations address. [default: {IN_CLUSTER_URL} in a cluster, else the operations port on loopback]"
    token = "Token to send. [default: that of the kubeconfig, or of the pod's service account]"  # noqa: S105 # help
    command = click.option("--token", envvar="LEEBOARD_TOKEN", help=token)(command)
    return click.option("--url", envvar="LEEBOARD_URL", help=text)(command)


def usual_url(settings: Settings) -> str:
    """Return the default address of the service."""
    if IN_CLUSTER in os.environ:
        return IN_CLUSTER_URL
    return f"http://127.0.0.1:{settings.operations_port}"


class Service:
    """The service at one address, and the credentials for it."""

    def __init__(self, settings: Settings, *, url: str | None, token: str | None) -> None:
        """Store the options; None means the default. It sends no request."""
        self._url = next(iter((url or "").split()), usual_url(settings)).rstrip("/")
        self._token = token
        self._kubeconfig = settings.kubeconfig
        # Set once by `_headers`, because it may run a plugin.
        self._found: dict[str, str] | None = None

    async def ask(self, path: str) -> bytes:
        """Return the JSON of an answer; raise `click.ClickException` when there is none."""
        url = self._url
        try:
            async with (
                aiohttp.ClientSession(timeout=WITHIN_S, cookie_jar=aiohttp.DummyCookieJar()) as session,
                session.get(url + path, headers=await self._headers(), allow_redirects=False) as response,
            ):
                body = bytearray()
                async for part in response.content.iter_any():
                    body += part
                    if len(body) > MOST_BYTES:
                        raise click.ClickException(f"the answer of {url} is larger than {MOST_BYTES >> 20} MiB")
                return self._accepted(response.status, bytes(body))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            said = str(error) or type(error).__name__
            raise click.ClickException(f"{url} does not answer: {said}; {NO_ANSWER_FIX}") from error

    async def _headers(self) -> dict[str, str]:
        if self._found is None:
            self._found = await headers(self._url, token=self._token, kubeconfig=self._kubeconfig)
        return self._found

    def _accepted(self, status: int, body: bytes) -> bytes:
        if status == HTTPStatus.OK:
            return body
        try:
            detail = orjson.loads(body)["detail"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            raise click.ClickException(f"{self._url} is not Leeboard's operations port; {NO_ANSWER_FIX}") from None
        if status == HTTPStatus.NOT_FOUND:
            raise NotFoundAnswer(detail)
        if status == HTTPStatus.UNAUTHORIZED:
            raise click.ClickException(f"{self._url} answers only callers with a token: {detail}; {self._token_fix()}")
        raise click.ClickException(f"{self._url} cannot tell: {detail}")

    def _token_fix(self) -> str:
        if self._token or self._found:
            return "send another one, such as --token $(kubectl -n leeboard create token leeboard-reader)"
        had = "has none" if may_be_told(self._url) else NOT_SENT.format(url=self._url)
        return SAY_WHO_FIX.format(had=had)


async def headers(url: str, *, token: str | None, kubeconfig: str | None) -> dict[str, str]:
    """Return the authorization header; empty when there is no token, or when it may not be sent to this address."""
    if token:
        return {"Authorization": f"Bearer {token.strip()}"}
    if not may_be_told(url):
        return {}
    try:
        # Checked first, because the loader warns on stderr about a missing file.
        check_kubeconfig(kubeconfig)
        access = await Credentials(kubeconfig=kubeconfig).read()
    except (AccessError, WrongSettingError):
        # A service with anonymous reads answers without a token.
        return {}
    return {"Authorization": access.authorization} if access.authorization else {}


def may_be_told(url: str) -> bool:
    """Return whether the default token may be sent to this address: over HTTPS, on loopback, or inside the cluster."""
    where = URL(url)
    return where.scheme == "https" or IN_CLUSTER in os.environ or _is_loopback(where.host or "")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
