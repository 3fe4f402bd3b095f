"""What the supervisor observed since its last tick, and the latest readings. Frozen.

Times are seconds of the monotonic clock, sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sentinel.core.identity import OwnChild
from sentinel.protocol.commands import Command, ServiceWarning
from sentinel.protocol.gpu import Reading
from sentinel.protocol.probe import Inventory, Unavailable
from sentinel.protocol.stressor import ChildMessage


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call into the driver that the probe announced and that has not returned.

    ``uuid`` is ``None`` while the driver is initialised or the GPUs are enumerated.
    """

    uuid: str | None
    name: str
    since: float


@dataclass(frozen=True, kw_only=True)
class ChildExit:
    """The end of a child: its exit code (negative: the signal) and when it was seen."""

    code: int
    at: float


@dataclass(frozen=True, kw_only=True)
class ChildFacts:
    """What became known of one child since the last tick.

    ``generation`` tells it from an earlier child of the same GPU. ``killed_at`` is when our
    SIGKILL was sent, ``garbage`` what it sent that was no message.
    """

    generation: int
    child: OwnChild | None = None
    messages: tuple[ChildMessage, ...] = ()
    killed_at: float | None = None
    exit: ChildExit | None = None
    garbage: str | None = None


@dataclass(frozen=True, kw_only=True)
class ProbeFacts:
    """What became known of the probe since the last tick, and the calls that it is in."""

    generation: int
    inventory: Inventory | None = None
    unavailable: Unavailable | None = None
    exit: ChildExit | None = None
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ServiceFacts:
    """What became known of the service since the last tick.

    ``serving``: it said that it answers clients. ``garbage`` is what it sent that was no message.
    """

    generation: int
    serving: bool = False
    commands: tuple[Command, ...] = ()
    service_warnings: tuple[ServiceWarning, ...] = ()
    exit: ChildExit | None = None
    garbage: str | None = None


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Everything that one tick decides on.

    ``readings`` holds the latest of each GPU, old or new; the facts are only the new ones.
    ``random_value`` is uniform in [0, 1) and drawn for this tick. ``stop`` is the reason for a
    shutdown that was asked for, ``at_once`` that nobody is to be asked first, ``stalled`` how many
    seconds longer than it meant to the supervisor did not run. ``local`` is what a clock on the
    wall shows. ``reread``: somebody wants the settings read anew. ``probe_gone``: no probe lives,
    old or new.
    """

    now: float
    local: datetime | None = None
    random_value: float = 0.5
    readings: Mapping[str, Reading] = field(default_factory=dict)
    children: Mapping[str, ChildFacts] = field(default_factory=dict)
    probe: ProbeFacts | None = None
    service: ServiceFacts | None = None
    reread: bool = False
    probe_gone: bool = False
    stop: str | None = None
    at_once: bool = False
    stalled: float = 0.0
