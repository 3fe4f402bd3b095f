"""Objects of the API with the client that ends them, also at the end of a ``with`` block."""

from __future__ import annotations

from typing import Generic, Self, TypeVar

from sentinel.protocol.api_types import ResponseType

V = TypeVar("V")


class Handle(Generic[V]):
    """An object of the API with its client; the other base of such a class is the response."""

    _verbs: V

    @classmethod
    def of(cls, info: ResponseType, verbs: V) -> Self:
        """Build it from a response and the client that ends it."""
        one = cls(**vars(info))
        object.__setattr__(one, "_verbs", verbs)  # no field: it is not printed nor compared
        return one

    def __enter__(self) -> Self:
        return self
