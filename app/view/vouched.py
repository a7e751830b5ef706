"""Users for whom the deciding process vouches: the API server has authenticated them at its port.

The secret is made at start and reaches the view through an inherited socket. Who knows it may call itself anything.
"""

import base64
import json
import zlib
from dataclasses import asdict
from http import HTTPStatus
from secrets import compare_digest

from app.model.rights import User
from app.web.callers import SAY_WHO, Caller, CallersByName, RefusedError

SCHEME = "Vouched"
LONGEST = 24 * 1024
"""The listener of the view takes 32 KiB of headers. Names of groups become a third or less."""
TOO_MANY_GROUPS = "your user is in too many groups for the view; ask the read API for queues, podgroups or gpus instead"


def vouched(user: User, secret: str) -> str:
    """Return the Authorization header of a user; raise `RefusedError` when it would be too long."""
    said = base64.urlsafe_b64encode(zlib.compress(json.dumps(asdict(user)).encode())).decode()
    if len(said) > LONGEST:
        raise RefusedError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, TOO_MANY_GROUPS)
    return f"{SCHEME} {secret} {said}"


class VouchedCallers:
    """Believes the deciding process, and leaves all others to other callers."""

    def __init__(self, others: CallersByName, secret: str) -> None:
        self._others = others
        self._secret = secret

    async def of(self, authorization: str, address: str) -> Caller:
        """Return the caller of this Authorization header; raise `RefusedError`."""
        scheme, *said = authorization.split(" ")
        if scheme != SCHEME:
            return await self._others.of(authorization, address)
        if not said or not compare_digest(said[0].encode(), self._secret.encode()):
            raise RefusedError(HTTPStatus.UNAUTHORIZED, SAY_WHO)
        user = json.loads(zlib.decompress(base64.urlsafe_b64decode(said[1])))
        extra = tuple((key, tuple(values)) for key, values in user["extra"])
        return self._others.of_user(User(**{**user, "groups": tuple(user["groups"]), "extra": extra}))
