"""Rules for foreign processes to ignore, by name, user or memory."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.protocol.gpu import GpuProcess
from sentinel.units import parse_size

_FIELDS = ("name", "user")
#: The kernel truncates the name of a process to this many characters.
_MAX_NAME = 15


@dataclass(frozen=True, kw_only=True)
class IgnoreRule:
    """A rule that matches foreign processes.

    A rule by memory applies only to processes with steady memory; see core/gpu/ignored_processes.
    """

    #: ``name``, ``user`` or ``memory``.
    field: str
    #: The exact name or user; for memory, the size as it was written.
    value: str
    #: The memory in bytes below which a process matches; None for the other fields.
    max_bytes: int | None = None

    def matches(self, process: GpuProcess) -> bool:
        """Check a process; an unknown attribute never matches."""
        if self.max_bytes is not None:
            return process.memory is not None and process.memory < self.max_bytes
        if self.field == "user":
            return process.user == self.value
        return process.name == self.value[:_MAX_NAME]

    def __str__(self) -> str:
        return f"{self.field}{'=' if self.max_bytes is None else '<'}{self.value}"


def parse_ignore_rules(text: str) -> tuple[IgnoreRule, ...]:
    """Parse a comma list of rules, such as ``name=Xorg,user=monitor,memory<200MiB``.

    Raises:
        ValueError: An entry is not a rule.
    """
    return tuple(_parse_rule(part.strip()) for part in text.split(","))


def _parse_rule(text: str) -> IgnoreRule:
    field, less, size = (part.strip() for part in text.partition("<"))
    if field == "memory" and less:
        return IgnoreRule(field=field, value=size, max_bytes=parse_size(size))
    field, equals, value = (part.strip() for part in text.partition("="))
    if field not in _FIELDS or not equals or not value:
        message = f"{text!r} is not a rule; write one such as name=Xorg, user=me or memory<200MiB"
        raise ValueError(message)
    return IgnoreRule(field=field, value=value)
