"""The error of an attempt to deliver a notification."""

from __future__ import annotations


class DeliveryError(Exception):
    """A notification was not accepted.

    Args:
        why: The reason, without secrets.
        final: Whether another attempt cannot succeed.
    """

    def __init__(self, why: str, *, final: bool = False) -> None:
        super().__init__(why)
        self.final = final
