"""Every message survives encoding unchanged, and anything else is refused."""

from __future__ import annotations

import dataclasses
import json
import socket
import typing
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.errors import WireError
from sentinel.protocol.codec import (
    MAX_DATAGRAM_BYTES,
    MAX_MESSAGE_BYTES,
    MessageStream,
    decode,
    encode,
    repeated_key,
)
from sentinel.protocol.gpu import Gpu, GpuProcess, Memory, Reading
from sentinel.protocol.probe import Inventory, ProbeMessage, Watch
from sentinel.protocol.stressor import (
    ChildMessage,
    CreatingContext,
    Failed,
    FailureKind,
    FindingAck,
    Lease,
    Pace,
    Progress,
    Ready,
    Stop,
)
from sentinel.protocol.views import LogRecord

FROM_PROBE: tuple[type, ...] = typing.get_args(ProbeMessage)
FROM_CHILD: tuple[type, ...] = typing.get_args(ChildMessage)
ORDERS: tuple[type, ...] = (Lease, FindingAck, Pace, Stop, Watch)
EVERY_KIND = (*FROM_PROBE, *FROM_CHILD, *ORDERS)

# NVML's numbers are finite and its names short; any such value must work.
st.register_type_strategy(int, st.integers(-(2**63), 2**63 - 1))
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
st.register_type_strategy(str, st.text(max_size=40))
# Every sender has dictionaries; hypothesis would also draw a ChainMap.
st.register_type_strategy(
    Mapping, lambda kind: st.dictionaries(*map(st.from_type, typing.get_args(kind)))
)

PROGRESS = Progress(seconds=1.0, iterations=3, flops=1e12, bytes=0.0, checks=2, errors=0)


def body_of(message: object) -> dict[str, typing.Any]:
    """Decode the datagram of ``message`` into JSON for changes."""
    return typing.cast("dict[str, typing.Any]", json.loads(encode(message)))


def changed_message(message: object, **changes: object) -> bytes:
    return json.dumps({**body_of(message), **changes}).encode()


@pytest.mark.parametrize("kind", EVERY_KIND, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_every_message_is_unchanged_by_encoding_and_decoding(
    kind: type, data: st.DataObject
) -> None:
    message: object = data.draw(st.from_type(kind))
    assert decode(encode(message), EVERY_KIND) == message


def test_a_reading_of_hundreds_of_processes_fits_one_datagram() -> None:
    processes = tuple(
        GpuProcess(pid=4_000_000 + n, memory=2**37, started=2**40 + n, session=n, name="python3.12")
        for n in range(300)
    )
    reading = Reading(uuid="GPU-" + 36 * "f", at=1e6, processes=processes, processes_at=1e6)
    assert decode(encode(reading), [Reading]) == reading


def test_a_datagram_larger_than_allowed_is_refused_by_its_sender() -> None:
    with pytest.raises(WireError, match="larger than"):
        encode(Failed(kind=FailureKind.WORKLOAD, reason="x" * MAX_DATAGRAM_BYTES))


@given(st.binary())
def test_garbage_is_refused_without_side_effects(data: bytes) -> None:
    with pytest.raises(WireError, match="invalid message"):
        decode(data, EVERY_KIND)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(json_values)
def test_json_that_is_no_message_is_refused(value: object) -> None:
    with pytest.raises(WireError):
        decode(json.dumps(value).encode(), EVERY_KIND)


@given(st.data())
def test_a_message_with_any_field_replaced_by_any_json_is_read_or_refused(
    data: st.DataObject,
) -> None:
    body = body_of(data.draw(st.one_of(*(st.from_type(kind) for kind in EVERY_KIND))))
    body[data.draw(st.sampled_from(sorted(body)))] = data.draw(json_values)
    try:
        message: object = decode(json.dumps(body).encode(), EVERY_KIND)
    except WireError:
        return
    # Whole numbers may replace floats; otherwise the new value has the declared type.
    assert json.loads(encode(message)) == body


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"null",
        b"[]",
        b'"Stop"',
        b'{"type":null}',
        b'{"type":["Stop"]}',
        b'{"type":"Kill"}',
        b'{"type":"Stop"',
        b'{"type":"Stop"}{"type":"Stop"}',
        b'\xff{"type":"Stop"}',
        b"[" * 100_000,
        b'{"type":' * 5_000,
        b'{"type":"Stop","type":"Nothing"}',
        b"9" * 5_000,
    ],
    ids=lambda data: repr(data[:24]),
)
def test_a_malformed_datagram_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        decode(data, EVERY_KIND)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize("field", ["seconds", "flops"])
def test_nan_and_infinity_are_refused(field: str, number: str) -> None:
    text = encode(PROGRESS).decode()
    value = json.dumps(getattr(PROGRESS, field))
    changed = text.replace(f'"{field}":{value}', f'"{field}":{number}')
    assert changed != text
    with pytest.raises(WireError):
        decode(changed.encode(), [Progress])


READY = Ready(held=1, asked=1, chunks=1, refused=False)
FAILED = Failed(kind=FailureKind.WORKLOAD, reason="")
READING = Reading(uuid="GPU-1", at=1.0, memory=Memory(total=3, used=1, free=2))
#: What the field of a message never is, such as one of 64 bits.
REFUSED: list[tuple[object, str, tuple[object, ...]]] = [
    (PROGRESS, "iterations", ("3", 3.0, True, None, [3], {"n": 3}, 2**63, -(2**63) - 1, 10**400)),
    (PROGRESS, "seconds", ("1", True, None, [1.0], 10**400)),
    (PROGRESS, "spin", (1,)),
    (READY, "refused", (0, 1, "yes", None)),
    (FAILED, "kind", ("bad_mood",)),
    (READING, "memory", ({"total": 3, "used": 1},)),
    (READING, "processes", ([{"pid": 1}], {"pid": 1})),
]


@pytest.mark.parametrize(
    ("message", "field", "value"),
    [(message, field, value) for message, field, values in REFUSED for value in values],
)
def test_a_field_of_another_name_or_type_is_refused(
    message: object, field: str, value: object
) -> None:
    with pytest.raises(WireError, match="fields" if field == "spin" else None):
        decode(changed_message(message, **{field: value}), [type(message)])


def test_a_whole_number_is_accepted_for_a_float_and_converted() -> None:
    progress = decode(changed_message(PROGRESS, seconds=2), [Progress])
    assert isinstance(progress.seconds, float)


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(Progress)])
def test_a_missing_field_is_refused(field: str) -> None:
    body = body_of(PROGRESS)
    del body[field]
    with pytest.raises(WireError, match="fields"):
        decode(json.dumps(body).encode(), [Progress])


def test_an_unread_value_stays_none_and_is_never_empty() -> None:
    unread = Reading(uuid="GPU-1", at=1.0, processes=None)
    empty = Reading(uuid="GPU-1", at=1.0, processes=())
    assert decode(encode(unread), [Reading]).processes is None
    assert decode(encode(empty), [Reading]).processes == ()


def test_a_message_of_another_direction_is_refused() -> None:
    gpu = Gpu(uuid="GPU-1", index=0, name="", pci_bus_id="", memory_total=1)
    inventory = encode(Inventory(gpus=(gpu,), driver="580"))
    with pytest.raises(WireError):
        decode(inventory, FROM_CHILD)
    with pytest.raises(WireError):
        decode(encode(CreatingContext(torch="2.13")), ORDERS)


def test_an_error_quotes_only_the_beginning_of_the_datagram() -> None:
    with pytest.raises(WireError) as caught:
        decode(b"x" * MAX_DATAGRAM_BYTES, EVERY_KIND)
    assert len(str(caught.value)) < 300


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


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('{"gpus": [], "gpus": null}', "gpus"),
        ('{"gpus": 1, "gpu\\u0073": 1}', "gpus"),
        ('[{"a": {"b": 1, "c": 2, "b": 1}}]', "b"),
        ('{"a": {"b": 1}, "c": [{"b": 1}, {"b": 1}]}', None),
        ('{"a": 1, "a": 2', None),
        ("[" * 100_000, None),
        (b"\xff\xfe", None),
        (b"", None),
    ],
)
def test_a_repeated_key_is_found_at_any_depth(text: str | bytes, key: str | None) -> None:
    assert repeated_key(text) == key
