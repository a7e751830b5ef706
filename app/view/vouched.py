"""Users for whom the deciding process vouches: the API server has authenticated them at its port.

The secret is made at start and reaches the view through an inherited socket. Who knows it may call itself anything.
"""

import base64
import json
from dataclasses import asdict
from http import HTTPStatus
from secrets import compare_digest

from app.model.rights import User
from app.web.callers import SAY_WHO, Caller, CallersByName, RefusedError

SCHEME = "Vouched"


def vouched(user: User, secret: str) -> str:
    """Return the Authorization header of a user."""
    return f"{SCHEME} {secret} {base64.urlsafe_b64encode(json.dumps(asdict(user)).encode()).decode()}"


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
        user = json.loads(base64.urlsafe_b64decode(said[1]))
        extra = tuple((key, tuple(values)) for key, values in user["extra"])
        return self._others.of_user(User(**{**user, "groups": tuple(user["groups"]), "extra": extra}))
