"""Which foreign processes an operator wants to be let be, by name, user or size. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.protocol.gpu import GpuProcess
from sentinel.units import parse_size

_FIELDS = ("name", "user")
#: The kernel keeps so many characters of a process's name.
_NAME = 15


@dataclass(frozen=True, kw_only=True)
class Ignored:
    """Processes whose ``field`` is exactly ``value``, or whose memory is below ``most`` bytes.

    The latter only if they are steady, which core/sparing.py knows.
    """

    field: str
    value: str
    most: int | None = None

    def covers(self, process: GpuProcess) -> bool:
        """Return whether it is such a process; what is not known of it never is."""
        if self.most is not None:
            return process.memory is not None and process.memory < self.most
        if self.field == "user":
            return process.user == self.value
        return process.name == self.value[:_NAME]

    def __str__(self) -> str:
        return f"{self.field}{'=' if self.most is None else '<'}{self.value}"


def parse_ignored(text: str) -> tuple[Ignored, ...]:
    """Return the rules in a comma list such as ``name=Xorg,user=monitor,memory<200MiB``.

    Raises:
        ValueError: One of them is none.
    """
    return tuple(_parse_one(part.strip()) for part in text.split(","))


def _parse_one(text: str) -> Ignored:
    field, less, size = (part.strip() for part in text.partition("<"))
    if field == "memory" and less:
        return Ignored(field=field, value=size, most=parse_size(size))
    field, equals, value = (part.strip() for part in text.partition("="))
    if field not in _FIELDS or not equals or not value:
        message = f"{text!r} is no rule; write name=Xorg, user=monitor or memory<200MiB, say"
        raise ValueError(message)
    return Ignored(field=field, value=value)
