"""Sends one request to the API server and returns its answer, within deadlines. `client` and `watch` interpret it.

Writes have their own connections, so that relisting fifty thousand pods does not delay a bind.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from time import monotonic

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from yarl import URL

from app.kube import errors
from app.kube.access import Access, Credentials
from app.kube.errors import ApiReply
from app.model.seam import ForbiddenError, KubeError

JSON: Mapping[str, str] = {"Content-Type": "application/json"}
MERGE_PATCH: Mapping[str, str] = {"Content-Type": "application/merge-patch+json"}
STRATEGIC_MERGE_PATCH: Mapping[str, str] = {"Content-Type": "application/strategic-merge-patch+json"}
"""This patch merges lists by key: of a pod's conditions, only the named ones change."""
ANY_JSON = "application/json"
UNAUTHORIZED = 401
FIRST_REFUSAL = 300
CLOSING_TURNS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportLimits:
    """Time and size limits of requests. Tests use shorter times; production uses these."""

    connect_within_s: float = 5.0
    """This includes the wait for one of the `writes_in_flight` connections. A write without a connection was not done.
    """
    answer_within_s: float = 10.0
    page_within_s: float = 30.0
    silence_s: float = 75.0
    """Bookmarks arrive about every minute."""
    writes_in_flight: int = 160
    """As many as all writers together use. Binds must not wait behind hundreds of evictions."""
    idle_connection_s: float = 60.0
    """Shorter than the 90 s after which kube-apiserver closes an idle connection, so that no request meets a closing
    one.
    """
    renew_every_s: float = 1.0
    reply_bytes: int = 256 << 20
    line_bytes: int = 16 << 20
    page_objects: int = 250
    """Parsing a page of pods blocks the loop for 10 ms. client-go requests 500."""
    page_bytes: int = 1 << 20
    """The limit for a page with more than one object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTerms:
    """The form of a read."""

    accept: str = ANY_JSON
    owed: bool = True
    """Whether Leeboard should have the right to read this. A refusal then sets `forbidden`."""


OWED = ReadTerms()


@dataclass(frozen=True, slots=True)
class Request:
    """One request. The path has no leading slash."""

    method: str
    path: str
    timeout: aiohttp.ClientTimeout
    body: bytes | None = None
    headers: Mapping[str, str] | None = None
    owed: bool = True
    """As in `ReadTerms`."""
    most_bytes: int | None = None
    """A limit of the answer below `TransportLimits.reply_bytes`."""


class PromptBody(aiohttp.BytesPayload):
    """The body of a write, which is sent within a time limit or not at all.

    Leeboard may have been stopped while the connection was made, and another replica may have decided otherwise.
    """

    def __init__(self, body: bytes, *, within_s: float, clock: Callable[[], float] = monotonic) -> None:
        super().__init__(body)
        self._clock = clock
        self._until = clock() + within_s

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Send the body. Between the check of the clock and the socket there is no await that could delay it."""
        if self._clock() > self._until:
            raise TimeoutError("it took too long until the request could be sent")
        await super().write_with_length(writer, content_length)


class Transport:
    """Two connection pools to one API server, and their token."""

    def __init__(self, credentials: Credentials, access: Access, limits: TransportLimits) -> None:
        self.limits = limits
        self.forbidden = asyncio.Event()
        """Set whenever the API server forbids a request; cleared by the component that looks for the cause."""
        self._credentials = credentials
        self._base = f"{access.server}/"
        self._tls_server_name = access.tls_server_name
        self._proxy = access.proxy
        # Only `_renew` replaces it, one call at a time.
        self._authorization = access.authorization
        self._renewing = asyncio.Lock()
        self._renewed_at_s = float("-inf")
        self._writes = _session(access, limits, connections=limits.writes_in_flight)
        self._reads = _session(access, limits, connections=0)
        self._answer, self._page, self._endless = (
            aiohttp.ClientTimeout(total=total_s, connect=limits.connect_within_s)
            for total_s in (limits.answer_within_s, limits.page_within_s, None)
        )

    async def close(self) -> None:
        """Close every connection, also those of running watches."""
        await self._writes.close()
        await self._reads.close()
        # Aborted connections release their sockets in the next turns of the loop, which may be its last turns.
        for _ in range(CLOSING_TURNS):
            await asyncio.sleep(0)

    async def write(self, method: str, path: str, body: bytes, headers: Mapping[str, str] = JSON) -> None:
        """Send a write and ignore the object in the answer; raise `KubeError`."""
        await self._call(Request(method, path, self._answer, body, headers))

    async def ask(self, path: str, body: bytes) -> bytes:
        """Send a question that uses POST but changes nothing; return its answer."""
        return await self._call(Request("POST", path, self._answer, body, JSON))

    async def read(self, path: str, terms: ReadTerms = OWED) -> bytes:
        """Return one object; raise `KubeError`. A time-out is `UnavailableError`."""
        return await self._call(_get(path, self._answer, terms))

    async def read_page(self, path: str, terms: ReadTerms, *, most_bytes: int) -> bytes:
        """Return one page of a list; the API server gets more time for it. Raise `TooLongError`."""
        return await self._call(replace(_get(path, self._page, terms), most_bytes=most_bytes))

    @asynccontextmanager
    async def stream(self, path: str, terms: ReadTerms = OWED) -> AsyncIterator[aiohttp.StreamReader]:
        """Open a GET whose body does not end. Reading the body raises aiohttp's errors."""
        request = _get(path, self._endless, terms)
        try:
            async with asyncio.timeout(self.limits.answer_within_s):
                response = await self._send(request)
                is_refusal = response.status >= FIRST_REFUSAL
                reply = await self._reply(response, self.limits.reply_bytes) if is_refusal else None
        except (aiohttp.ClientError, OSError) as cause:
            raise errors.lost("GET", cause) from cause
        if reply:
            raise self._refusal(request, reply)
        try:
            yield response.content
        finally:
            # Not `release`: it would wait for the rest of the stream.
            response.close()

    async def _call(self, request: Request) -> bytes:
        try:
            reply = await self._reply(await self._send(request), request.most_bytes or self.limits.reply_bytes)
        except (aiohttp.ClientError, OSError) as cause:
            raise errors.lost(request.method, cause) from cause
        if reply.status >= FIRST_REFUSAL:
            raise self._refusal(request, reply)
        return reply.body

    def _refusal(self, request: Request, reply: ApiReply) -> KubeError:
        error = errors.refusal(request.method, reply)
        if isinstance(error, ForbiddenError) and request.owed:
            self.forbidden.set()
        return error

    async def _send(self, request: Request) -> aiohttp.ClientResponse:
        used = self._authorization
        response = await self._send_once(request)
        if response.status != UNAUTHORIZED:
            return response
        response.close()
        await self._renew(used)
        return await self._send_once(request)

    async def _send_once(self, request: Request) -> aiohttp.ClientResponse:
        session = self._reads if request.method == "GET" else self._writes
        return await session.request(
            request.method,
            URL(self._base + request.path, encoded=True),
            data=None if request.body is None else PromptBody(request.body, within_s=self.limits.connect_within_s),
            headers=request.headers,
            timeout=request.timeout,
            allow_redirects=False,
            server_hostname=self._tls_server_name,
            proxy=self._proxy,
        )

    async def _reply(self, response: aiohttp.ClientResponse, most_bytes: int) -> ApiReply:
        try:
            body = await _whole(response.content, most_bytes)
        except BaseException:
            response.close()
            raise
        return ApiReply(status=response.status, body=body, retry_after=response.headers.get("Retry-After", ""))

    async def _renew(self, refused: str) -> None:
        async with self._renewing:
            now_s = asyncio.get_running_loop().time()
            # Another task has renewed it during the wait, or a recent renewal did not help.
            if self._authorization != refused or now_s < self._renewed_at_s + self.limits.renew_every_s:
                return
            self._renewed_at_s = now_s
            self._authorization = (await self._credentials.read()).authorization
            for session in (self._writes, self._reads):
                session.headers["Authorization"] = self._authorization


def _get(path: str, timeout: aiohttp.ClientTimeout, terms: ReadTerms) -> Request:
    return Request("GET", path, timeout, headers={"Accept": terms.accept}, owed=terms.owed)


def _session(access: Access, limits: TransportLimits, *, connections: int) -> aiohttp.ClientSession:
    headers = {"User-Agent": "leeboard", "Accept": ANY_JSON, "Accept-Encoding": "identity"}
    if access.authorization:
        headers["Authorization"] = access.authorization
    connector = aiohttp.TCPConnector(
        limit=connections, ssl=access.tls or True, keepalive_timeout=limits.idle_connection_s, ttl_dns_cache=10
    )
    return aiohttp.ClientSession(
        connector=connector, headers=headers, cookie_jar=aiohttp.DummyCookieJar(), read_bufsize=1 << 18
    )


async def _whole(content: aiohttp.StreamReader, most_bytes: int) -> bytes:
    parts, size = [], 0
    while part := await content.readany():
        parts.append(part)
        size += len(part)
        if size > most_bytes:
            raise errors.LongAnswerError(f"the answer is longer than {most_bytes} bytes")
    return b"".join(parts)
