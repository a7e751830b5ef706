"""One kept-alive HTTP connection, with the TLS options of a kubeconfig. It raises `OSError` and `HTTPException`."""

import os
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, RemoteDisconnected
from time import monotonic
from urllib.parse import urlsplit

from app.client.reach_errors import KubeconfigError

MOST_BYTES = 64 << 20
"""The limit of an answer, because a wrong address may lead to any server. The GPUs of 5,000 nodes take 20 MB."""

ALONE = {"Connection": "close"}
"""The header of a request whose answer owns the connection: closing the answer closes both."""

STREAM_SILENCE_S = 60.0
"""How long a stream may send nothing."""

PART_BYTES = 1 << 16
USER_AGENT = "leeboard"
PORTS = {"http": 80, "https": 443}


class LongReplyError(OSError):
    """The answer is longer than `MOST_BYTES`, or takes longer than the time limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The URL of a server, and how to check that it is this server."""

    url: str
    """Without a slash at the end; it may have a path."""
    ca: str = ""
    """PEM; empty: the authorities of the system."""
    is_verified: bool = True
    server_name: str | None = None
    """The name in the server's certificate; None: that of the URL."""
    proxy: str = ""
    """The URL of an HTTP proxy; empty: that of the environment, if any."""
    certificate: str = field(default="", repr=False)
    """The certificate of the client in PEM, and its key; empty when it has none."""
    key: str = field(default="", repr=False)

    def tls(self) -> ssl.SSLContext | None:
        """Return what a TLS connection needs; None for plain HTTP. Raise `KubeconfigError`."""
        if not self.url.startswith("https:"):
            return None
        try:
            context = ssl.create_default_context(cadata=self.ca or None)
            if not self.is_verified:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            if self.certificate:
                self._show_certificate(context)
        except (ssl.SSLError, ValueError) as error:
            raise KubeconfigError(f"the certificates for {self.url} cannot be used: {error}") from error
        return context

    def _show_certificate(self, context: ssl.SSLContext) -> None:
        # Imported here, since only a user with a certificate needs it.
        from tempfile import NamedTemporaryFile  # noqa: PLC0415

        # The ssl module reads certificates of clients from files only. This one is readable by its owner alone.
        with NamedTemporaryFile("w", prefix="leeboard-", suffix=".pem") as file:
            file.write(f"{self.certificate}\n{self.key}\n")
            file.flush()
            context.load_cert_chain(file.name)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that has been read."""

    status: int
    body: bytes


class _NamedConnection(HTTPConnection):
    """A connection over TLS to a server whose certificate may have another name than its URL."""

    def __init__(self, host: str, port: int, *, tls: ssl.SSLContext, server_name: str, timeout_s: float) -> None:
        super().__init__(host, port, timeout=timeout_s)
        self._tls = tls
        self._server_name = server_name

    def connect(self) -> None:
        """Connect, through the proxy if there is one, and shake hands."""
        super().connect()
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._server_name)


class Connection:
    """Requests to one server, one after the other."""

    def __init__(self, address: Address, *, timeout_s: float) -> None:
        """Connect with the first request, not before."""
        self._address = address
        self._timeout_s = timeout_s
        self._path = urlsplit(address.url).path.rstrip("/")
        self._opened: HTTPConnection | None = None

    def close(self) -> None:
        """Close it. The next request connects again."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None) -> Reply:
        """Send a request and read its answer."""
        deadline = monotonic() + self._timeout_s
        response = self.stream(method, path, headers, body)
        parts, size = [], 0
        while part := response.read1(PART_BYTES):
            parts.append(part)
            size += len(part)
            if size > MOST_BYTES:
                self.close()
                raise LongReplyError(f"the answer is larger than {MOST_BYTES >> 20} MiB")
            if monotonic() > deadline:
                self.close()
                raise LongReplyError(f"the answer is not complete after {self._timeout_s:g} s")
        # Reading in parts does not close an answer, and an open one blocks the next request.
        response.close()
        return Reply(response.status, b"".join(parts))

    def stream(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None) -> HTTPResponse:
        """Send a request; return the answer, whose body the caller reads."""
        is_reused = self._opened is not None
        try:
            return self._sent(method, path, headers, body)
        except RemoteDisconnected:
            # A server may close an idle connection while the request is under way.
            if not is_reused:
                raise
            return self._sent(method, path, headers, body)

    def _sent(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> HTTPResponse:
        if self._opened is None:
            self._opened = self._connection()
        try:
            self._opened.request(method, self._path + path, body, {"User-Agent": USER_AGENT, **headers})
            return self._opened.getresponse()
        except (OSError, HTTPException):
            self.close()
            raise

    def _connection(self) -> HTTPConnection:
        where, tls = urlsplit(self._address.url), self._address.tls()
        try:
            host, port = where.hostname or "", where.port or PORTS[where.scheme]
        except (KeyError, ValueError):
            raise KubeconfigError(f"{self._address.url!r} is not an http:// or https:// address") from None
        proxy = self._address.proxy or _environments_proxy(where.scheme, f"{host}:{port}")
        through, through_port = _proxy_address(proxy) if proxy else (host, port)
        if tls is None:
            made = HTTPConnection(through, through_port, timeout=self._timeout_s)
        else:
            name = self._address.server_name or host
            made = _NamedConnection(through, through_port, tls=tls, server_name=name, timeout_s=self._timeout_s)
        if proxy:
            made.set_tunnel(host, port)
        return made


def _proxy_address(proxy: str) -> tuple[str, int]:
    where = urlsplit(proxy)
    port = None
    with suppress(ValueError):
        port = where.port or PORTS["http"]
    if where.scheme != "http" or not where.hostname or port is None:
        raise KubeconfigError(f"the proxy {proxy!r} cannot be used; only http://HOST:PORT can")
    return where.hostname, port


def _environments_proxy(scheme: str, host: str) -> str:
    variable = f"{scheme}_proxy"
    if not (os.environ.get(variable) or os.environ.get(variable.upper())):
        return ""
    # Imported here, since it takes a quarter of the time in which a command starts.
    from urllib.request import getproxies, proxy_bypass  # noqa: PLC0415

    return "" if proxy_bypass(host) else getproxies().get(scheme, "")
