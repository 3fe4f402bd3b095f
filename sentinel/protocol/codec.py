"""Encode dataclasses as JSON and decode them with every field checked; messages and files use it.

JSON instead of pickle: decoding never runs code that a sender chose.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import socket
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import MAXYEAR, MINYEAR, datetime
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from sentinel.errors import WireError

T = TypeVar("T")
_Reader = Callable[[Any], Any]

#: The largest datagram in bytes. Hundreds of processes on one GPU fit; a runaway reason does not.
MAX_DATAGRAM_BYTES = 64 * 1024

# Built once: building one costs more than using it, dozens of times a second.
_ENCODER = json.JSONEncoder(separators=(",", ":"), default=vars)  # vars: nested dataclasses
_DECODER = json.JSONDecoder()

_TYPE_NAMES = {int: "a whole number", str: "text", bool: "true or false"}
#: Those of 64 bits: a larger one overflows in any calculation with floats, and in SQLite.
_INTEGERS = range(-(2**63), 2**63)

#: The largest message of a stream, in bytes. The view of 128 GPUs with 128 allocations has 5 MB.
MAX_MESSAGE_BYTES = 16 * 2**20
#: More than the kernel keeps for one socket, so that one read takes all that is waiting.
_CHUNK_BYTES = 256 * 1024
#: The size of the length before each message, in bytes.
_PREFIX_BYTES = 4


class DecodeError(ValueError):
    """A JSON value that is not of the declared type.

    Args:
        expected: The type, for people.
        path: Where in the value, such as ``gpus[0].uuid``.
    """

    def __init__(self, expected: str, path: str = "") -> None:
        super().__init__(expected)
        self.expected = expected
        self.path = path

    def __str__(self) -> str:
        """Describe the error in one line."""
        return f"{self.path.lstrip('.') or 'the value'}: expected {self.expected}"


def encode(message: object, max_bytes: int = MAX_DATAGRAM_BYTES) -> bytes:
    """Encode a dataclass as one message, by default a datagram.

    Raises:
        WireError: It is larger than ``max_bytes``.
    """
    body = {"type": type(message).__name__, **vars(message)}
    data = _ENCODER.encode(body).encode()
    if len(data) > max_bytes:
        text = f"{body['type']} of {len(data)} bytes is larger than {max_bytes}"
        raise WireError(text)
    return data


def decode(data: bytes, kinds: Iterable[type[T]]) -> T:
    """Decode a message into one of ``kinds``, with exactly the declared fields.

    Raises:
        WireError: It is not JSON, of another kind, or a field is missing, extra or of a wrong type.
    """
    known: Iterable[Any] = kinds  # type[T] alone is not known to be hashable
    try:
        body = _DECODER.decode(data.decode())
        name = body.pop("type", None) if type(body) is dict else None
        for kind in known:
            if kind.__name__ == name:
                return typing.cast("T", _reader(kind, exact=True)(body))
    except (ValueError, RecursionError) as error:
        text = f"invalid message {data[:80]!r}: {type(error).__name__}: {error}"
        raise WireError(text) from error
    text = f"invalid message {data[:80]!r}: unexpected type {str(name)[:40]!r}"
    raise WireError(text)


def from_json(kind: type[T], value: Any, where: str = "") -> T:
    """Build a ``kind`` from parsed JSON; it may be a dataclass or a tuple of them.

    Unknown fields are ignored and missing ones take their defaults, since the writer may be of
    another version.

    Args:
        kind: The type to build.
        value: The parsed JSON.
        where: The name of the value, which errors start with.

    Raises:
        DecodeError: A field is missing or of a wrong type; it names the field's path.
    """
    known: Any = kind
    try:
        return typing.cast("T", _reader(known, exact=False)(value))
    except DecodeError as error:
        raise DecodeError(error.expected, where + error.path) from None


def repeated_key(text: str | bytes) -> str | None:
    """Find a key that an object has twice in a JSON text; None without, or if it is not JSON.

    Parsers take its last value, and ignore what an earlier one names.
    """
    found: list[str] = []

    def check(pairs: list[tuple[str, Any]]) -> None:
        found.extend(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)

    with contextlib.suppress(ValueError, RecursionError):
        json.loads(text, object_pairs_hook=check)
    return found[0] if found else None


def check_fields(row: Mapping[str, Any], kinds: Mapping[str, Any], where: str = "") -> None:
    """Check the types of some fields of parsed JSON; a missing field is null.

    Raises:
        DecodeError: One is of another type; it names the field.
    """
    for name, kind in kinds.items():
        from_json(kind, row.get(name), f"{where}.{name}")


@cache
def _reader(kind: Any, *, exact: bool) -> _Reader:
    """Build the function that turns a JSON value into a ``kind``, or raises DecodeError."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in {types.UnionType, typing.Union}:
        kinds = [argument for argument in arguments if argument is not types.NoneType]
        read = _scalar(kinds) if len(kinds) > 1 else _reader(kinds[0], exact=exact)
        return lambda value: None if value is None else read(value)
    if origin is tuple:
        return _tuple(_reader(arguments[0], exact=exact))
    if origin is Mapping:
        return _mapping(_reader(arguments[1], exact=exact))
    if dataclasses.is_dataclass(kind):
        return _record(kind, exact=exact)
    if kind is Any:
        return lambda value: value
    if kind is datetime:
        return _datetime
    if issubclass(kind, Enum):
        return _enum(kind)
    return _float if kind is float else _exactly(kind)


def _tuple(read: _Reader) -> _Reader:
    def read_tuple(value: Any) -> Any:
        if type(value) is not list:
            raise DecodeError("a list")
        items: list[Any] = []
        try:
            for item in value:
                items.append(read(item))  # noqa: PERF401 - the length is the index of a bad item
        except DecodeError as error:
            raise DecodeError(error.expected, f"[{len(items)}]{error.path}") from None
        return tuple(items)

    return read_tuple


def _mapping(read: _Reader) -> _Reader:
    def read_mapping(value: Any) -> Any:
        if type(value) is not dict:
            raise DecodeError("an object")
        return {name: read(item) for name, item in value.items()}

    return read_mapping


def _record(kind: Any, *, exact: bool) -> _Reader:
    hints = typing.get_type_hints(kind)
    fields = [field for field in dataclasses.fields(kind) if field.init]
    keys = {field.name: field.metadata.get("alias", field.name) for field in fields}
    readers = {keys[name]: (name, _reader(hints[name], exact=exact)) for name in keys}
    required = {keys[field.name] for field in fields if exact or _is_required(field)}

    def read_record(value: Any) -> Any:
        if type(value) is not dict:
            raise DecodeError("an object")
        if not required <= value.keys():
            raise DecodeError("the fields " + ", ".join(sorted(required - value.keys())))
        if exact and len(value) != len(readers):
            raise DecodeError("no fields but " + ", ".join(readers))
        given, key = {}, ""
        try:
            for key, (name, read) in readers.items():
                if key in value:
                    given[name] = read(value[key])
        except DecodeError as error:
            raise DecodeError(error.expected, f".{key}{error.path}") from None
        return kind(**given)

    return read_record


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is field.default_factory is dataclasses.MISSING


def _enum(kind: type[Enum]) -> _Reader:
    def read_enum(value: Any) -> Any:
        try:
            return kind(value)
        except ValueError:
            raise DecodeError("one of " + ", ".join(str(member.value) for member in kind)) from None

    return read_enum


def _datetime(value: Any) -> datetime:
    """Read a time with its UTC offset; one without could be anywhere in a day.

    The first and the last year that a datetime has end in another time zone with an OverflowError.
    """
    try:
        time = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        time = None
    if time is None or time.tzinfo is None or not MINYEAR < time.year < MAXYEAR:
        raise DecodeError("a time with its UTC offset")
    return time


def _float(value: Any) -> float:
    """Read a finite number: NaN and the infinities survive no comparison."""
    if type(value) is float or type(value) is int:
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise DecodeError("a finite number")


def _scalar(kinds: Sequence[type]) -> _Reader:
    """Build the function that reads a number or a text of one of these types, and converts none."""

    def read_scalar(value: Any) -> Any:
        if type(value) not in kinds:
            raise DecodeError("a number, a text or null")
        read = {float: _float, int: _integer}.get(type(value))
        return read(value) if read is not None else value

    return read_scalar


def _exactly(kind: type) -> _Reader:
    if kind is int:
        return _integer

    def read_exactly(value: Any) -> Any:
        if type(value) is not kind:
            raise DecodeError(_TYPE_NAMES[kind])
        return value

    return read_exactly


def _integer(value: Any) -> int:
    """Read a whole number of 64 bits."""
    if type(value) is not int or value not in _INTEGERS:
        raise DecodeError(_TYPE_NAMES[int])
    return value


def send_now(channel: socket.socket, message: object) -> bool:
    """Send a message if the channel has room now; return whether it was sent.

    It is not if the channel is full or the supervisor is gone, which ends the child elsewhere.

    Args:
        channel: The child's end of a ``SOCK_SEQPACKET`` pair.
        message: A dataclass of :mod:`sentinel.protocol`.

    Raises:
        WireError: The message is too large for one datagram.
    """
    try:
        channel.send(encode(message), socket.MSG_DONTWAIT)
    except OSError:
        return False
    return True


class MessageStream:
    """Messages with their length before them, over a stream socket that becomes non-blocking.

    Both buffers are bounded: at most one message is partly received, and messages that wait to be
    sent go before they are more than MAX_MESSAGE_BYTES and one more. A message that was begun is
    always completed before the next one.

    Args:
        channel: One end of a ``SOCK_STREAM`` pair.

    Attributes:
        ended: The other end is closed.
    """

    def __init__(self, channel: socket.socket) -> None:
        channel.setblocking(False)
        self.channel = channel
        self.ended = False
        self._unsent = memoryview(b"")
        #: Whole messages that the next flush begins.
        self._held = bytearray()
        self._received = bytearray()

    @property
    def blocked(self) -> bool:
        """Whether a message is partly sent; :meth:`flush` goes on."""
        return bool(self._unsent)

    def send(self, message: object) -> bool:
        """Send a message or begin it; return False if an earlier one still has to be completed.

        Raises:
            ConnectionError: The other end is closed.
            WireError: The message is too large.
        """
        taken = self.add(message)
        self.flush()
        return taken

    def add(self, message: object) -> bool:
        """Take a message for the next :meth:`flush`, or return False like :meth:`send`."""
        if self._unsent and not self.flush():
            return False
        data = encode(message, MAX_MESSAGE_BYTES)
        self._held += len(data).to_bytes(_PREFIX_BYTES) + data
        if len(self._held) > MAX_MESSAGE_BYTES:
            self.flush()
        return True

    def flush(self) -> bool:
        """Send the rest of a message as far as there is room; return whether nothing is left.

        Raises:
            ConnectionError: The other end is closed.
        """
        try:
            while self._unsent or self._held:
                if not self._unsent:
                    self._unsent, self._held = memoryview(self._held), bytearray()
                self._unsent = self._unsent[self.channel.send(self._unsent) :]
        except BlockingIOError:
            return False
        except ConnectionError:
            self._unsent = memoryview(b"")
            raise
        return True

    def receive(self) -> list[bytes]:
        """Receive what is waiting; return the messages that are complete by now.

        Raises:
            WireError: A message is too large.
        """
        try:
            data = self.channel.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return []
        except ConnectionResetError:
            # Raised once if the other process exits with unread messages; its own come after it.
            return self.receive()
        except ConnectionError:
            data = b""
        self.ended = not data
        self._received += data
        return list(self._take_complete())

    def _take_complete(self) -> Iterator[bytes]:
        while len(self._received) >= _PREFIX_BYTES:
            size = int.from_bytes(self._received[:_PREFIX_BYTES])
            if size > MAX_MESSAGE_BYTES:
                raise WireError(f"a message of {size} bytes is larger than {MAX_MESSAGE_BYTES}")
            end = _PREFIX_BYTES + size
            if len(self._received) < end:
                return
            yield bytes(self._received[_PREFIX_BYTES:end])
            del self._received[:end]
