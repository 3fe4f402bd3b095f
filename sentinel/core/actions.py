"""What a tick leads to: what to do, and what to say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sentinel.protocol.commands import CommandReply


@dataclass(frozen=True, kw_only=True)
class Kill:
    """SIGKILL the child's process group."""

    uuid: str
    generation: int


@dataclass(frozen=True, kw_only=True)
class Ask:
    """Ask the child to end by itself."""

    uuid: str
    generation: int


@dataclass(frozen=True, kw_only=True)
class Acknowledge:
    """Tell the child that its finding of this number is known."""

    uuid: str
    generation: int
    number: int


@dataclass(frozen=True, kw_only=True)
class SetPace:
    """Have the child keep its GPU busy for this share of the time, from 0 to 1."""

    uuid: str
    generation: int
    share: float


@dataclass(frozen=True, kw_only=True)
class Start:
    """Spawn a child on this GPU; one for ``clearing`` only opens and closes a context.

    ``committed`` bytes of the free memory are for guests, besides what the settings reserve.
    """

    uuid: str
    generation: int
    clearing: bool = False
    committed: int = 0


@dataclass(frozen=True, kw_only=True)
class KillProbe:
    """SIGKILL the probe."""

    generation: int


@dataclass(frozen=True, kw_only=True)
class StartProbe:
    """Spawn a probe."""

    generation: int


@dataclass(frozen=True, kw_only=True)
class KillService:
    """SIGKILL the service."""

    generation: int


@dataclass(frozen=True, kw_only=True)
class StartService:
    """Spawn a service."""

    generation: int


@dataclass(frozen=True, kw_only=True)
class Reply:
    """Answer an order, once what it changed is shown."""

    answer: CommandReply


@dataclass(frozen=True, kw_only=True)
class RequestReload:
    """Have the service read the settings anew."""


Action = (
    Kill
    | Ask
    | Acknowledge
    | SetPace
    | Start
    | KillProbe
    | StartProbe
    | KillService
    | StartService
    | Reply
    | RequestReload
)


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened, under a dotted name that is public API.

    ``fields`` hold JSON values only: names, numbers, seconds, bytes.
    """

    name: str
    at: float
    gpu: str | None = None
    fields: Mapping[str, object] = field(default_factory=dict)
