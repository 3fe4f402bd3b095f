"""Which foreign processes an operator wants to be let be, by name or by user. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.messages import GpuProcess

__all__ = ["Ignored", "parse_ignored"]

_FIELDS = ("name", "user")
#: The kernel keeps so many characters of a process's name.
_NAME = 15


@dataclass(frozen=True, kw_only=True)
class Ignored:
    """Processes whose ``field`` is exactly ``value``."""

    field: str
    value: str

    def covers(self, process: GpuProcess) -> bool:
        """Return whether it is such a process; what is not known of it never is."""
        if self.field == "user":
            return process.user == self.value
        return process.name == self.value[:_NAME]

    def __str__(self) -> str:
        return f"{self.field}={self.value}"


def parse_ignored(text: str) -> tuple[Ignored, ...]:
    """Return the rules in a comma list such as ``name=Xorg,user=monitor``.

    Raises:
        ValueError: One of them is none.
    """
    return tuple(_parse_one(part.strip()) for part in text.split(","))


def _parse_one(text: str) -> Ignored:
    field, separator, value = text.partition("=")
    if field.strip() not in _FIELDS or not separator or not value.strip():
        message = f"{text!r} is no rule; write one such as name=Xorg or user=monitor"
        raise ValueError(message)
    return Ignored(field=field.strip(), value=value.strip())
