"""Asks the read API of the service, and says in one line what to do when it does not answer."""

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
"""Of an answer: an address that is wrong may lead to anybody. The GPUs of 5,000 nodes are 20 MB."""

NO_ANSWER_FIX = (
    "do its pods run? outside the cluster: kubectl -n leeboard port-forward deploy/leeboard 8080;"
    " or name the operations address with --url"
)
SAY_WHO_FIX = (
    "send a token: --token $(kubectl -n leeboard create token leeboard-reader), or that of any account that may list"
    " pods; without --token that of the kubeconfig or of the pod's service account is sent, which {had}"
)
NOT_SENT = "is not sent to {url}, neither HTTPS nor loopback"

Command = TypeVar("Command", bound=Callable[..., None])


class NotFoundAnswer(click.ClickException):
    """The service knows no such object."""


def service_options(command: Command) -> Command:
    """Add what says where the service is and who asks: `url` and `token`."""
    text = f"Operations address. [default: {IN_CLUSTER_URL} in a cluster, else the operations port on loopback]"
    token = "Token to show. [default: that of the kubeconfig, or of the pod's service account]"  # noqa: S105 # help
    command = click.option("--token", envvar="LEEBOARD_TOKEN", help=token)(command)
    return click.option("--url", envvar="LEEBOARD_URL", help=text)(command)


def usual_url(settings: Settings) -> str:
    """Return where the service is found that nobody has named."""
    if IN_CLUSTER in os.environ:
        return IN_CLUSTER_URL
    return f"http://127.0.0.1:{settings.operations_port}"


class Service:
    """The service at one address, and who we are to it."""

    def __init__(self, settings: Settings, *, url: str | None, token: str | None) -> None:
        """Ask nothing yet; None is what is usual."""
        self._url = next(iter((url or "").split()), usual_url(settings)).rstrip("/")
        self._token = token
        self._kubeconfig = settings.kubeconfig
        # Found once, by `_headers`: a plugin may have to be run for it.
        self._found: dict[str, str] | None = None

    async def ask(self, path: str) -> bytes:
        """Return the JSON of an answer; raises `click.ClickException` when there is none."""
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
            return "take another one, such as --token $(kubectl -n leeboard create token leeboard-reader)"
        had = "has none" if may_be_told(self._url) else NOT_SENT.format(url=self._url)
        return SAY_WHO_FIX.format(had=had)


async def headers(url: str, *, token: str | None, kubeconfig: str | None) -> dict[str, str]:
    """Return the headers that say who asks; none when there is no token, or this address may not be told ours."""
    if token:
        return {"Authorization": f"Bearer {token.strip()}"}
    if not may_be_told(url):
        return {}
    try:
        # Looked for first: the loader warns on stderr of a file that is missing.
        check_kubeconfig(kubeconfig)
        access = await Credentials(kubeconfig=kubeconfig).read()
    except (AccessError, WrongSettingError):
        # A service that shows everything to everybody answers all the same.
        return {}
    return {"Authorization": access.authorization} if access.authorization else {}


def may_be_told(url: str) -> bool:
    """Return whether our own token may be sent there unasked: nobody on the way reads it, or it is the cluster's."""
    where = URL(url)
    return where.scheme == "https" or IN_CLUSTER in os.environ or _is_loopback(where.host or "")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
