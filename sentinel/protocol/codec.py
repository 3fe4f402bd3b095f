"""Messages as datagrams: one small JSON object each, parsed as data and checked field by field.

Nothing here can run code that a sender chose, which is why it is not pickle.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

from sentinel.errors import WireError

T = TypeVar("T")
_Reader = Callable[[Any], Any]


#: The largest datagram in bytes. Hundreds of processes on one GPU fit; a runaway reason does not.
MAX_DATAGRAM = 64 * 1024

#: What foreign data can make of the code below.
_NOT_OURS = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)

# Both are made once: to make one costs more than to use it, dozens of times a second.
_ENCODER = json.JSONEncoder(separators=(",", ":"), default=vars)  # vars: nested dataclasses
_DECODER = json.JSONDecoder()


def encode(message: object) -> bytes:
    """Return ``message``, a dataclass, as one datagram.

    Raises:
        WireError: It is larger than MAX_DATAGRAM.
    """
    body = {"type": type(message).__name__, **vars(message)}
    data = _ENCODER.encode(body).encode()
    if len(data) > MAX_DATAGRAM:
        text = f"a {body['type']} of {len(data)} bytes is larger than {MAX_DATAGRAM}"
        raise WireError(text)
    return data


def decode(data: bytes, kinds: Iterable[type[T]]) -> T:
    """Return the message in ``data``, which must be one of ``kinds``, exactly as declared.

    Raises:
        WireError: It is not JSON, of another kind, or a field is missing, extra or of a wrong type.
    """
    known: Iterable[Any] = kinds  # type[T] alone is not known to be hashable
    try:
        body = _DECODER.decode(data.decode())
        name = body.pop("type")
        for kind in known:
            if kind.__name__ == name:
                return typing.cast("T", _reader(kind)(body))
    except _NOT_OURS as error:
        text = f"not a message of ours: {data[:80]!r} ({type(error).__name__}: {error})"
        raise WireError(text) from error
    text = f"not a message of ours: {data[:80]!r} (unexpected type {name!r})"
    raise WireError(text)


@cache
def _reader(kind: Any) -> _Reader:
    """Return what makes a ``kind``, which may be nested, of a JSON value.

    It raises one of ``_NOT_OURS`` for any value that is not exactly one.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in {types.UnionType, typing.Union}:
        return _optional(_reader(arguments[0]))
    if origin is tuple:
        return _list(_reader(arguments[0]))
    if dataclasses.is_dataclass(kind):
        return _record(kind)
    if issubclass(kind, StrEnum):
        return typing.cast("_Reader", kind)  # an enum is called with its value
    return _number if kind is float else _exactly(kind)


def _optional(read: _Reader) -> _Reader:
    return lambda value: None if value is None else read(value)


def _list(read: _Reader) -> _Reader:
    def read_list(value: Any) -> Any:
        if type(value) is not list:
            raise TypeError(f"{value!r} is not a list")
        return tuple([read(item) for item in value])

    return read_list


def _record(kind: Any) -> _Reader:
    readers = {name: _reader(hint) for name, hint in typing.get_type_hints(kind).items()}

    def read_record(value: Any) -> Any:
        if value.keys() != readers.keys():
            raise TypeError(f"fields {sorted(value)} instead of {sorted(readers)}")
        return kind(**{name: readers[name](item) for name, item in value.items()})

    return read_record


def _number(value: Any) -> float:
    """Return a float; refuse NaN and the infinities, which survive no comparison."""
    if type(value) is not float and type(value) is not int:
        raise TypeError(f"{value!r} is not a number")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(value)
    return number


def _exactly(kind: type) -> _Reader:
    def read_exactly(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(f"{value!r} is not {kind.__name__}")
        return value

    return read_exactly
