"""Writes that a connection sends in one piece."""

import asyncio

import pytest

from app.web.connection import Joined


class Recorded(asyncio.Transport):
    """Records what was sent together, and that it was closed."""

    def __init__(self) -> None:
        super().__init__({"peername": "caller"})
        self.sent: list[list[bytes]] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append([bytes(data)])

    def writelines(self, list_of_data: object) -> None:
        assert isinstance(list_of_data, list)
        self.sent.append(list_of_data)

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed


async def end_of_turn() -> None:
    await asyncio.sleep(0)


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


@pytest.fixture
async def transport(recorded: Recorded) -> Joined:
    return Joined(recorded, asyncio.get_running_loop())


async def test_head_is_sent_together_with_its_body(recorded: Recorded, transport: Joined) -> None:
    transport.write(b"head")
    transport.write(b"body")
    await end_of_turn()

    assert recorded.sent == [[b"head", b"body"]]


async def test_buffered_bytes_are_sent_at_the_end_of_the_turn(recorded: Recorded, transport: Joined) -> None:
    transport.write(b"continue")
    at_once = list(recorded.sent)
    await end_of_turn()

    assert (at_once, recorded.sent) == ([], [[b"continue"]])


async def test_long_answer_is_never_buffered_as_a_whole(recorded: Recorded, transport: Joined) -> None:
    for piece in (b"1", b"2", b"3"):
        transport.write(piece)
    at_once = list(recorded.sent)
    await end_of_turn()

    assert (at_once, recorded.sent) == ([[b"1", b"2"]], [[b"1", b"2"], [b"3"]])


async def test_empty_body_sends_its_head(recorded: Recorded, transport: Joined) -> None:
    transport.write(b"head")
    transport.write(b"")
    transport.write(b"")
    await end_of_turn()

    assert recorded.sent == [[b"head", b""]]


async def test_close_sends_buffered_bytes_first(recorded: Recorded, transport: Joined) -> None:
    transport.write(b"last words")
    transport.close()
    await end_of_turn()

    assert (recorded.sent, recorded.closed) == ([[b"last words"]], True)


async def test_nothing_is_sent_over_a_connection_that_was_cut_off(recorded: Recorded, transport: Joined) -> None:
    transport.write(b"head")
    recorded.abort()
    await end_of_turn()

    assert recorded.sent == []


async def test_all_other_calls_go_to_the_connection_itself(transport: Joined) -> None:
    assert transport.get_extra_info("peername") == "caller"
