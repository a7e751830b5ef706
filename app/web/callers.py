"""Finds out who calls metrics and the read API, and what they may see: a token says who, the API server what.

TokenReview, then SubjectAccessReview, each remembered for a moment. A flood of tokens that nobody knows costs the API
server one review at a time, and each address only a few.
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

from app.model.rights import Right, User
from app.model.seam import KubeError
from app.model.sentence import EVERYTHING, Reader
from app.web import problem
from app.web.visits import Asks

T = TypeVar("T")

PODS = Right(group="", resource="pods", verb="list", without="their names are not shown")
"""Who has it in a namespace sees the names in it; who has it everywhere sees all."""
QUEUES = Right(group="scheduling.run.ai", resource="queues", verb="list", without="the queues are not shown")
METRICS = Right(group="", resource="", verb="get", path="/metrics", without="metrics are not shown")
"""As kube-scheduler and the other programs of the control plane ask of Prometheus."""

HEALTH = ("/livez", "/healthz", "/readyz")

LONGEST_TOKEN = 16 * 1024
KNOWN_S, KNOWN_TOKENS = 60.0, 1_000
REFUSED_S, REFUSED_TOKENS = 10.0, 10_000
RIGHTS_S, RIGHTS_KNOWN = 30.0, 20_000
FAILURES, ADDRESSES = 10, 4_096
"""Tokens from one address that nobody knows, within `REFUSED_S`, until no more of its tokens are looked at."""
REST_S = 0.01
"""Between two reviews: all readers together cost the API server no more than a hundred a second."""
MOST_NAMESPACES = 200
"""Namespaces that are reviewed for one answer, or one part of a long list; what is in others is not shown."""

SAY_WHO = (
    "send a token of the cluster as `Authorization: Bearer TOKEN`, such as that of"
    " `kubectl -n leeboard create token leeboard-reader`"
)
UNKNOWN_TOKEN = "the API server does not know this token; it may have expired"  # noqa: S105 # a sentence
TOO_MANY = "too many tokens from here that the API server does not know; try again in some seconds"
MORE_NAMESPACES = (
    f"Names in some namespaces are not shown: your rights are looked up in {MOST_NAMESPACES} namespaces at a time. Ask"
    " again within half a minute to see more, or ask for a ClusterRole that lets you list pods in all namespaces."
)
NOT_KNOWN = "the API server does not say whose token this is and what they may see: {error}"


class RefusedError(Exception):
    """No answer for this reader; one sentence says what to do."""

    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Caller(Protocol):
    """Somebody who asks; each raises `RefusedError` where their rights cannot be found out."""

    async def reader(self, namespaces: Iterable[str]) -> Reader:
        """Return the reader who sees those of these namespaces that the caller may see."""
        ...

    async def may(self, *rights: Right) -> bool:
        """Return whether they have all of these rights."""
        ...


class Callers(Protocol):
    """Finds out who asks."""

    async def of(self, authorization: str, address: str) -> Caller:
        """Return who sends this header from this address; raises `RefusedError`."""
        ...


class CallerReviews(Protocol):
    """The API server; each raises `KubeError`."""

    async def user_of(self, token: str) -> User | None:
        """Return whose token it is; None when it is nobody's."""
        ...

    async def allows_user(self, right: Right, user: User) -> bool:
        """Return whether they have this right."""
        ...


class Anybody:
    """Shows everything to everybody: by a setting, and never because of where somebody comes from."""

    async def of(self, authorization: str, address: str) -> Caller:
        """Return a caller who may see everything."""
        del authorization, address
        return self

    async def reader(self, namespaces: Iterable[str]) -> Reader:
        """Show everything."""
        del namespaces
        return EVERYTHING

    async def may(self, *rights: Right) -> bool:
        """Allow it."""
        del rights
        return True


class Nobody:
    """Shows nothing to anybody: there is no API server that could say who they are."""

    async def of(self, authorization: str, address: str) -> Caller:
        """Refuse."""
        del authorization, address
        raise RefusedError(HTTPStatus.UNAUTHORIZED, SAY_WHO)


class Reviewed:
    """Asks the API server; belongs to the loop that it is first used on."""

    def __init__(self, authority: CallerReviews, asks: Asks, *, clock: Callable[[], float]) -> None:
        """Know nobody yet; `authority` belongs to the main loop, to which `asks` leads."""
        self._authority = authority
        self._asks = asks
        self._users: TTLCache[bytes, User] = TTLCache(KNOWN_TOKENS, KNOWN_S, timer=clock)
        self._unknown: TTLCache[bytes, bool] = TTLCache(REFUSED_TOKENS, REFUSED_S, timer=clock)
        self._failures: TTLCache[str, int] = TTLCache(ADDRESSES, REFUSED_S, timer=clock)
        self._rights: TTLCache[tuple[User, Right], bool] = TTLCache(RIGHTS_KNOWN, RIGHTS_S, timer=clock)
        self._one_at_a_time = asyncio.Lock()

    async def of(self, authorization: str, address: str) -> Caller:
        """Return the caller whose token this is; raises `RefusedError`."""
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > LONGEST_TOKEN:
            raise RefusedError(HTTPStatus.UNAUTHORIZED, SAY_WHO)
        digest = hashlib.sha256(token.encode()).digest()
        user = self._users.get(digest) or await self._looked_up(token, digest, address)
        return _User(user, self)

    async def may(self, right: Right, user: User) -> bool:
        """Return whether a user has a right, as of the last half a minute."""
        if (known := self._rights.get((user, right))) is not None:
            return known
        async with self._one_at_a_time:
            if (known := self._rights.get((user, right))) is None:
                known = await self._reviewed(lambda: self._authority.allows_user(right, user))
                self._rights[user, right] = known
        return known

    def knows(self, right: Right, user: User) -> bool:
        """Return whether `may` would ask nobody."""
        return (user, right) in self._rights

    async def _looked_up(self, token: str, digest: bytes, address: str) -> User:
        self._refuse_unknown(digest, address)
        async with self._one_at_a_time:
            # Others may have found it out while we waited.
            if (user := self._users.get(digest)) is not None:
                return user
            self._refuse_unknown(digest, address)
            user = await self._reviewed(lambda: self._authority.user_of(token))
            if user is None:
                self._unknown[digest] = True
                self._failures[address] = self._failures.get(address, 0) + 1
                raise RefusedError(HTTPStatus.UNAUTHORIZED, UNKNOWN_TOKEN)
            self._users[digest] = user
            return user

    def _refuse_unknown(self, digest: bytes, address: str) -> None:
        if digest in self._unknown:
            raise RefusedError(HTTPStatus.UNAUTHORIZED, UNKNOWN_TOKEN)
        if self._failures.get(address, 0) >= FAILURES:
            raise RefusedError(HTTPStatus.TOO_MANY_REQUESTS, TOO_MANY)

    async def _reviewed(self, review: Callable[[], Awaitable[T]]) -> T:
        try:
            return await self._asks.run(review)
        except KubeError as error:
            raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, NOT_KNOWN.format(error=error)) from error
        except HTTPException as error:
            # The main loop does not answer. No framework is around `Guarded` that would turn this into an answer.
            raise RefusedError(HTTPStatus(error.status_code), error.detail) from error
        finally:
            await asyncio.sleep(REST_S)


@dataclass(frozen=True, slots=True)
class _User:
    """A caller that the API server knows."""

    user: User
    reviewed: Reviewed

    async def reader(self, namespaces: Iterable[str]) -> Reader:
        """Return the reader who sees those of these namespaces in which the user may list pods."""
        if await self.reviewed.may(PODS, self.user):
            return EVERYTHING
        seen, reviews = set[str](), 0
        for namespace in sorted(set(namespaces)):
            right = replace(PODS, namespace=namespace)
            reviews += not self.reviewed.knows(right, self.user)
            if reviews <= MOST_NAMESPACES and await self.reviewed.may(right, self.user):
                seen.add(namespace)
        return Reader(frozenset(seen), MORE_NAMESPACES if reviews > MOST_NAMESPACES else "")

    async def may(self, *rights: Right) -> bool:
        """Return whether the user has all of these rights."""
        return all([await self.reviewed.may(each, self.user) for each in rights])


class Guarded:
    """An ASGI app of which strangers see the health alone; callers are handed on in `request.state.caller`."""

    def __init__(self, app: ASGIApp, callers: Callers) -> None:
        self._app = app
        self._callers = callers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Find out who asks, then have the app answer."""
        if not is_health(scope["path"]):
            headers: Mapping[bytes, bytes] = dict(scope["headers"])
            client = scope.get("client") or ("", 0)
            try:
                caller = await self._callers.of(headers.get(b"authorization", b"").decode("latin-1"), client[0])
            except RefusedError as error:
                await refusal(error)(scope, receive, send)
                return
            scope.setdefault("state", {})["caller"] = caller
        await self._app(scope, receive, send)


def is_health(path: str) -> bool:
    """Return whether a path tells nothing but how Leeboard itself is."""
    return any(path == each or path.startswith(f"{each}/") for each in HEALTH)


async def refused(_request: Request, error: Exception) -> Response:
    """Answer where a route finds that a caller's rights cannot be found out."""
    if not isinstance(error, RefusedError):
        raise error
    return refusal(error)


def refusal(refused: RefusedError) -> Response:
    """Return a refusal as a problem."""
    said = problem.response(refused.status, str(refused))
    if refused.status is HTTPStatus.UNAUTHORIZED:
        said.headers["www-authenticate"] = "Bearer"
    return said
