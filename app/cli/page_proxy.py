"""A proxy on loopback for one browser: it passes reads on to the service with the caller's credentials.

Whoever can reach the port reads with these rights. So the port is on 127.0.0.1, the path begins with a secret, and the
Host header must name the proxy, which a page of another origin cannot make a browser send.
"""

from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from secrets import compare_digest, token_urlsafe
from types import TracebackType
from typing import Any, Self

from app.client.reach_errors import ReachError
from app.client.service_ways import Service

PASSED_ON = ("Accept", "Accept-Encoding", "Cache-Control", "If-None-Match", "Last-Event-ID")
NOT_PASSED_BACK = frozenset(
    (
        *("connection", "keep-alive", "transfer-encoding", "content-length", "server", "date"),
        *("set-cookie", "audit-id", "referrer-policy"),
    )
)
"""Headers that belong to one connection, or to the API server."""

WITHOUT_BODY = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
PART_BYTES = 1 << 16
IDLE_S = 300.0
"""A browser that sends nothing for so long loses its connection."""


class PageProxy:
    """The proxy. Use it as a context manager; `serve` runs until it is interrupted."""

    def __init__(self, service: Service, *, port: int = 0) -> None:
        self._server = _Server(port, service)

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{self._server.hosts[0]}{self._server.prefix}/"

    def serve(self) -> None:
        """Answer until `close`, or until an interrupt."""
        self._server.serve_forever()

    def close(self) -> None:
        """End `serve`, which runs in another thread."""
        self._server.shutdown()

    def __enter__(self) -> Self:
        """Return the proxy."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the port."""
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, service: Service) -> None:
        super().__init__(("127.0.0.1", port), _Passing)
        self.service = service
        self.prefix = f"/{token_urlsafe(16)}"
        self.hosts = tuple(f"{host}:{self.server_port}" for host in ("127.0.0.1", "localhost"))


class _Passing(BaseHTTPRequestHandler):
    """Passes one request on."""

    server: _Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "leeboard", ""
    timeout = IDLE_S

    def do_GET(self) -> None:
        """Pass a read on."""
        if not self._is_ours():
            self._say(HTTPStatus.FORBIDDEN, "open the address that `leeboard open` has printed")
            return
        headers = {name: self.headers[name] for name in PASSED_ON if name in self.headers}
        try:
            response = self.server.service.stream(self.path.removeprefix(self.server.prefix), headers)
        except ReachError as error:
            self._say(HTTPStatus.BAD_GATEWAY, str(error))
            return
        with response:
            self._pass_back(response)

    def log_message(self, *_: Any) -> None:
        """Write nothing: a path has the secret."""

    def _is_ours(self) -> bool:
        before, after = self.path[: len(self.server.prefix)], self.path[len(self.server.prefix) :]
        is_known = compare_digest(before.encode(), self.server.prefix.encode()) and after.startswith("/")
        return is_known and self.headers.get("Host", "") in self.server.hosts

    def _pass_back(self, response: HTTPResponse) -> None:
        self.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in NOT_PASSED_BACK:
                self.send_header(name, value)
        # The address has the secret, so it is told to nobody.
        self.send_header("Referrer-Policy", "no-referrer")
        if response.status in WITHOUT_BODY:
            self.end_headers()
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            # An event of a stream is passed on as soon as it is there.
            while part := response.read1(PART_BYTES):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        except (OSError, HTTPException):
            # The service or the browser has gone; the browser sees an incomplete answer.
            self.close_connection = True

    def _say(self, status: HTTPStatus, text: str) -> None:
        body = f"{text}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
