"""Reads Kubernetes objects with the caller's own rights."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from time import monotonic
from typing import Any
from urllib.parse import quote, urlencode

from app.client.credentials import Login, login
from app.client.http_connection import ALONE, STREAM_SILENCE_S, Connection, Reply
from app.client.kubeconfig import Context
from app.client.reach_errors import (
    NoReplyError,
    NoSuchObjectError,
    NotAllowedError,
    NotAuthenticatedError,
    ReachError,
    said_by,
)

Object = dict[str, Any]

JSON = {"Accept": "application/json"}
LONGEST_MESSAGE = 400
LOST_S = 1.0
"""How long an API server counts as dead that did not answer."""
PODS = "v1/pods"
EVENTS = "v1/events"
GROUP = "scheduling.run.ai"
POD_GROUPS = f"{GROUP}/v2alpha2/podgroups"
QUEUES = f"{GROUP}/v2/queues"


class ApiServer:
    """The API server of a context. It connects with the first question."""

    def __init__(self, context: Context, *, timeout_s: float) -> None:
        self.context = context
        self._timeout_s = timeout_s
        # Both are set by `_connected`, because this may run a plugin.
        self._login: Login | None = None
        self._connection: Connection | None = None
        # The last error of the connection: the next question does not wait for a dead server again.
        self._lost_by: NoReplyError | None = None
        self._lost_until_s = 0.0

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    @property
    def token(self) -> str:
        """The bearer token of the context; empty for a user with a certificate. Raise `ReachError`."""
        return self._credentials().token

    def get(self, path: str) -> Object:
        """Return an object or a list; raise `ReachError`."""
        return self._object(self.ask("GET", path))

    def create(self, path: str, body: Mapping[str, Any]) -> Object:
        """Create an object; return it as the API server answers."""
        return self._object(self.ask("POST", path, body=json.dumps(body).encode()))

    def ask(self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None) -> Reply:
        """Send a request with the credentials of the context; return any answer. Raise `ReachError`."""
        reply = self._asked(method, path, headers, body)
        if reply.status == HTTPStatus.UNAUTHORIZED and is_status(reply.body):
            # The token of a file or a plugin may be a new one by now.
            self.close()
            self._login = self._connection = None
            reply = self._asked(method, path, headers, body)
        return reply

    def stream(self, path: str, headers: Mapping[str, str]) -> HTTPResponse:
        """Open a GET on a connection of its own, whose body the caller reads. Raise `ReachError`."""
        credentials = self._credentials()
        connection = Connection(credentials.address, timeout_s=max(self._timeout_s, STREAM_SILENCE_S))
        try:
            return connection.stream("GET", path, {**headers, **ALONE, **_authorization(credentials)})
        except (OSError, HTTPException, ValueError) as error:
            raise self._lost(error) from error

    def _asked(self, method: str, path: str, headers: Mapping[str, str] | None, body: bytes | None) -> Reply:
        if self._lost_by is not None and monotonic() < self._lost_until_s:
            raise self._lost_by
        credentials = self._credentials()
        if self._connection is None:
            self._connection = Connection(credentials.address, timeout_s=self._timeout_s)
        sent = {**JSON, **({"Content-Type": "application/json"} if body else {}), **(headers or {})}
        try:
            return self._connection.ask(method, path, sent | _authorization(credentials), body)
        except (OSError, HTTPException, ValueError) as error:
            self._lost_by, self._lost_until_s = self._lost(error), monotonic() + LOST_S
            raise self._lost_by from error

    def _credentials(self) -> Login:
        if self._login is None:
            self._login = login(self.context)
        return self._login

    def _lost(self, error: Exception) -> NoReplyError:
        server, name = self.context.cluster.get("server"), self.context.name
        return NoReplyError(
            f"the API server {server} does not answer: {said_by(error)}; is context {name!r} the right one (--context),"
            " and is the cluster reachable from here?"
        )

    def _object(self, reply: Reply) -> Object:
        if reply.status < HTTPStatus.MULTIPLE_CHOICES:
            try:
                found = json.loads(reply.body)
            except ValueError:
                found = None
            if isinstance(found, dict):
                return found
        raise self.refusal(reply)

    def refusal(self, reply: Reply) -> ReachError:
        """Return the error that an answer of the API server means."""
        said = message(reply.body)
        if reply.status == HTTPStatus.UNAUTHORIZED:
            return NotAuthenticatedError(
                f"the API server does not know you: {said}; log in again, or name another context with --context"
            )
        if reply.status == HTTPStatus.FORBIDDEN:
            return NotAllowedError(said)
        if reply.status == HTTPStatus.NOT_FOUND:
            return NoSuchObjectError(said)
        return NoReplyError(f"the API server {self.context.cluster.get('server')} answers {reply.status}: {said}")


def path_of(resource: str, namespace: str = "", name: str = "", **query: str | int) -> str:
    """Return the path of an object, or of a list; `resource` is its group, version and plural."""
    version, _, plural = resource.rpartition("/")
    root = "/apis" if "/" in version else "/api"
    within = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    named = f"/{quote(name, safe='')}" if name else ""
    asked = f"?{urlencode(query)}" if query else ""
    return f"{root}/{version}{within}/{plural}{named}{asked}"


def message(body: bytes) -> str:
    """Return what a Status says, or the beginning of any other text."""
    try:
        said = json.loads(body)["message"]
    except (ValueError, KeyError, TypeError):
        said = body.decode(errors="replace").strip() or "no text"
    return " ".join(str(said).split())[:LONGEST_MESSAGE]


def is_status(body: bytes) -> bool:
    """Return whether an answer is a Status of the API server, and of nobody behind it."""
    try:
        found = json.loads(body)
    except ValueError:
        return False
    return isinstance(found, dict) and found.get("kind") == "Status"


def _authorization(credentials: Login) -> dict[str, str]:
    return {"Authorization": f"Bearer {credentials.token}"} if credentials.token else {}
