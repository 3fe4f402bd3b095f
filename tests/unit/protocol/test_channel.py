"""A stream carries whole messages of any size in their order, and neither end ever waits."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from sentinel.errors import WireError
from sentinel.protocol.codec import MAX_MESSAGE_BYTES, MessageStream, decode
from sentinel.protocol.views import LogRecord

Pair = tuple[MessageStream, MessageStream]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield MessageStream(ours), MessageStream(theirs)


def record(number: int, size: int = 0) -> LogRecord:
    return LogRecord(number=number, event={"text": "x" * size})


def received(stream: MessageStream) -> list[LogRecord]:
    return [decode(data, (LogRecord,)) for data in stream.receive()]


def test_messages_arrive_whole_and_in_order_however_the_bytes_are_cut(pair: Pair) -> None:
    ours, theirs = pair
    sent = [record(1), record(2, 3_000_000), record(3)]
    waiting = list(sent)
    found: list[LogRecord] = []
    while len(found) < len(sent):
        while waiting and ours.send(waiting[0]):
            waiting.pop(0)
        ours.flush()
        found += received(theirs)
    assert found == sent
    assert not ours.blocked


def test_a_reader_that_stops_costs_one_message_and_a_later_one_is_not_begun(pair: Pair) -> None:
    ours, theirs = pair
    assert ours.send(record(1, 3_000_000))
    assert ours.blocked
    assert not ours.send(record(2))
    found: list[LogRecord] = []
    while not found:
        ours.flush()
        found = received(theirs)
    assert [one.number for one in found] == [1]
    assert ours.send(record(3))
    assert [one.number for one in received(theirs)] == [3]


def test_a_message_above_the_limit_is_refused_by_both_ends(pair: Pair) -> None:
    ours, theirs = pair
    with pytest.raises(WireError, match="larger than"):
        ours.send(record(1, MAX_MESSAGE_BYTES))
    ours.channel.send((MAX_MESSAGE_BYTES + 1).to_bytes(4))
    with pytest.raises(WireError, match="larger than"):
        theirs.receive()


def test_the_end_of_the_stream_follows_its_last_message(pair: Pair) -> None:
    ours, theirs = pair
    theirs.send(record(9))  # unread at the end, which resets the connection once
    ours.send(record(1))
    ours.channel.send(b"\0\0")  # the beginning of a message that never comes
    ours.channel.close()
    assert [one.number for one in received(theirs)] == [1]
    assert theirs.receive() == []
    assert theirs.ended
    with pytest.raises(ConnectionError):
        theirs.send(record(2))
