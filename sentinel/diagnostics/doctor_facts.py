"""Facts about a host that the checks judge, and what they find: frozen values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from sentinel.host.packages import Bindings, Installer, TorchBuild


@dataclass(frozen=True, kw_only=True)
class Unread:
    """An unknown value: the call failed, or, without a reason, is not supported."""

    #: The error of the call, or None if it is not supported.
    why: str | None = None


#: The numbers that the driver returned, or why it did not.
Numbers = tuple[int, ...] | Unread

_NOT_SUPPORTED = Unread()


@dataclass(frozen=True, kw_only=True)
class DriverFacts:
    """The driver as a whole."""

    #: None if there is no driver or the call failed.
    version: str | None = None
    #: The newest supported CUDA: 1000 times the major version and 10 times the minor.
    cuda: Numbers = _NOT_SUPPORTED
    #: Why the driver is unusable, or None.
    missing: str | None = None
    #: Whether the GPUs are simulated, without a driver.
    simulated: bool = False
    #: What the setting ``driver`` names and the package that has it, or None for NVIDIA's driver.
    own: str | None = None


@dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """One GPU; the numbers are as NVML returns them."""

    #: nvidia-smi's index, for people.
    index: int
    #: None if it could not be read.
    uuid: str | None = None
    name: str = ""
    #: Why the GPU is unusable, or None; the call that hung or crashed.
    lost: str | None = None
    #: The device node, or None if unknown.
    node: str | None = None
    #: Why opens of the node cannot be watched, or None.
    unwatched: str | None = None
    #: All of its memory, in bytes.
    #: Why the probe of a daemon cannot read it, or None.
    unread: str | None = None
    memory: Numbers = _NOT_SUPPORTED
    persistence: Numbers = _NOT_SUPPORTED
    compute_mode: Numbers = _NOT_SUPPORTED
    mig: Numbers = _NOT_SUPPORTED
    display: Numbers = _NOT_SUPPORTED
    ecc: Numbers = _NOT_SUPPORTED
    volatile: Numbers = _NOT_SUPPORTED
    aggregate: Numbers = _NOT_SUPPORTED
    #: Correctable and uncorrectable remaps, whether one is pending, whether one failed.
    remapped: Numbers = _NOT_SUPPORTED
    retiring: Numbers = _NOT_SUPPORTED
    #: The PIDs in the list of computing processes.
    compute: Numbers = _NOT_SUPPORTED
    #: The PIDs in the list of MPS clients.
    mps: Numbers = _NOT_SUPPORTED


@dataclass(frozen=True, kw_only=True)
class Folder:
    """One folder for the records of sentinels."""

    path: str
    #: Why it cannot be used, or None.
    unusable: str | None = None
    #: Whether it does not exist yet but can be created.
    missing: bool = False
    #: Whether all users may create records in it.
    shared: bool = True
    #: Whether it is mounted for this service alone.
    private: bool = False


@dataclass(frozen=True, kw_only=True)
class Held:
    """A GPU that a sentinel holds, or a process that its workload left behind."""

    uuid: str
    #: The process of that sentinel.
    holder: str
    uid: int
    #: The PID of what was left behind, or None.
    stray: int | None = None


@dataclass(frozen=True, kw_only=True)
class Quota:
    """The lowest CPU quota of the control groups of this process."""

    cpus: float
    #: The control group that sets it.
    where: str


@dataclass(frozen=True, kw_only=True)
class Room:
    """The host memory that is still available, and what limits it."""

    #: Bytes.
    available: int
    where: str


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """All facts about the host."""

    driver: DriverFacts
    gpus: tuple[GpuFacts, ...] = ()
    #: How many GPUs sentinel would use: those that CUDA_VISIBLE_DEVICES shows.
    usable_gpus: int = 0
    #: What CUDA ignores of that variable, as a sentence, or None.
    ignored: str | None = None
    bindings: Bindings
    torch: TorchBuild | None
    #: What would install another torch.
    installer: Installer = field(default_factory=Installer)
    #: Why foreign processes may be hidden, or None.
    hidden: str | None = None
    #: Why no device node can be watched, or None.
    no_inotify: str | None = None
    #: The MPS processes of this host: PID and name.
    mps: tuple[tuple[int, str], ...] = ()
    folders: tuple[Folder, ...] = ()
    held: tuple[Held, ...] = ()
    #: The user of this process.
    uid: int = 0
    #: The niceness that a stressor would inherit.
    nice: int = 0
    #: The scheduling policy that a stressor would inherit.
    policy: str = "SCHED_OTHER"
    quota: Quota | None = None
    #: None if the host does not report it.
    room: Room | None = None


class DoctorLevel(StrEnum):
    """A warning limits sentinel; a problem stops it or makes it unsafe."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The result of one check."""

    check: str
    level: DoctorLevel
    #: What was found.
    found: str
    #: What it means for sentinel.
    means: str
    #: What to do about it, or empty.
    do: str = ""
    #: The UUID of the GPU, or None for the host or a GPU without a readable UUID.
    gpu: str | None = None
    #: nvidia-smi's index of the GPU, for people.
    index: int | None = None


def well(check: str, found: str, means: str) -> Diagnosis:
    """Build a finding that needs no action."""
    return Diagnosis(check=check, level=DoctorLevel.OK, found=found, means=means)


def warning(check: str, found: str, means: str, do: str) -> Diagnosis:
    """Build a finding for what limits sentinel."""
    return Diagnosis(check=check, level=DoctorLevel.WARNING, found=found, means=means, do=do)


def problem(check: str, found: str, means: str, do: str) -> Diagnosis:
    """Build a finding for what stops sentinel, or makes it unsafe."""
    return Diagnosis(check=check, level=DoctorLevel.PROBLEM, found=found, means=means, do=do)


def verdict(findings: Iterable[Diagnosis]) -> DoctorLevel:
    """Find the worst level of all findings."""
    levels = {finding.level for finding in findings}
    return next(
        (bad for bad in (DoctorLevel.PROBLEM, DoctorLevel.WARNING) if bad in levels), DoctorLevel.OK
    )
