"""Tests of the tests' own client: a connection that the server closes while a request is on its way fails no test."""

import socket
import ssl
from contextlib import closing
from threading import Thread

import httpx
import pytest

from tests.system.api import WRITERS, Api
from tests.system.bed import HOST

ANSWER = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n{"items":[]}'


class Closing:
    """A server that answers on some connections, and closes the others when it has read their request."""

    def __init__(self, *, answers_on: int) -> None:
        """`answers_on`: the number of the only connection, from 0, whose requests are answered."""
        self._socket = socket.create_server((HOST, 0))
        self._answers_on = answers_on
        self.requests = 0
        Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        """Return its address."""
        return f"http://{HOST}:{self._socket.getsockname()[1]}"

    def _serve(self) -> None:
        number = 0
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                self.requests += 1
                if number == self._answers_on:
                    connection.sendall(ANSWER)
            number += 1

    def close(self) -> None:
        """Accept nothing more."""
        self._socket.close()


def client(server: Closing) -> Api:
    return Api(server.url, token="t", verify=ssl.create_default_context())


@pytest.mark.parametrize("closed", [1, WRITERS])
def test_request_on_a_connection_that_is_just_closed_is_sent_again(closed: int) -> None:
    with closing(Closing(answers_on=closed)) as server, client(server) as api:
        assert api.items("/") == []

    assert server.requests == closed + 1


def test_server_that_answers_nothing_is_an_error() -> None:
    with closing(Closing(answers_on=-1)) as server, client(server) as api, pytest.raises(httpx.RemoteProtocolError):
        api.items("/")

    assert server.requests == WRITERS + 1
