"""What clients ask of the supervisor through the service, and what it shows and answers.

The service takes requests from clients, posts each as one of the orders below, and hears one
:class:`CommandReply` to it. What it shows to clients is the last :class:`HostView` and the last
:class:`GpuView` of each GPU. Times are seconds of the monotonic clock, sizes are bytes.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass
from enum import StrEnum

from sentinel.protocol.caller import Caller


@dataclass(frozen=True, kw_only=True)
class ServiceSpec:
    """What a service is told.

    ``socket`` is the path that clients use, ``tcp`` the address, ``host:port``, where there is one,
    and ``token`` the file with its secret. ``state`` is the folder for what outlives the daemon,
    ``log`` the file that events go to. ``given`` and ``overrides`` are the settings that hold when
    it begins, and ``config`` is the file that was named or found, for when they are read anew.
    ``began`` is when the daemon began, in seconds since the epoch. ``history`` is how many bytes
    the history in ``state`` may have; without, it is in memory alone.
    """

    socket: str
    state: str
    log: str | None
    began: float
    version: str
    tcp: str | None = None
    token: str | None = None
    given: tuple[GivenSetting, ...] = ()
    overrides: tuple[GivenOverride, ...] = ()
    config: str | None = None
    history: int | None = None


# --- orders, from the service ----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Occupy idle GPUs, from now on."""

    number: int
    by: Caller


@dataclass(frozen=True, kw_only=True)
class Drain:
    """Let go of every GPU and start on none."""

    number: int
    by: Caller


@dataclass(frozen=True, kw_only=True)
class PauseGpus:
    """Let go of these GPUs, all where none is named, and keep off for ``seconds``, or for good.

    ``release``: of the driver as well, which is for all GPUs at once.
    """

    number: int
    by: Caller
    gpus: tuple[str, ...] = ()
    seconds: float | None = None
    release: bool = False


@dataclass(frozen=True, kw_only=True)
class ResumeGpus:
    """End the pause of these GPUs, of all where none is named."""

    number: int
    by: Caller
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Reserve:
    """Keep these GPUs free for somebody, or the ``count`` that are had most easily.

    ``seconds`` is for how long. ``bound``: only as long as the process that asks lives.
    """

    number: int
    by: Caller
    id: str
    reason: str
    gpus: tuple[str, ...] = ()
    count: int = 0
    seconds: float | None = None
    bound: bool = False


@dataclass(frozen=True, kw_only=True)
class Confirm:
    """Keep a reservation from now on, whatever becomes of the service: its client is told of it.

    ``allocation``: the id is that of a part of a GPU's memory, and not of a reservation.
    """

    number: int
    by: Caller
    id: str
    allocation: bool = False


@dataclass(frozen=True, kw_only=True)
class Unreserve:
    """End a reservation."""

    number: int
    by: Caller
    id: str


@dataclass(frozen=True, kw_only=True)
class Allocate:
    """Promise ``size`` bytes of a GPU's memory to the process that asks, and to its children.

    They are guests there from then on, and not newcomers. Where that process cannot be seen from
    here, nobody can be told from others, and nothing of ours is started beside them.
    """

    number: int
    by: Caller
    id: str
    gpu: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Deallocate:
    """End the promise of memory with this id."""

    number: int
    by: Caller
    id: str


@dataclass(frozen=True, kw_only=True)
class GivenSetting:
    """One setting as it was given, and where."""

    key: str
    text: str
    source: str


@dataclass(frozen=True, kw_only=True)
class GivenOverride:
    """Settings for one GPU, named by a selector, and where they were given."""

    selector: str
    source: str
    given: tuple[GivenSetting, ...]


@dataclass(frozen=True, kw_only=True)
class Configure:
    """Take over all of these settings, or none of them."""

    number: int
    by: Caller
    given: tuple[GivenSetting, ...]
    overrides: tuple[GivenOverride, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ShutDown:
    """Let go of every GPU and end."""

    number: int
    by: Caller


Command = (
    Resume
    | Drain
    | PauseGpus
    | ResumeGpus
    | Reserve
    | Confirm
    | Unreserve
    | Allocate
    | Deallocate
    | Configure
    | ShutDown
)


@dataclass(frozen=True, kw_only=True)
class ApiHeartbeat:
    """The service answers clients; said when it begins to, and once a second."""


@dataclass(frozen=True, kw_only=True)
class ServiceWarning:
    """What the service could not do though no client asked for it, for the journal.

    ``about`` is "settings", "reservations", "history", "watch", "token" or "socket", ``text`` says
    what is wrong and where.
    """

    about: str
    text: str


ServiceMessage = Command | ApiHeartbeat | ServiceWarning
SERVICE_MESSAGES: tuple[type[ServiceMessage], ...] = typing.get_args(ServiceMessage)


# --- answers and views, from the supervisor --------------------------------------------------


class Refusal(StrEnum):
    """Why an order was not carried out."""

    NO_SUCH_GPU = "no_such_gpu"
    NOT_FOUND = "not_found"
    INVALID = "invalid"
    CONFLICT = "conflict"
    ENDING = "ending"


@dataclass(frozen=True, kw_only=True)
class CommandReply:
    """What came of the order of this number; ``gpus`` are the UUIDs that it was about.

    ``text`` says in a sentence what will happen, or why not and what is allowed.
    """

    number: int
    refused: Refusal | None = None
    text: str = ""
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ReloadConfig:
    """Read the settings anew and post them as a :class:`Configure`."""
