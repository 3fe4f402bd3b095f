"""Messages as datagrams: one small JSON object each, parsed as data and checked field by field.

Nothing here can run code that a sender chose, which is why it is not pickle.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Iterable
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

from sentinel.errors import WireError

T = TypeVar("T")

__all__ = ["MAX_DATAGRAM", "decode", "encode"]

#: The largest datagram in bytes. Hundreds of processes on one GPU fit; a runaway reason does not.
MAX_DATAGRAM = 64 * 1024

#: What foreign data can make of the code below.
_NOT_OURS = (
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    OverflowError,
    RecursionError,
    StopIteration,
)


def encode(message: object) -> bytes:
    """Return ``message``, a dataclass, as one datagram.

    Raises:
        WireError: It is larger than MAX_DATAGRAM.
    """
    body = {"type": type(message).__name__, **vars(message)}
    data = json.dumps(body, separators=(",", ":"), default=vars).encode()  # vars: nested ones
    if len(data) > MAX_DATAGRAM:
        text = f"a {body['type']} of {len(data)} bytes is larger than {MAX_DATAGRAM}"
        raise WireError(text)
    return data


def decode(data: bytes, kinds: Iterable[type[T]]) -> T:
    """Return the message in ``data``, which must be one of ``kinds``, exactly as declared.

    Raises:
        WireError: It is not JSON, of another kind, or a field is missing, extra or of a wrong type.
    """
    try:
        body = json.loads(data, parse_constant=_finite, parse_float=_finite)
        name = body.pop("type")
        kind = next(kind for kind in kinds if kind.__name__ == name)
        return typing.cast("T", _build(kind, body))
    except _NOT_OURS as error:
        text = f"not a message of ours: {data[:80]!r} ({type(error).__name__}: {error})"
        raise WireError(text) from error


def _finite(text: str) -> float:
    """Return the number in ``text``; refuse NaN and the infinities, which survive no comparison."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _build(kind: Any, value: Any) -> Any:
    """Return ``value`` as a ``kind``, which may be nested, or raise TypeError or ValueError."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in {types.UnionType, typing.Union}:
        return None if value is None else _build(arguments[0], value)
    if origin is tuple:
        if not isinstance(value, list):
            raise TypeError(f"{value!r} is not a list")
        return tuple(_build(arguments[0], item) for item in value)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = _hints(kind)
        if value.keys() != hints.keys():
            raise TypeError(f"fields {sorted(value)} instead of {sorted(hints)}")
        return kind(**{name: _build(hint, value[name]) for name, hint in hints.items()})
    if issubclass(kind, StrEnum):
        return kind(value)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not {kind.__name__}")
    return value


@cache
def _hints(kind: type) -> dict[str, Any]:
    """Return the resolved annotations of a dataclass; resolving them costs more than the rest."""
    return typing.get_type_hints(kind)
