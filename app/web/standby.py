"""The answer of a replica on standby to reads: it knows no reservations, no reasons and no decisions.

It does not pass questions on: the lease names the host of the leader, and no address. A client that asks again over a
new connection of the Service reaches another replica, so the answer closes its connection.
"""

from collections.abc import Callable
from http import HTTPStatus

from fastapi import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.client.standby_answer import STANDBY
from app.web import problem

READS = "/api/v1/"
AGAIN_S = 1
SENTENCE = "this replica is on standby, and {holder} leads; ask again to reach the replica beside it"


def sentence(holder: str) -> str:
    """Return what readers are told while another kube-scheduler leads; empty while none does."""
    return SENTENCE.format(holder=holder) if holder else ""


def response(said: str) -> Response:
    """Return the answer with this sentence."""
    answer = problem.response(HTTPStatus.SERVICE_UNAVAILABLE, said, kind=STANDBY)
    answer.headers.update({"retry-after": str(AGAIN_S), "connection": "close"})
    return answer


class OnlyLeading:
    """An ASGI app that answers no reads on standby."""

    def __init__(self, app: ASGIApp, standby: Callable[[], str]) -> None:
        self._app = app
        self._standby = standby

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or say who leads."""
        said = self._standby() if scope["path"].startswith(READS) else ""
        await (response(said) if said else self._app)(scope, receive, send)
