"""Asks the read API of the service, and says in one line what to do when it does not answer."""

import os
from http import HTTPStatus

import aiohttp
import click
import orjson

from app.settings import Settings

IN_CLUSTER_URL = "http://leeboard.leeboard.svc:8080"

WITHIN_S = aiohttp.ClientTimeout(total=10.0)

MOST_BYTES = 64 << 20
"""Of an answer: an address that is wrong may lead to anybody. The GPUs of 5,000 nodes are 20 MB."""

NO_ANSWER_FIX = (
    "do its pods run? outside the cluster: kubectl -n leeboard port-forward deploy/leeboard 8080;"
    " or name the operations address with --url"
)


class NotFoundAnswer(click.ClickException):
    """The service knows no such object."""


def usual_url(settings: Settings) -> str:
    """Return where the service is found that nobody has named."""
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return IN_CLUSTER_URL
    return f"http://127.0.0.1:{settings.operations_port}"


async def ask(url: str, path: str) -> bytes:
    """Return the JSON of an answer; raises `click.ClickException` when there is none."""
    try:
        async with (
            aiohttp.ClientSession(timeout=WITHIN_S, cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.get(url.rstrip("/") + path, allow_redirects=False) as response,
        ):
            body = bytearray()
            async for part in response.content.iter_any():
                body += part
                if len(body) > MOST_BYTES:
                    raise click.ClickException(f"the answer of {url} is larger than {MOST_BYTES >> 20} MiB")
            return _accepted(url, response.status, bytes(body))
    except (aiohttp.ClientError, OSError, ValueError) as error:
        said = str(error) or type(error).__name__
        raise click.ClickException(f"{url} does not answer: {said}; {NO_ANSWER_FIX}") from error


def _accepted(url: str, status: int, body: bytes) -> bytes:
    if status == HTTPStatus.OK:
        return body
    try:
        detail = orjson.loads(body)["detail"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise click.ClickException(f"{url} is not Leeboard's operations port; {NO_ANSWER_FIX}") from None
    if status == HTTPStatus.NOT_FOUND:
        raise NotFoundAnswer(detail)
    raise click.ClickException(f"{url} cannot tell: {detail}")
