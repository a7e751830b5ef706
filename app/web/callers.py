"""Authenticates the callers of metrics and the read API, and finds out what they may see.

TokenReview identifies the user of a token, unless the API server has said who asks. SubjectAccessReview gives the
user's rights. Both results are cached for seconds. Under a flood of unknown tokens the API server gets one review at a
time, and few for each client address.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Protocol, TypeVar

from cachetools import TTLCache
from fastapi import HTTPException, Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.client.tokens import TOKEN_HEADER
from app.model.rights import Right, User
from app.model.seam import KubeError
from app.model.sentence import EVERYTHING, Reader
from app.web import problem
from app.web.visits import Asks

T = TypeVar("T")

PODS = Right(group="", resource="pods", verb="list", without="names of pods are not shown")
"""A user with this right in a namespace sees the names in it. A user with it in all namespaces sees everything."""
QUEUES = Right(group="scheduling.run.ai", resource="queues", verb="list", without="the queues are not shown")
METRICS = Right(group="", resource="", verb="get", path="/metrics", without="metrics are not shown")
"""The right that kube-scheduler and other control plane components require for their metrics."""

HEALTH = ("/livez", "/healthz", "/readyz")
CALLER = "caller"
"""A key of the scope's state."""

LONGEST_TOKEN = 16 * 1024
KNOWN_S, KNOWN_TOKENS = 60.0, 1_000
REFUSED_S, REFUSED_TOKENS = 10.0, 10_000
RIGHTS_S, RIGHTS_KNOWN = 30.0, 20_000
FAILURES, ADDRESSES = 10, 4_096
"""`FAILURES` is how many unknown tokens one address may send within `REFUSED_S`; after that its tokens are not
reviewed, except those that were known.
"""
GOOD_S = 3600.0
"""For how long a known token is reviewed again whatever its address sends: behind the API server's proxy all callers
have one address.
"""
LONGEST_NAMESPACE = 63
"""RFC 1123 label. No namespace has a longer name, so no review is asked about it."""
REST_S = 0.01
"""The pause between two reviews. All readers together cause at most 100 reviews a second."""
MOST_NAMESPACES = 200
"""The most namespaces that are reviewed for one answer, or for one part of a long list. Names in others are not shown.
"""

SAY_WHO = (
    f"send a token of the cluster as `Authorization: Bearer TOKEN` or as `{TOKEN_HEADER}: TOKEN`; create one with"
    " `kubectl -n leeboard create token leeboard-reader`"
)
UNKNOWN_TOKEN = "the API server does not know this token; it may have expired"  # noqa: S105 # a sentence
TOO_MANY = "too many tokens from this address that the API server does not know; try again in some seconds"
MORE_NAMESPACES = (
    f"Names in some namespaces are not shown: your rights are looked up in {MOST_NAMESPACES} namespaces at a time. Ask"
    " again within half a minute to see more, or ask for a ClusterRole that lets you list pods in all namespaces."
)
NOT_KNOWN = "the API server does not say which user this token belongs to, or what the user may see: {error}"


class RefusedError(Exception):
    """The reader gets no answer. The sentence says what to do."""

    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Caller(Protocol):
    """An authenticated caller. Its methods raise `RefusedError` when the rights cannot be looked up."""

    @property
    def name(self) -> str:
        """The user; empty where nobody has to say who asks."""
        ...

    async def reader(self, namespaces: Iterable[str]) -> Reader:
        """Return a reader that sees the namespaces, of those given, that the caller may see."""
        ...

    async def may(self, *rights: Right) -> bool:
        """Return whether the caller has all of these rights."""
        ...


class Callers(Protocol):
    """Authenticates callers."""

    async def of(self, authorization: str, address: str) -> Caller:
        """Return the caller with this Authorization header and address; raise `RefusedError`."""
        ...


class CallersByName(Callers, Protocol):
    """Also knows callers that somebody else has authenticated."""

    def of_user(self, user: User) -> Caller:
        """Return the caller that is this user; raise `RefusedError`."""
        ...


class CallerReviews(Protocol):
    """The reviews of the API server. Each method raises `KubeError`."""

    async def user_of(self, token: str) -> User | None:
        """Return the user of a token; None when the token is unknown."""
        ...

    async def allows_user(self, right: Right, user: User) -> bool:
        """Return whether the user has this right."""
        ...


class Anybody:
    """Shows everything to every caller. Only a setting enables it; the caller's address never does."""

    name = ""

    async def of(self, authorization: str, address: str) -> Caller:
        """Return a caller who may see everything."""
        del authorization, address
        return self

    def of_user(self, user: User) -> Caller:
        """Return a caller who may see everything."""
        del user
        return self

    async def reader(self, namespaces: Iterable[str]) -> Reader:
        """Return a reader that sees everything."""
        del namespaces
        return EVERYTHING

    async def may(self, *rights: Right) -> bool:
        """Return True."""
        del rights
        return True


class Nobody:
    """Refuses every caller, because there is no API server that can review tokens."""

    async def of(self, authorization: str, address: str) -> Caller:
        """Raise `RefusedError`."""
        del authorization, address
        raise RefusedError(HTTPStatus.UNAUTHORIZED, SAY_WHO)

    def of_user(self, user: User) -> Caller:
        """Raise `RefusedError`."""
        raise RefusedError(HTTPStatus.UNAUTHORIZED, f"Leeboard has no API server that says what {user.name} may see")


class Reviewed:
    """Asks the API server. An instance belongs to the event loop that uses it first."""

    def __init__(self, authority: CallerReviews, asks: Asks, *, clock: Callable[[], float]) -> None:
        """Start with empty caches. `authority` belongs to the main loop; `asks` calls it there."""
        self._authority = authority
        self._asks = asks
        self._users: TTLCache[bytes, User] = TTLCache(KNOWN_TOKENS, KNOWN_S, timer=clock)
        self._good: TTLCache[bytes, bool] = TTLCache(KNOWN_TOKENS, GOOD_S, timer=clock)
        self._unknown: TTLCache[bytes, bool] = TTLCache(REFUSED_TOKENS, REFUSED_S, timer=clock)
        self._failures: TTLCache[str, int] = TTLCache(ADDRESSES, REFUSED_S, timer=clock)
        self._rights: TTLCache[tuple[User, Right], bool] = TTLCache(RIGHTS_KNOWN, RIGHTS_S, timer=clock)
        self._one_at_a_time = asyncio.Lock()

    async def of(self, authorization: str, address: str) -> Caller:
        """Return the caller that this token belongs to; raise `RefusedError`."""
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > LONGEST_TOKEN:
            raise RefusedError(HTTPStatus.UNAUTHORIZED, SAY_WHO)
        digest = hashlib.sha256(token.encode()).digest()
        user = self._users.get(digest) or await self._looked_up(token, digest, address)
        return _User(user, self)

    def of_user(self, user: User) -> Caller:
        """Return the caller that is this user."""
        return _User(user, self)

    async def may(self, right: Right, user: User) -> bool:
        """Return whether a user has a right. The result may be up to 30 s old."""
        if (known := self._rights.get((user, right))) is not None:
            return known
        async with self._one_at_a_time:
            if (known := self._rights.get((user, right))) is None:
                known = await self._reviewed(lambda: self._authority.allows_user(right, user))
                self._rights[user, right] = known
        return known

    def knows(self, right: Right, user: User) -> bool:
        """Return whether `may` would answer from its cache."""
        return (user, right) in self._rights

    async def _looked_up(self, token: str, digest: bytes, address: str) -> User:
        self._refuse_unknown(digest, address)
        async with self._one_at_a_time:
            # Another task may have looked it up while this task waited for the lock.
            if (user := self._users.get(digest)) is not None:
                return user
            self._refuse_unknown(digest, address)
            user = await self._reviewed(lambda: self._authority.user_of(token))
            if user is None:
                self._unknown[digest] = True
                self._good.pop(digest, None)
                self._failures[address] = self._failures.get(address, 0) + 1
                raise RefusedError(HTTPStatus.UNAUTHORIZED, UNKNOWN_TOKEN)
            self._users[digest], self._good[digest] = user, True
            return user

    def _refuse_unknown(self, digest: bytes, address: str) -> None:
        if digest in self._unknown:
            raise RefusedError(HTTPStatus.UNAUTHORIZED, UNKNOWN_TOKEN)
        if self._failures.get(address, 0) >= FAILURES and digest not in self._good:
            raise RefusedError(HTTPStatus.TOO_MANY_REQUESTS, TOO_MANY)

    async def _reviewed(self, review: Callable[[], Awaitable[T]]) -> T:
        try:
            return await self._asks.run(review)
        except KubeError as error:
            raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, NOT_KNOWN.format(error=error)) from error
        except HTTPException as error:
            # The main loop does not answer. `Guarded` runs outside FastAPI, so nothing turns an HTTPException into a
            # response.
            raise RefusedError(HTTPStatus(error.status_code), error.detail) from error
        finally:
            await asyncio.sleep(REST_S)


@dataclass(frozen=True, slots=True)
class _User:
    """A user that the API server knows."""

    user: User
    reviewed: Reviewed

    @property
    def name(self) -> str:
        """The name of the user."""
        return self.user.name

    async def reader(self, namespaces: Iterable[str]) -> Reader:
        """Return a reader that sees the namespaces, of those given, in which the user may list pods."""
        if await self.reviewed.may(PODS, self.user):
            return EVERYTHING
        seen, reviews = set[str](), 0
        for namespace in sorted({name for name in namespaces if len(name) <= LONGEST_NAMESPACE}):
            right = replace(PODS, namespace=namespace)
            reviews += not self.reviewed.knows(right, self.user)
            if reviews <= MOST_NAMESPACES and await self.reviewed.may(right, self.user):
                seen.add(namespace)
        return Reader(frozenset(seen), MORE_NAMESPACES if reviews > MOST_NAMESPACES else "")

    async def may(self, *rights: Right) -> bool:
        """Return whether the user has all of these rights."""
        return all([await self.reviewed.may(each, self.user) for each in rights])


class Guarded:
    """An ASGI app that shows unauthenticated clients only the health endpoints.

    It stores the caller in `request.state.caller`, unless an app around it has stored one.
    """

    def __init__(self, app: ASGIApp, callers: Callers) -> None:
        self._app = app
        self._callers = callers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Authenticate the caller, then call the app."""
        if not is_health(scope["path"]) and CALLER not in scope.get("state", ()):
            headers: Mapping[bytes, bytes] = dict(scope["headers"])
            client = scope.get("client") or ("", 0)
            try:
                caller = await self._callers.of(token_of(headers), client[0])
            except RefusedError as error:
                await refusal(error)(scope, receive, send)
                return
            scope.setdefault("state", {})[CALLER] = caller
        await self._app(scope, receive, send)


def token_of(headers: Mapping[bytes, bytes]) -> str:
    """Return the token of a request in the form of an Authorization header; empty when there is none."""
    authorization = headers.get(b"authorization", b"").decode("latin-1")
    token = headers.get(TOKEN_HEADER.lower().encode(), b"").decode("latin-1").strip()
    return authorization or (token and f"Bearer {token}")


def is_health(path: str) -> bool:
    """Return whether a path is a health endpoint."""
    return any(path == each or path.startswith(f"{each}/") for each in HEALTH)


async def refused(_request: Request, error: Exception) -> Response:
    """Turn a `RefusedError` from a route into a response."""
    if not isinstance(error, RefusedError):
        raise error
    return refusal(error)


def refusal(refused: RefusedError) -> Response:
    """Return a refusal as problem JSON."""
    said = problem.response(refused.status, str(refused))
    if refused.status is HTTPStatus.UNAUTHORIZED:
        said.headers["www-authenticate"] = "Bearer"
    return said
