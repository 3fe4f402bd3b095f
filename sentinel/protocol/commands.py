"""Commands that the API sends to the supervisor, and the replies.

The API sends each request of a client as one command, and receives one :class:`CommandReply` to it.
Times are seconds of the monotonic clock, sizes are bytes.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

from sentinel.protocol.gpu import HeldGpu

#: What a report counts besides its seconds, and a phase sums up.
COUNTS = ("iterations", "flops", "bytes", "checks", "errors")

#: A client is granted what it asks for under a lease of so many seconds. The API process renews the
#: lease while the client waits, and ends it just before the response.
LEASE_S = 30.0


class Level(IntEnum):
    """What a client may do; each level includes those below it."""

    NONE = 0
    #: Status, events, history and metrics.
    READ = 1
    #: Reserve, allocate and pause GPUs, and end what the same user has begun.
    OPERATE = 2
    #: Also end what others have begun, stop the daemon, and change settings.
    ADMINISTER = 3
    #: Also set what names code or a file: the daemon's own user and root, over the Unix socket.
    OWN = 4


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The process that sent a command, as far as the transport reveals it."""

    #: The transport, such as "unix" or "tcp".
    via: str
    uid: int | None = None
    #: The name of that user, or None if it has none or the name service has not answered. For
    #: people: the same caller has it at one time and not at another.
    user: str | None = field(default=None, compare=False)
    pid: int | None = None
    #: Its start in clock ticks since boot, which distinguishes its PID from a later use of it.
    started: int | None = None
    #: What it may do; that of a stored caller is not known.
    level: Level = Level.NONE

    def __str__(self) -> str:
        """Name the user for people, or else the transport."""
        if self.user is not None:
            return self.user
        return f"user {self.uid}" if self.uid is not None else f"a client over {self.via}"

    @property
    def account(self) -> tuple[str, int | None]:
        """Identify the user; all holders of a token count as one."""
        return self.via, self.uid

    def may_end(self, begun_by: Caller) -> bool:
        """Check whether this caller may end what ``begun_by`` has begun."""
        return self.account == begun_by.account or self.level >= Level.ADMINISTER


@dataclass(frozen=True, kw_only=True)
class PhaseWork:
    """What a GPU has done of one phase.

    Seconds are those of the workload's own reports, so starts and interruptions are not in them.
    """

    #: Of work that counts, in all stretches.
    seconds: float = 0.0
    #: Of work that does not count: warm-up, and work without checks where they are required.
    uncounted: float = 0.0
    iterations: int = 0
    flops: float = 0.0
    bytes: float = 0.0
    #: Results that were checked, and those that were wrong, also while warming up.
    checks: int = 0
    errors: int = 0
    #: How often each pattern of a memory test has covered the memory, and of how many patterns.
    covered: Mapping[str, int] = field(default_factory=dict)
    patterns: int = 0
    #: The smallest share of the device's memory that a pattern has covered.
    share: float | None = None
    #: The share of the device's memory that kept a pattern untouched, stripe after stripe, in the
    #: stressor that came furthest.
    retained: float | None = None
    #: The seconds that count of the current stretch, and of the longest one.
    stretch: float = 0.0
    longest: float = 0.0
    interruptions: int = 0
    #: Why the GPU will not do the rest of the phase, or None.
    given_up: str | None = None

    def passes(self) -> int:
        """Count how often every pattern has covered the memory."""
        if not self.patterns or len(self.covered) < self.patterns:
            return 0
        return min(self.covered.values())


@dataclass(frozen=True, kw_only=True)
class EarlierWork:
    """What a GPU has done of a plan before it goes on with it."""

    #: The number of the first phase that is not over, from 0; that of all phases if none is left.
    phase: int
    #: What was done of that phase.
    work: PhaseWork = field(default_factory=PhaseWork)


@dataclass(frozen=True, kw_only=True)
class Given:
    """One setting as it was given. A sequence of them is all settings: later ones win."""

    key: str
    text: str
    #: Where and by whom, such as ``--poll``, ``site.toml: poll`` or ``session a: poll``.
    source: str
    #: The selector of the GPU that it is for; None for all GPUs.
    gpu: str | None = None

    @property
    def by_flag(self) -> bool:
        """Whether a flag or a client gave it, at run time, and not a file or a variable."""
        # The source of a value in a file has a colon after its path, which may begin with dashes.
        return self.source.startswith("--") and ": " not in self.source


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
    #: Whether systemd waits for notifications of this daemon.
    managed: bool = False
    #: CUDA_VISIBLE_DEVICES, or None if it is not set.
    visible_devices: str | None = None
    #: What CUDA ignores of it, as a sentence, or None.
    ignored_devices: str | None = None
    #: The selected GPUs that it does not use, since they were held at its start.
    held_elsewhere: tuple[HeldGpu, ...] = ()
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


class GrantKind(StrEnum):
    """What a client can be granted until it ends it."""

    RESERVATION = "reservation"
    """GPUs that are kept free, or a place in the queue for them."""
    ALLOCATION = "allocation"
    """Memory of a GPU beside a stressor."""


@dataclass(frozen=True, kw_only=True)
class _Command:
    """The fields of every command."""

    #: Counts the commands of one API process.
    number: int
    by: Caller


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
    """Keep GPUs free for a user: those that are named, or ``count`` of them or of all."""

    #: The client's. The same request again changes nothing and has the same answer.
    id: str
    reason: str
    #: UUIDs; empty for all GPUs.
    gpus: tuple[str, ...] = ()
    #: How many of them, those first that are freed most easily; 0 for each.
    count: int = 0
    #: How long, or None for ever.
    seconds: float | None = None
    #: Whether it ends with the process that asks.
    bound: bool = False
    #: Whether it waits in the queue if too few GPUs are available; the reply then has no GPUs.
    wait: bool = False


@dataclass(frozen=True, kw_only=True)
class Extend(_Command):
    """Extend the lease of a grant, or of a request in the queue."""

    kind: GrantKind
    id: str
    #: Its client has the answer: it lasts as long as that has asked for. Otherwise LEASE_S more.
    kept: bool = False


@dataclass(frozen=True, kw_only=True)
class CancelGrant(_Command):
    """End a grant, or take a request out of the queue."""

    kind: GrantKind
    id: str
    #: Its client no longer waits: the reply to a request says for what it still waits.
    gives_up: bool = False


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
class Configure(_Command):
    """Apply all of these settings, or none of them."""

    given: tuple[Given, ...]
    #: What differs from the settings before, with the source of each, for people.
    changed: str = ""


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

    #: Its id; None for the one that runs.
    id: str | None = None
    #: Why, for the report; None: by a client's request alone.
    reason: str | None = None


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
    #: What became of the GPU: confirmed, not-found or replaced; None if it is not known.
    outcome: str | None = None


@dataclass(frozen=True, kw_only=True)
class StopDaemon(_Command):
    """Release every GPU and exit."""

    #: Whether to start again, with the same arguments and environment.
    restart: bool = False


Command = (
    PauseGpus
    | ResumeGpus
    | Reserve
    | Allocate
    | Extend
    | CancelGrant
    | Configure
    | StartSession
    | EndSession
    | StartBurnin
    | CancelBurnin
    | AcknowledgeResults
    | StopDaemon
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
