"""Commands that the API sends to the supervisor, and the replies.

The API sends each request of a client as one command, and receives one :class:`CommandReply` to it.
Times are seconds of the monotonic clock, sizes are bytes.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sentinel.protocol.caller import Caller, Level
from sentinel.protocol.phase_work import EarlierWork


@dataclass(frozen=True, kw_only=True)
class Given:
    """One setting as it was given. A sequence of them is all settings: later ones win."""

    key: str
    text: str
    #: Where and by whom, such as ``--poll``, ``site.toml: poll`` or ``session a: poll``.
    source: str
    #: The selector of the GPU that it is for; None for all GPUs.
    gpu: str | None = None


@dataclass(frozen=True, kw_only=True)
class AccessPolicy:
    """Who may do what; the daemon's own user and root may do everything over the Unix socket."""

    #: Every local user.
    users: Level = Level.READ
    #: The members of the group with this number; None without a group.
    gid: int | None = None
    group: Level = Level.OPERATE
    #: The holders of the token, over TCP.
    tcp: Level = Level.OPERATE
    #: The registered workloads that those below ``Level.OWN`` may set.
    workloads: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NotifySpec:
    """Which events are sent to whom."""

    #: The URL of a webhook, or the file with it; None without one.
    webhook: str | None = None
    #: Files with a bearer token and with the key of the signature, for the webhook.
    token: str | None = None
    secret: str | None = None
    #: A program with its arguments.
    command: tuple[str, ...] | None = None
    #: Patterns of names; all events if empty.
    events: tuple[str, ...] = ()
    #: Selectors of GPUs; all if empty.
    gpus: tuple[str, ...] = ()
    #: The least time between two notifications of one event and GPU, in seconds.
    every: float = 30.0


@dataclass(frozen=True, kw_only=True)
class ApiSpec:
    """The specification of an API process."""

    #: The path of the Unix socket for clients.
    socket: str
    #: The folder for what outlives the daemon.
    state: str
    #: The file of the log, or None if events go to standard output or to the journal.
    log: str | None
    #: When the daemon started, in seconds since the epoch.
    began: float
    version: str
    #: Who may do what.
    access: AccessPolicy = field(default_factory=AccessPolicy)
    #: The match for journalctl if the log is in the journal, or None.
    journal: str | None = None
    #: CUDA_VISIBLE_DEVICES, or None if it is not set.
    visible_devices: str | None = None
    #: The TCP address, ``host:port``, or None.
    tcp: str | None = None
    #: The file with the token for TCP, or None.
    token: str | None = None
    #: The settings in force at the start.
    given: tuple[Given, ...] = ()
    #: The configuration file that a reload reads, or None.
    config: str | None = None
    #: The size limit of the history in ``state``; with None, it is kept in memory only.
    history: int | None = None
    #: None without notifications.
    notify: NotifySpec | None = None


# --- commands, from the API -------------------------------------------------------------------

#: What a client asks for is granted for so long at first, in seconds. The API process renews this
#: lease while the client waits, and ends it when the answer is stored.
LEASE_S = 30.0


@dataclass(frozen=True, kw_only=True)
class _Command:
    """The fields of every command."""

    #: Counts the commands of one API process.
    number: int
    by: Caller


@dataclass(frozen=True, kw_only=True)
class Resume(_Command):
    """Occupy idle GPUs from now on."""


@dataclass(frozen=True, kw_only=True)
class Drain(_Command):
    """Release every GPU and start no stressor."""


@dataclass(frozen=True, kw_only=True)
class PauseGpus(_Command):
    """Release these GPUs, or all if none is named, and start no stressor on them."""

    gpus: tuple[str, ...] = ()
    #: How long, or None for ever.
    seconds: float | None = None
    #: Whether to release the driver as well, which needs all GPUs.
    release: bool = False


@dataclass(frozen=True, kw_only=True)
class ResumeGpus(_Command):
    """End the pause of these GPUs, or of all if none is named."""

    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Reserve(_Command):
    """Keep GPUs free for a user: those named, or the ``count`` that are freed most easily."""

    #: The client's. The same request again changes nothing and has the same answer.
    id: str
    reason: str
    gpus: tuple[str, ...] = ()
    count: int = 0
    #: How long, or None for ever.
    seconds: float | None = None
    #: Whether it ends with the process that asks.
    bound: bool = False
    #: Whether it waits in the queue if too few GPUs are available; the reply then has no GPUs.
    wait: bool = False


@dataclass(frozen=True, kw_only=True)
class Extend(_Command):
    """Extend the lease of a reservation, of a request for one, or of an allocation."""

    id: str
    #: Whether the id is that of an allocation.
    allocation: bool = False
    #: Its answer is stored: it lasts as long as the client has asked for. Otherwise LEASE_S more.
    kept: bool = False


@dataclass(frozen=True, kw_only=True)
class Unreserve(_Command):
    """End a reservation, or take a request out of the queue."""

    id: str


@dataclass(frozen=True, kw_only=True)
class Allocate(_Command):
    """Allocate GPU memory to the process that asks and to its children.

    They are no newcomers from then on. If that process is not visible from here, it cannot be
    distinguished from a newcomer, and no stressor is started beside it.
    """

    id: str
    gpu: str
    #: Bytes.
    size: int


@dataclass(frozen=True, kw_only=True)
class Deallocate(_Command):
    """End the allocation with this id."""

    id: str


@dataclass(frozen=True, kw_only=True)
class Configure(_Command):
    """Apply all of these settings, or none of them."""

    given: tuple[Given, ...]


@dataclass(frozen=True, kw_only=True)
class StartSession(_Command):
    """Lay settings over those of the daemon, for some GPUs and under a name."""

    name: str
    gpus: tuple[str, ...]
    #: The texts of its settings, by key.
    settings: Mapping[str, str]
    #: How long, or None for ever.
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class EndSession(_Command):
    """End a session: its GPUs have the settings of the daemon again."""

    name: str


@dataclass(frozen=True, kw_only=True)
class StartBurnin(_Command):
    """Take these GPUs, or all if none is named, through a plan instead of their settings."""

    id: str
    #: The plan, as parsed from TOML.
    plan: Mapping[str, Any]
    gpus: tuple[str, ...] = ()
    #: A GPU on which an error was found does no more of the plan.
    fail_fast: bool = False
    #: Whether it ends with the process that asks.
    bound: bool = False
    #: What GPUs have done of the plan before, by UUID; the others begin it.
    done: Mapping[str, EarlierWork] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CancelBurnin(_Command):
    """End the burn-in; what was done of it stays recorded."""


@dataclass(frozen=True, kw_only=True)
class AcknowledgeResults(_Command):
    """Report that wrong results of a GPU no longer count; that is on disk already."""

    #: Its UUID; it may be missing.
    gpu: str
    reason: str
    errors: int
    findings: int
    #: How many findings of this daemon are acknowledged in all.
    counted: int


@dataclass(frozen=True, kw_only=True)
class ShutDown(_Command):
    """Release every GPU and exit."""


Command = (
    Resume
    | Drain
    | PauseGpus
    | ResumeGpus
    | Reserve
    | Extend
    | Unreserve
    | Allocate
    | Deallocate
    | Configure
    | StartSession
    | EndSession
    | StartBurnin
    | CancelBurnin
    | AcknowledgeResults
    | ShutDown
)


@dataclass(frozen=True, kw_only=True)
class ApiHeartbeat:
    """The API accepts requests; sent when it begins to, and once a second."""


@dataclass(frozen=True, kw_only=True)
class ServiceWarning:
    """A failure in the API process outside any request, for the log."""

    #: "settings", "reservations", "sessions", "history", "watch", "token", "notify", "socket" or
    #: "channel".
    about: str
    #: What is wrong, and where.
    text: str


@dataclass(frozen=True, kw_only=True)
class ServiceFailed:
    """The API process ends because of an error."""

    #: The error in one line, as at the end of a traceback.
    reason: str


ApiMessage = Command | ApiHeartbeat | ServiceWarning | ServiceFailed
API_MESSAGES: tuple[type[ApiMessage], ...] = typing.get_args(ApiMessage)


# --- replies, from the supervisor ------------------------------------------------------------


class Refusal(StrEnum):
    """Why a command was rejected."""

    NO_SUCH_GPU = "no_such_gpu"
    NOT_FOUND = "not_found"
    INVALID = "invalid"
    CONFLICT = "conflict"
    FORBIDDEN = "forbidden"
    ENDING = "ending"


@dataclass(frozen=True, kw_only=True)
class CommandReply:
    """The result of the command of this number."""

    number: int
    refused: Refusal | None = None
    #: What will happen; or why the command was rejected and what is allowed.
    text: str = ""
    #: The UUIDs of the GPUs that it applies to.
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ReloadConfig:
    """Read the settings again and send them as a :class:`Configure`."""
