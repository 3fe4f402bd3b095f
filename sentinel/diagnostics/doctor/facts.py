"""What an examination of a host found, before anybody judges it: frozen values and no opinion."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.host.packages import Bindings, TorchBuild


@dataclass(frozen=True, kw_only=True)
class Unread:
    """Nobody knows: the call failed, or, without a reason, there is no such thing to be told."""

    why: str | None = None


#: What the driver answered in numbers, or that it did not.
Numbers = tuple[int, ...] | Unread

_NOT_TOLD = Unread()


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A call from which the examining process did not come back: ``how`` it ended there."""

    call: str
    how: str


@dataclass(frozen=True, kw_only=True)
class DriverFacts:
    """The driver as a whole.

    Attributes:
        version: Its version; ``None`` where there is no driver or it did not say.
        cuda: The newest CUDA that it supports: 1000 times the major version and 10 the minor.
        missing: Why no driver can be asked.
        fault: The call that hung or crashed, where it was about no single GPU.
        simulated: Whether the GPUs are pretended ones, for which no driver was asked.
    """

    version: str | None = None
    cuda: Numbers = _NOT_TOLD
    missing: str | None = None
    fault: Fault | None = None
    simulated: bool = False


@dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """One GPU, as its driver answers. Each of the numbers is as NVML gives it.

    Attributes:
        index: nvidia-smi's, for people.
        uuid: Its identity; ``None`` where it could not say who it is.
        lost: Why it cannot be asked any more.
        fault: The call that hung or crashed there; what came after was not asked.
        node: Its device node; ``None`` where nobody says.
        unwatched: Why opens of its node cannot be noticed, ``None`` where they can.
        remapped: Correctable and uncorrectable remaps, then whether one is pending and one failed.
        compute: The PIDs in the list of computing processes; ``mps`` those in that of MPS.
    """

    index: int
    uuid: str | None = None
    name: str = ""
    lost: str | None = None
    fault: Fault | None = None
    node: str | None = None
    unwatched: str | None = None
    persistence: Numbers = _NOT_TOLD
    compute_mode: Numbers = _NOT_TOLD
    mig: Numbers = _NOT_TOLD
    display: Numbers = _NOT_TOLD
    ecc: Numbers = _NOT_TOLD
    volatile: Numbers = _NOT_TOLD
    aggregate: Numbers = _NOT_TOLD
    remapped: Numbers = _NOT_TOLD
    retiring: Numbers = _NOT_TOLD
    compute: Numbers = _NOT_TOLD
    mps: Numbers = _NOT_TOLD


@dataclass(frozen=True, kw_only=True)
class Folder:
    """One folder for locks: can it be used, and by everybody.

    ``unusable`` says why not; ``missing`` that it is not there yet but could be made; ``shared``
    that all users may make locks in it; ``private`` that it is mounted for this service alone.
    """

    path: str
    unusable: str | None = None
    missing: bool = False
    shared: bool = True
    private: bool = False


@dataclass(frozen=True, kw_only=True)
class Held:
    """A lock that cannot be taken: by whom it is held, or why it cannot be opened."""

    uuid: str
    holder: str | None = None
    unusable: str | None = None


@dataclass(frozen=True, kw_only=True)
class Quota:
    """The least share of the processors that a cgroup of ours allows, and where it is set."""

    cpus: float
    where: str


@dataclass(frozen=True, kw_only=True)
class Room:
    """The bytes of host memory that can still be taken, and what sets the limit."""

    available: int
    where: str


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """Everything that was found.

    Attributes:
        cared_for: How many GPUs sentinel would care for; those that CUDA_VISIBLE_DEVICES shows.
        hidden: Why other people's processes may be hidden here.
        no_inotify: Why no node at all can be watched.
        mps: The MPS processes of this host, by PID.
        nice: The niceness that a stressor would inherit, and ``policy`` its scheduling policy.
        room: ``None`` where the host does not say how much memory is left.
    """

    driver: DriverFacts
    gpus: tuple[GpuFacts, ...] = ()
    cared_for: int = 0
    bindings: Bindings
    torch: TorchBuild | None
    hidden: str | None = None
    no_inotify: str | None = None
    mps: tuple[tuple[int, str], ...] = ()
    folders: tuple[Folder, ...] = ()
    held: tuple[Held, ...] = ()
    nice: int = 0
    policy: str = "SCHED_OTHER"
    quota: Quota | None = None
    room: Room | None = None
