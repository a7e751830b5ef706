"""The ways to the service: its own address, the API server's proxy of its Service, or an aggregated API.

The proxy reaches it wherever kubectl works, and needs no port that is open to people. It removes the Authorization
header, so the token travels in a header of ours. The aggregated API needs no token: the API server says who asks.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse, responses
from itertools import chain
from time import sleep
from typing import Protocol, TypeVar

from app.client.api_server import ApiServer, is_status, message
from app.client.default_tokens import ContextSource, account_of, bearer, default_token, may_be_told
from app.client.http_connection import ALONE, STREAM_SILENCE_S, Address, Connection, Reply
from app.client.reach_errors import (
    NoReplyError,
    NoSuchObjectError,
    NotAllowedError,
    NotAuthenticatedError,
    OnStandbyError,
    ReachError,
    UnansweredError,
    said_by,
)
from app.client.standby_answer import STANDBY
from app.client.tokens import AUDIENCE, TOKEN_HEADER

IN_CLUSTER_URL = "http://leeboard.leeboard.svc:8080"
VIEW_IN_CLUSTER_URL = "http://leeboard-view.leeboard.svc"
SERVICE = "leeboard/leeboard:operations"
"""Namespace, name and port of the Service. `https:` before the name says that the port speaks TLS."""

TOKEN_S = 600
"""The shortest life that the API server gives a token."""

CREATE_TOKEN = "--token $(kubectl -n leeboard create token leeboard-reader)"  # noqa: S105 # a command
TRIES = 8
"""With two replicas, one call in 256 finds only the one on standby."""
AGAIN_S = 0.1
AGAIN_FIX = "try again in some seconds"
TRANSIENT = frozenset((408, 429, 500, 502, 503, 504))
"""The same question may get an answer later."""
NO_ANSWER_FIX = (
    "do its pods run, and is this the operations address? an administrator can try kubectl -n leeboard port-forward"
    " deploy/leeboard 8080"
)
NO_KUBECONFIG_FIX = (
    "there is no kubeconfig either; name one with --kubeconfig, or the address of Leeboard with --server"
)


NO_SERVICE_FIX = "if Leeboard is installed under another name, name its Service with --service NAMESPACE/NAME:PORT"
NO_PAGE_FIX = "set view.enabled in the chart, or name the view with --service NAMESPACE/NAME:PORT or --server URL"

PAGE_BEGINS = b"<!doctype html"

Answered = TypeVar("Answered", Reply, HTTPResponse)


class ServiceWay(Protocol):
    """One way to the service."""

    def ask(self, path: str, headers: Mapping[str, str]) -> Reply:
        """Send a GET and return the service's answer; raise `ReachError` when the service was not reached."""
        ...

    def stream(self, path: str, headers: Mapping[str, str]) -> HTTPResponse:
        """Open a GET whose body the caller reads; raise `ReachError`."""
        ...

    def unknown_caller(self, said: str) -> ReachError:
        """Return the error when the service does not know who asks."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...

    @property
    def name(self) -> str:
        """What this way leads to, for messages."""
        ...


class DirectWay:
    """The service's own address: a published one, a forwarded port, or the Service inside the cluster."""

    def __init__(
        self, url: str, *, token: str | None, context: ContextSource, timeout_s: float, fix: str = NO_ANSWER_FIX
    ) -> None:
        """`context` is asked for a token when none is given and the address may get it; it returns None for none.

        `fix` is what to do when nothing answers there.
        """
        self._url = url.rstrip("/")
        self._given = token.strip() if token else ""
        self._context = context
        self._timeout_s = timeout_s
        self._fix = fix
        self._connection = Connection(Address(url=self._url), timeout_s=timeout_s)
        # Set when it is first needed, because this may run a plugin.
        self._found: str | None = None

    @property
    def name(self) -> str:
        """The address."""
        return self._url

    def ask(self, path: str, headers: Mapping[str, str]) -> Reply:
        """Send a GET with the token."""
        return self._with_token(lambda token: self._connection.ask("GET", path, {**headers, **bearer(token)}))

    def stream(self, path: str, headers: Mapping[str, str]) -> HTTPResponse:
        """Open a GET on a connection of its own."""
        connection = Connection(Address(url=self._url), timeout_s=max(self._timeout_s, STREAM_SILENCE_S))
        return self._with_token(lambda token: connection.stream("GET", path, {**headers, **ALONE, **bearer(token)}))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _with_token(self, send: Callable[[str], Answered]) -> Answered:
        try:
            answered = send(used := self._token())
            if answered.status != HTTPStatus.UNAUTHORIZED or self._given:
                return answered
            # The token of a plugin or a file may be a new one by now.
            self._found = None
            return answered if self._token() == used else send(self._token())
        except (OSError, HTTPException, ValueError) as error:
            raise NoReplyError(f"{self._url} does not answer: {said_by(error)}; {self._fix}") from error

    def unknown_caller(self, said: str) -> ReachError:
        """Say which token was sent, and how to get another."""
        if self._token():
            fix = f"send another one, such as {CREATE_TOKEN}"
        else:
            had = "has none" if may_be_told(self._url) else f"is not sent to {self._url}, neither HTTPS nor loopback"
            fix = (
                f"send a token of an account that may list pods: {CREATE_TOKEN}; without --token, the token of the"
                f" kubeconfig or of the pod's service account is sent, which {had}"
            )
        return NotAuthenticatedError(f"{self._url} answers only callers with a token: {said}; {fix}")

    def _token(self) -> str:
        if self._given:
            return self._given
        if self._found is None:
            self._found = default_token(self._url, self._context)
        return self._found


class ProxiedWay:
    """The API server's proxy of the Service. It needs the right to get services/proxy of this one name."""

    def __init__(self, api_server: ApiServer, *, service: str, token: str | None, fix: str = NO_SERVICE_FIX) -> None:
        """`service` has the form of `SERVICE`. `fix` is what to do when there is no such Service."""
        self._api_server = api_server
        self._fix = fix
        self._namespace, _, self._service = service.partition("/")
        self._base = f"/api/v1/namespaces/{self._namespace}/services/{self._service}/proxy"
        self._given = token.strip() if token else ""
        # The last token that the service has accepted.
        self._token: str | None = None

    @property
    def name(self) -> str:
        """The Service."""
        return f"Service {self._namespace}/{self._service}"

    def ask(self, path: str, headers: Mapping[str, str]) -> Reply:
        """Send a GET with the token in our header."""
        reply = self._with_token(
            lambda token: self._api_server.ask("GET", self._base + path, {**headers, **_in_our_header(token)})
        )
        if is_status(reply.body):
            raise self._refusal(reply)
        return reply

    def stream(self, path: str, headers: Mapping[str, str]) -> HTTPResponse:
        """Open a GET on a connection of its own."""
        return self._with_token(
            lambda token: self._api_server.stream(self._base + path, {**headers, **_in_our_header(token)})
        )

    def close(self) -> None:
        """Close the connection."""
        self._api_server.close()

    def _with_token(self, send: Callable[[str], Answered]) -> Answered:
        """Send with one token after the other, until the service accepts one."""
        known = [] if self._token is None else [self._token]
        answered = None
        for token in chain(known, self._tokens()):
            answered = send(token)
            self._token = token
            if answered.status != HTTPStatus.UNAUTHORIZED:
                break
        assert answered is not None, "there is at least the empty token"  # noqa: S101 # for mypy
        return answered

    def unknown_caller(self, said: str) -> ReachError:
        """Say which token was sent, and how to get another."""
        had = "the token of your context was not accepted" if self._token else "your context has no token"
        return NotAuthenticatedError(
            f"{self.name} answers only callers with a token: {said}; {had}; send one of an account that may list pods:"
            f" {CREATE_TOKEN}"
        )

    def _tokens(self) -> Iterator[str]:
        """Yield the tokens to try, the most restricted first."""
        token = self._given or self._api_server.token
        if not self._given and (account := account_of(token)) is not None:
            namespace, name = account
            spec = {"audiences": [AUDIENCE], "expirationSeconds": TOKEN_S}
            review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
            # Few accounts may make tokens for themselves.
            with suppress(ReachError, KeyError, TypeError):
                made = self._api_server.create(f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token", review)
                yield str(made["status"]["token"])
        yield token

    def _refusal(self, reply: Reply) -> ReachError:
        """Return the error when the API server did not ask the service."""
        said = message(reply.body)
        if reply.status == HTTPStatus.FORBIDDEN:
            return NotAllowedError(
                f"you have no right to ask Leeboard through the API server (get services/proxy of"
                f" {self._service} in namespace {self._namespace}); ask an administrator for it, or name a published"
                " address with --server"
            )
        if reply.status == HTTPStatus.NOT_FOUND:
            return NoReplyError(f"there is no {self.name}; {self._fix}")
        if reply.status in {HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.BAD_GATEWAY, HTTPStatus.INTERNAL_SERVER_ERROR}:
            return NoReplyError(
                f"{self.name} does not answer: {said}; do its pods run? kubectl -n {self._namespace} get pods"
            )
        return self._api_server.refusal(reply)


class Service:
    """The read API of the service, by the first of some ways that leads to it."""

    def __init__(self, *ways: ServiceWay) -> None:
        # Only the first that has led to the service is asked again.
        self._ways = self._opened = ways

    def ask(self, path: str) -> bytes:
        """Return the JSON of an answer; raise `ReachError`, for the first way when none leads to the service."""
        errors: list[ReachError] = []
        for way in self._ways:
            try:
                reply = _of_the_leader(way, path)
            except ReachError as error:
                errors.append(error)
                continue
            try:
                answer = _accepted(way, reply)
            except (NoSuchObjectError, NotAllowedError, UnansweredError):
                # The service has answered, and would say the same by another way.
                self._ways = (way,)
                raise
            except ReachError as error:
                errors.append(error)
            else:
                self._ways = (way,)
                return answer
        raise errors[0]

    def find_page(self) -> None:
        """Find the first way that leads to the page, and to a view that knows the caller; raise `ReachError`."""
        errors: list[ReachError] = []
        for way in self._ways:
            try:
                _check_page(way)
            except UnansweredError:
                raise
            except ReachError as error:
                errors.append(error)
            else:
                self._ways = (way,)
                return
        raise errors[0]

    def stream(self, path: str, headers: Mapping[str, str]) -> HTTPResponse:
        """Open a GET whose body the caller reads, by the way that answered before."""
        return self._ways[0].stream(path, headers)

    def close(self) -> None:
        """Close the connections."""
        for way in self._opened:
            way.close()


def _of_the_leader(way: ServiceWay, path: str) -> Reply:
    """Ask until the replica that decides answers. Each new connection leads to any replica of the Service."""
    for _ in range(TRIES - 1):
        reply = way.ask(path, {"Accept": "application/json"})
        if reply.status != HTTPStatus.SERVICE_UNAVAILABLE or _problem(reply)[1] != STANDBY:
            return reply
        sleep(AGAIN_S)
    return way.ask(path, {"Accept": "application/json"})


def _check_page(way: ServiceWay) -> None:
    """Raise `ReachError` where there is no page, or its data are not for this caller."""
    page = way.ask("/", {"Accept": "text/html"})
    if page.status in TRANSIENT:
        _accepted(way, page)
    if page.status != HTTPStatus.OK or page.body.lstrip()[: len(PAGE_BEGINS)].lower() != PAGE_BEGINS:
        raise NoReplyError(f"{way.name} has no page of Leeboard; {NO_PAGE_FIX}")
    # Everybody gets the page itself; this only those who get its data.
    _accepted(way, _of_the_leader(way, "/openapi.json"))


def _problem(reply: Reply) -> tuple[str, str]:
    """Return the sentence and the type of a problem of the service; empty ones for any other answer."""
    try:
        said = json.loads(reply.body)
        return str(said["detail"]), str(said.get("type"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", ""


def _accepted(way: ServiceWay, reply: Reply) -> bytes:
    if reply.status == HTTPStatus.OK:
        return reply.body
    detail, kind = _problem(reply)
    if not detail and reply.status in TRANSIENT:
        raise NoReplyError(f"{way.name} gave no answer: {_status(reply)}; {AGAIN_FIX}")
    if not detail:
        raise NoReplyError(f"{way.name} is not Leeboard's operations port; {NO_ANSWER_FIX}")
    if detail.startswith("GET /"):
        # The path means nothing to a user.
        detail = detail.partition(": ")[2]
    if reply.status == HTTPStatus.NOT_FOUND:
        raise NoSuchObjectError(detail)
    if reply.status == HTTPStatus.UNAUTHORIZED:
        raise way.unknown_caller(detail)
    if kind == STANDBY:
        raise OnStandbyError(f"{way.name}: {detail}")
    if reply.status == HTTPStatus.FORBIDDEN:
        raise NotAllowedError(f"{way.name} cannot tell: {detail}")
    fix = "" if "try again" in detail or reply.status not in TRANSIENT else f"; {AGAIN_FIX}"
    raise UnansweredError(f"{way.name} gave no answer ({_status(reply)}): {detail}{fix}")


def _status(reply: Reply) -> str:
    """Return the number of a status and its name, if it has one."""
    return f"{reply.status} {responses.get(reply.status, '')}".rstrip()


def _in_our_header(token: str) -> dict[str, str]:
    return {TOKEN_HEADER: token} if token else {}
