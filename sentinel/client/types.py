"""Types of the client that are not responses; those are in ``sentinel.protocol.api_types``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sentinel.protocol import api_types


@dataclass(frozen=True, kw_only=True)
class Status(api_types.Status):
    """The daemon, its GPUs, reservations and allocations."""

    #: The response as it came, with fields that this version does not know.
    json: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class EventInfo:
    """One event."""

    #: The event's number, by which a stream is continued.
    id: int | None
    name: str
    #: The event's JSON object.
    fields: Mapping[str, Any]

    @property
    def gpu(self) -> str | None:
        """The UUID of the GPU that the event is about, or None if it is about the host."""
        uuid = self.fields.get("gpu")
        return uuid if isinstance(uuid, str) else None

    @property
    def index(self) -> int | None:
        """nvidia-smi's index of that GPU, or None if it is unknown or there is no such GPU."""
        index = self.fields.get("index")
        return index if isinstance(index, int) else None
