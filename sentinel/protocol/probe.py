"""Messages between the supervisor and the probe."""

from __future__ import annotations

import typing
from dataclasses import dataclass

from sentinel.protocol.gpu import Gpu, Reading

# --- messages of the probe -------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """The GPUs that the probe found, in NVML's order, before it reads any of them."""

    gpus: tuple[Gpu, ...]
    driver: str


@dataclass(frozen=True, kw_only=True)
class Unavailable:
    """There is no driver to ask; the probe ends after this message."""

    code: str
    reason: str


ProbeMessage = Inventory | Unavailable | Reading
PROBE_MESSAGES: tuple[type[ProbeMessage], ...] = typing.get_args(ProbeMessage)


@dataclass(frozen=True, kw_only=True)
class Watch:
    """What the probe is to read: ``gpus`` at every poll, those of them in ``held`` all the time.

    Of those in ``load`` the utilisation, too; and with ``telemetry`` all that they tell.
    """

    gpus: tuple[str, ...]
    held: tuple[str, ...]
    load: tuple[str, ...] = ()
    telemetry: bool = False


@dataclass(frozen=True, kw_only=True)
class ProbeSpec:
    """All that the probe is told at birth. ``simulation`` is the registry's folder, if pretended.

    ``skip`` are the UUIDs that it must not touch: a call hung there, and so would the next.
    ``known`` are those that an earlier probe found; what is missing of them is looked for.
    ``utilization`` says whether anybody wants to know that of a GPU on which nothing of ours lives,
    ``computing`` whether the driver is to be asked who computes, besides who is listed.
    """

    poll: float
    watch_interval: float
    utilization: bool = False
    computing: bool = False
    skip: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    simulation: str | None = None
