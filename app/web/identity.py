"""Who asks, as the front proxy of the API server says. Nobody else is believed, and no header that a client may set."""

from collections.abc import Iterator, Sequence
from http import HTTPStatus
from urllib.parse import unquote

from starlette.types import Scope

from app.certificates.front_proxy import EXTRA, GROUP, UID, USER, FrontProxy
from app.model.rights import User
from app.web.callers import RefusedError
from app.web.connection import PEER, Peer

NOBODY_KNOWN = "it is not known yet who the API server's front proxy is; /readyz says why"
NOT_THE_PROXY = "only the API server may connect here; ask it for /apis/view.leeboard.dev/v1"
NO_USER = "the API server does not say who asks"
ANONYMOUS = "an anonymous user sees nothing; log in to the API server"


def user_of(scope: Scope, proxy: FrontProxy | None) -> User:
    """Return the user that asks; raise `RefusedError`."""
    if proxy is None:
        raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, NOBODY_KNOWN)
    if not _is_proxy(scope.get("state", {}).get(PEER), proxy):
        raise RefusedError(HTTPStatus.FORBIDDEN, NOT_THE_PROXY)
    try:
        said = [(name.decode("ascii"), value.decode()) for name, value in scope["headers"] if _tells(name, proxy)]
    except UnicodeDecodeError:
        raise RefusedError(HTTPStatus.UNAUTHORIZED, NO_USER) from None
    names, uids, groups = ([value for name, value in said if name == header] for header in (USER, UID, GROUP))
    if len(names) != 1 or not names[0] or len(uids) > 1:
        raise RefusedError(HTTPStatus.UNAUTHORIZED, NO_USER)
    if names[0] == "system:anonymous" or "system:unauthenticated" in groups:
        raise RefusedError(HTTPStatus.UNAUTHORIZED, ANONYMOUS)
    return User(name=names[0], uid="".join(uids), groups=tuple(filter(None, groups)), extra=tuple(_extra(said)))


def _is_proxy(peer: Peer | None, proxy: FrontProxy) -> bool:
    """Return whether a client is the front proxy; a connection from before its CA was replaced no longer is."""
    if peer is None or not peer.authorities or not peer.authorities <= proxy.fingerprints:
        return False
    return not proxy.names or (peer.name != "" and peer.name in proxy.names)


def _tells(name: bytes, proxy: FrontProxy) -> bool:
    header = name.decode("latin-1").lower()
    return (EXTRA if header.startswith(EXTRA) else header) in proxy.headers


def _extra(said: Sequence[tuple[str, str]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    found: dict[str, list[str]] = {}
    for name, value in said:
        if name.startswith(EXTRA):
            found.setdefault(unquote(name.removeprefix(EXTRA)), []).append(value)
    for key in sorted(found):
        yield key, tuple(found[key])
