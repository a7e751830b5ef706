"""The way to the service through the aggregated API, where it is installed."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from http.client import HTTPResponse

from app.client.aggregated_paths import API_SERVICE, aggregated
from app.client.api_server import ApiServer
from app.client.http_connection import Reply
from app.client.reach_errors import NoReplyError, NotAuthenticatedError, ReachError


class AggregatedWay:
    """The aggregated API. Any credential of the context is enough, because the API server says who asks."""

    name = f"APIService {API_SERVICE}"

    def __init__(self, api_server: ApiServer) -> None:
        self._api_server = api_server

    def ask(self, path: str, headers: Mapping[str, str]) -> Reply:
        """Send a GET as the user of the context."""
        reply = self._api_server.ask("GET", aggregated(path), headers)
        if not _is_of_service(reply):
            raise self._refusal(reply)
        return reply

    def stream(self, path: str, headers: Mapping[str, str]) -> HTTPResponse:
        """Open a GET on a connection of its own."""
        return self._api_server.stream(aggregated(path), headers)

    def close(self) -> None:
        """Close the connection."""
        self._api_server.close()

    def unknown_caller(self, said: str) -> ReachError:
        """Say what the service says of the user whom the API server names."""
        return NotAuthenticatedError(f"{self.name}: {said}")

    def _refusal(self, reply: Reply) -> ReachError:
        """Return the error when the API server did not ask the service."""
        if reply.status == HTTPStatus.NOT_FOUND:
            return NoReplyError(f"there is no {self.name}; the chart's value aggregatedApi.enabled makes one")
        if reply.status == HTTPStatus.SERVICE_UNAVAILABLE:
            return NoReplyError(f"{self.name} does not answer: kubectl describe apiservice {API_SERVICE} says why")
        return self._api_server.refusal(reply)


def _is_of_service(reply: Reply) -> bool:
    """Return whether the service has answered, and not the API server, whose errors are a Status or plain text."""
    if reply.status == HTTPStatus.OK:
        return True
    try:
        return "detail" in json.loads(reply.body)
    except (ValueError, TypeError):
        return False
