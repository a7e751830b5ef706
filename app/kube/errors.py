"""Maps errors of API requests to the error tree of `model.seam`, by whether a write was certainly not done.

tests/system/test_kube_client.py holds, row by row, what a real kube-apiserver 1.36 answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from app.model.seam import (
    BudgetError,
    ConflictError,
    ForbiddenError,
    KubeError,
    NotFoundError,
    OutcomeUnknownError,
    RejectedError,
    UnavailableError,
    WebhookFailedError,
)

MESSAGE_CHARACTERS = 1000
LONGEST_RETRY_AFTER_S = 60.0
UNREACHABLE_RETRY_AFTER_S = 0.2
TIMED_OUT, GONE, TOO_MANY, FIRST_FAULT, NOT_NOW = 408, 410, 429, 500, 503
RETRY_AFTER_DIGITS = 9
PRECONDITIONS = ("UID in precondition", "UID in the precondition")
"""The store's text for a Binding or DELETE with a wrong uid, and an Eviction's text (a 409 like others)."""
BUDGET_CAUSE = "DisruptionBudget"
SEVERAL_BUDGETS = "more than one PodDisruptionBudget"
"""An Eviction gets a 500 in this case, whatever the budgets allow."""
FAILED_WEBHOOK = "failed calling webhook"
"""This is a 500, too. Webhooks are called before anything is stored, so the write was certainly not done."""


class ExpiredError(RejectedError):
    """The resourceVersion or the continue token is too old: list again (410)."""


class UnauthenticatedError(ForbiddenError):
    """The API server does not accept the token: it has expired, or the API server has only just started (401)."""


class AccessError(UnauthenticatedError):
    """The credentials cannot be read: kubeconfig, service account or exec plugin."""


class BrokenStreamError(KubeError):
    """A list or a watch returned something impossible or unreadable: start it again."""


class TooLongError(UnavailableError):
    """The answer to a read is longer than the limit."""


class LongAnswerError(aiohttp.ClientPayloadError):
    """Stops the reading of an answer that is too long."""


class StaleError(BrokenStreamError):
    """The watch cannot be continued from the known state: list again."""


BY_STATUS: Mapping[int, type[KubeError]] = {
    401: UnauthenticatedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    GONE: ExpiredError,
}
"""The error of a status after the special cases. Any other refusal is an invalid request (`RejectedError`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiReply:
    """An answer whose body has been read."""

    status: int
    body: bytes
    retry_after: str = ""


def refusal(method: str, reply: ApiReply) -> KubeError:
    """Return the error for an answer with status 300 or above."""
    status = _status(reply.body)
    text = f"{reply.status} {_message(status, reply.body)}"
    if _uid_differs(status):
        return NotFoundError(text)
    if _is_bound(status):
        return ConflictError(text)
    if _is_budget(status):
        return BudgetError(text)
    if _is_undone(reply, status) or _has_webhook_failed(status):
        kind = WebhookFailedError if _has_webhook_failed(status) else UnavailableError
        return kind(text, retry_after_s=_retry_after_s(reply, status))
    if reply.status == TIMED_OUT or reply.status >= FIRST_FAULT:
        return unanswered(method, text)
    return BY_STATUS.get(reply.status, RejectedError)(text)


def lost(method: str, cause: aiohttp.ClientError | OSError) -> KubeError:
    """Return the error for a request without a complete answer."""
    text = f"{type(cause).__name__}: {cause}"[:MESSAGE_CHARACTERS]
    if isinstance(cause, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        # There was no connection, so no byte of the request was sent.
        return UnavailableError(text, retry_after_s=UNREACHABLE_RETRY_AFTER_S)
    if isinstance(cause, LongAnswerError) and method == "GET":
        return TooLongError(text)
    return unanswered(method, text)


def unanswered(method: str, text: str) -> KubeError:
    """Return the error for an unknown outcome. A read changes nothing, so it may be repeated."""
    if method == "GET":
        return UnavailableError(text, retry_after_s=UNREACHABLE_RETRY_AFTER_S)
    return OutcomeUnknownError(text)


def of_error_event(status: dict[str, Any]) -> KubeError:
    """Return the error for the Status in a watch's ERROR event. Each of them requires a new list."""
    if status.get("code") == GONE or status.get("reason") in {"Expired", "Gone"}:
        return ExpiredError(_message(status, b""))
    return StaleError(f"the watch ended with an error: {_message(status, b'')}")


def _status(body: bytes) -> dict[str, Any]:
    try:
        decoded = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return decoded if isinstance(decoded, dict) and decoded.get("kind") == "Status" else {}


def _message(status: dict[str, Any], body: bytes) -> str:
    text = str(status.get("message") or status.get("reason") or body[:MESSAGE_CHARACTERS].decode(errors="replace"))
    return text.strip()[:MESSAGE_CHARACTERS]


def _causes(status: dict[str, Any]) -> list[dict[str, Any]]:
    details = status.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    return [cause for cause in causes if isinstance(cause, dict)] if isinstance(causes, list) else []


def _uid_differs(status: dict[str, Any]) -> bool:
    # A Binding reports this in its message (409). A patch reports that the uid is immutable (422).
    in_patch = any(cause.get("field") == "metadata.uid" for cause in _causes(status))
    message = str(status.get("message"))
    return in_patch or any(words in message for words in PRECONDITIONS)


def _is_budget(status: dict[str, Any]) -> bool:
    # It is a 429 like that of a busy API server; only its cause differs.
    caused = any(cause.get("reason") == BUDGET_CAUSE for cause in _causes(status))
    return caused or SEVERAL_BUDGETS in str(status.get("message"))


def _has_webhook_failed(status: dict[str, Any]) -> bool:
    return FAILED_WEBHOOK in str(status.get("message"))


def _is_undone(reply: ApiReply, status: dict[str, Any]) -> bool:
    # A proxy's own 503 has no Status, and the proxy may have forwarded the request before.
    return reply.status == TOO_MANY or (reply.status == NOT_NOW and bool(status))


def _is_bound(status: dict[str, Any]) -> bool:
    forbidden = {cause.get("field") for cause in _causes(status) if cause.get("reason") == "FieldValueForbidden"}
    return "status.nominatedNodeName" in forbidden


def _retry_after_s(reply: ApiReply, status: dict[str, Any]) -> float:
    details = status.get("details")
    said = reply.retry_after or str(details.get("retryAfterSeconds", "") if isinstance(details, dict) else "")
    if not (said.isascii() and said.isdigit() and len(said) <= RETRY_AFTER_DIGITS):
        return 1.0
    return min(float(said), LONGEST_RETRY_AFTER_S)
