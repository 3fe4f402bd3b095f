"""Messages between the supervisor and a stressor.

Times are seconds of the monotonic clock, which all processes of a host share; sizes are bytes. A
value that could not be read is None, never zero and never an empty tuple.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sentinel.protocol.gpu import Gpu

#: Growth of the used memory up to this many bytes is noise. On an H200 the driver's figure did not
#: move beside NVML clients, and by 64 KiB for a moment while CUDA programs started on other GPUs of
#: the host; a newcomer's first growth is larger (docs/internals/handing-over.md).
GROWTH_SLACK_BYTES = 2**20

#: torch takes memory from the driver in pieces of 20 MiB for tensors of 1 to 10 MiB, and in
#: multiples of 2 MiB for larger ones (kLargeBuffer, kMinLargeAlloc and kRoundLarge of
#: c10/cuda/CUDACachingAllocator).
LARGE_BUFFER_BYTES, MIN_LARGE_BYTES, ROUND_LARGE_BYTES = 20 * 2**20, 10 * 2**20, 2 * 2**20

#: The longest time of work between two calls of ``pace``, in seconds: a stop waits for it.
MAX_QUANTUM_S = 0.05


def size_in_chunks(asked: int, chunk: int) -> int:
    """Compute what a target takes at most if it is taken in chunks, in bytes."""
    if chunk < MIN_LARGE_BYTES:
        taken = LARGE_BUFFER_BYTES // (LARGE_BUFFER_BYTES // max(1, chunk))
    else:
        taken = -(-chunk // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES
    return asked + asked // max(1, chunk) * (taken - chunk) + LARGE_BUFFER_BYTES


@dataclass(frozen=True, kw_only=True)
class SelftestResult:
    """The result of one trial of a self-test.

    In a trial of place "clean", no fault is injected: ``tried`` counts results, ``found`` false
    alarms.
    """

    dtype: str
    #: Where faults were injected: "comparison" (a result that is compared at once, before a
    #: stressor is ready), "result" (just computed), "memory", "input", "reference"; or "clean".
    place: str
    #: How many faults were injected.
    tried: int
    #: How many of them were found.
    found: int
    #: How many changed no result, since rounding to the format removed them.
    rounded: int = 0
    #: The faults and those found, by kind.
    tried_by_kind: Mapping[str, int] = field(default_factory=dict)
    found_by_kind: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SelftestDone:
    """All trials of a self-test are done."""


# --- messages of a stressor ------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A standby stressor has loaded torch, and waits for its GPU."""


@dataclass(frozen=True, kw_only=True)
class CreatingContext:
    """All imports are done; the stressor creates its context next."""

    #: The version of torch.
    torch: str


class StartStage(StrEnum):
    """What a starting stressor does once it has its context."""

    REHEARSING = "rehearsing"
    """The workload runs each kernel once, on a small part of the memory."""
    TAKING = "taking"
    """It takes its memory."""
    PREPARING = "preparing"
    """It holds its memory; the workload prepares until its second ctx.pace()."""


@dataclass(frozen=True, kw_only=True)
class Announcement:
    """What a starting stressor does next, and how much memory it takes for that at most."""

    stage: StartStage
    #: The used memory of the GPU while the stressor kept still, in bytes; None if unknown.
    used: int | None = None
    #: How many bytes more it takes from now on; an announcement expires.
    more: int = 0


@dataclass(frozen=True, kw_only=True)
class Ready:
    """The stressor holds its memory and has run every kernel once; its memory stays constant."""

    #: Bytes held.
    held: int
    #: Requested bytes.
    asked: int
    chunks: int
    #: Whether the device provided fewer chunks than requested.
    refused: bool


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The work done since the last such message."""

    #: How long ago the last such message was sent.
    seconds: float
    iterations: int
    flops: float
    bytes: float
    checks: int
    errors: int
    #: The longest time between two calls of ``pace``, the host's or the device's, without what
    #: ``pace`` itself waited.
    max_quantum_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class MemoryCovered:
    """A memory test has written a pattern to its memory and read it back."""

    #: The pattern and the direction.
    pattern: str
    #: How many of these a whole pass has.
    patterns: int
    #: The share of the device's memory.
    share: float
    #: The pattern was written to a stripe only, to stay there untouched for a while; then
    #: ``share`` is that of all stripes so far.
    stripe: bool = False


@dataclass(frozen=True, kw_only=True)
class ReferenceChecksum:
    """A workload has computed a reference that every good GPU of its model computes bit for bit."""

    #: Everything that determines the bits, as text: equal texts must mean equal checksums.
    key: str
    #: In hexadecimal: many JSON readers round large numbers.
    checksum: str
    #: The checksum that was on record before; None if there was none, or no records are kept.
    stored: str | None


class LinkPart(StrEnum):
    """A transfer over a link, and what else moves at that time."""

    TO_DEVICE = "host_to_device"
    TO_HOST = "device_to_host"
    BOTH = "both_directions"
    """Both directions at once; the bytes of both are counted."""
    ALL_TO_DEVICE = "host_to_device_all"
    """The same on all GPUs of the group at once."""
    ALL_TO_HOST = "device_to_host_all"
    PEER = "peer"
    """From another GPU, while this one sends as much to a third or the same."""
    ALL_REDUCE = "all_reduce"
    TO_DEVICE_REMOTE = "host_to_device_remote"
    """From memory of the host that is far from the GPU."""
    TO_HOST_REMOTE = "device_to_host_remote"


@dataclass(frozen=True, kw_only=True)
class LinkMeasured:
    """What the workload ``links`` has measured of a link, and compared, since it last said so."""

    part: LinkPart
    #: The index of the GPU that has sent; None for the host and for all GPUs.
    peer: int | None
    #: How many GPUs the group has.
    size: int
    #: Bytes a second; of an all-reduce, the bytes of one GPU's data over its time. None on
    #: simulated GPUs, which have no links.
    rate: float | None
    #: How many bytes were compared after they had arrived.
    checked: int
    #: How many of them were in wrong words, or in wrong numbers of an all-reduce.
    wrong: int
    #: Where the memory of the host is, or why that is not known; None between GPUs and on
    #: simulated ones.
    memory: str | None = None


@dataclass(frozen=True, kw_only=True)
class UnitExercised:
    """What the workload ``units`` has checked of a unit of the GPU since it last said so."""

    #: Its name, such as ``exp`` or ``atomics``.
    unit: str
    #: How many results were checked, and how many were wrong.
    checks: int = 0
    wrong: int = 0
    #: Why it cannot be exercised on this GPU; None if it can.
    not_exercised: str | None = None


@dataclass(frozen=True, kw_only=True)
class Note:
    """The current step of the workload, for people; valid until the next one."""

    text: str


class FailureKind(StrEnum):
    """Why a stressor failed."""

    OUT_OF_MEMORY = "out_of_memory"
    SPAWN = "spawn"
    WORKLOAD = "workload"
    """The workload or the stressor raised an error."""
    RETURNED = "returned"
    UNUSABLE = "unusable"
    """Permanent: a wrong option, or a torch that cannot use the GPU."""
    MALFORMED = "malformed"
    """Permanent: the named object is not a workload."""
    NOT_READY = "not_ready"
    HANG = "hang"
    PEERS = "peers"
    """The other stressors of its group did not come, or went; no fault of this GPU."""
    STUCK = "stuck"
    GARBAGE = "garbage"
    CRASH = "crash"


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The failure of a stressor, sent by itself or, if it could not, assumed by the supervisor."""

    kind: FailureKind
    reason: str


class FindingPlace(StrEnum):
    """What was wrong."""

    RESULT = "result"
    """A result, with correct inputs and a correct reference."""
    INPUT = "input"
    """An input; every result since is wrong."""
    REFERENCE = "reference"
    """The reference that results are compared with."""
    MEMORY = "memory"
    """Memory that changed without a write."""
    LINK = "link"
    """Data that arrived from the host or from another GPU."""
    GOLDEN = "golden"
    """A reproducible result that differs from other GPUs of this model."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Proof that a GPU computed or stored something wrong; None is what could not be tried."""

    #: Counts the findings of one child from 1; set as it is sent. The supervisor acknowledges each.
    number: int = 0
    place: FindingPlace
    workload: str
    dtype: str | None = None
    #: How many rounds the workload had completed.
    round: int
    #: The seed of its inputs.
    seed: int | None = None
    #: How many elements were wrong.
    count: int
    #: The first wrong element: row and column of a matrix, or chunk and element.
    first: tuple[int, ...]
    #: How often each bit of an element differed, from the lowest.
    bits: tuple[int, ...]
    #: Whether a second read was wrong, too: then the store was bad, else the load.
    reread: bool | None = None
    #: How many of ``repeats`` further tries were wrong, too; with none, the fault is transient.
    repeated: int | None = None
    repeats: int | None = None
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class MemoryContention:
    """The stressor saw another process take memory, and yields by itself."""

    #: Bytes taken by the other process; those beyond the limit if there is one.
    grown: int
    #: When the read that showed it began; 0.0 if the stressor was still taking its own memory.
    at: float = 0.0
    #: How long that read took, in seconds.
    took: float = 0.0
    #: When the stressor killed itself; None if it exits in an ordinary way.
    killed_at: float | None = None


#: What a built-in workload has completed.
Completed = (
    MemoryCovered | ReferenceChecksum | LinkMeasured | UnitExercised | SelftestResult | SelftestDone
)
ChildMessage = (
    Prepared
    | CreatingContext
    | Announcement
    | MemoryContention
    | Ready
    | Progress
    | Completed
    | Note
    | Finding
    | Failed
)
STRESSOR_MESSAGES: tuple[type[ChildMessage], ...] = typing.get_args(ChildMessage)


# --- messages to a stressor ------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Lease:
    """Let the stressor live for a while from now on."""

    #: Seconds; short where the stressor depends on the supervisor to see a newcomer.
    seconds: float
    #: Whether the probe reads the memory of the GPU in alternation with the stressor.
    shared: bool = False


@dataclass(frozen=True, kw_only=True)
class MemoryLimit:
    """The stressor yields by itself once more memory of its GPU is used than this."""

    #: Bytes of used memory; None if only the supervisor can tell a newcomer.
    used: int | None
    #: Whether to kill itself then, or to ask the workload to end.
    at_once: bool = True


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Stop within one quantum of work, and exit."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Keep the device busy for this share of the time from now on."""

    #: From 0 to 1.
    share: float


@dataclass(frozen=True, kw_only=True)
class FindingAck:
    """The supervisor has the finding of this number; the stressor need not send it again."""

    number: int


StressorCommand = Lease | MemoryLimit | Stop | Pace | FindingAck
STRESSOR_COMMANDS: tuple[type[StressorCommand], ...] = typing.get_args(StressorCommand)


@dataclass(frozen=True, kw_only=True)
class MemoryTarget:
    """How much memory to hold: a share of what is free, or a size; exactly one of them."""

    share: float | None = None
    size: int | None = None


@dataclass(frozen=True, kw_only=True)
class Account:
    """A user of this host, with all groups."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str


@dataclass(frozen=True, kw_only=True)
class StandbySpec:
    """The specification of a standby stressor."""

    #: The user to become, or None to stay the supervisor's.
    account: Account | None = None
    #: The files and folders that its stressor may use.
    files: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StressorGroup:
    """The place of a stressor among those that work together, one on each of their GPUs."""

    #: Distinguishes the groups of a supervisor.
    number: int
    #: The position of its own GPU in ``gpus``.
    rank: int
    #: The indices of their GPUs.
    gpus: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.gpus)


@dataclass(frozen=True, kw_only=True)
class StressorSpec:
    """The specification of a stressor."""

    gpu: Gpu
    memory: MemoryTarget
    #: Bytes of one allocation.
    chunk: int
    workload: str
    options: Mapping[str, str]
    #: Seconds of the first lease.
    lease: float
    #: Seconds between two reads of the used memory by the child itself.
    watch_interval: float = 0.025
    #: Bytes to leave free, whatever the target.
    reserve: int = 0
    #: Whether memory that it did not announce is a newcomer's while it starts: no other process on
    #: the GPU may grow.
    exact_start: bool = True
    #: Whether it kills itself when it sees a newcomer; else it ends in an ordinary way.
    yields_at_once: bool = True
    #: Whether to open a context and exit.
    clearing: bool = False
    #: The file of the golden checksums, or None.
    goldens: str | None = None
    #: The folder of the simulated GPUs, or None.
    simulation: str | None = None
    #: Whether the child can read the memory of its GPU itself: by NVML, or of a simulated one.
    self_watch: bool = True
    #: The user to become, or None to stay the supervisor's.
    account: Account | None = None
    #: Its place in a group, or None if it works alone.
    group: StressorGroup | None = None
    #: The private folder in which the members of a group find each other, or None.
    rendezvous: str | None = None
    #: Whether to inject faults before Ready, and to say how many were found: that takes time.
    inject_faults: bool = False
    #: The session or the phase that chose the workload, for errors; None if a setting did.
    chosen_by: str | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """The files and folders that it may use."""
        all_ = (self.goldens, self.simulation, self.rendezvous)
        return tuple(path for path in all_ if path is not None)


@dataclass(frozen=True, kw_only=True)
class Activate:
    """A standby stressor becomes the stressor that ``spec`` describes.

    With it come descriptors: of the shared memory for the stamps, and of the GPU's locks.
    """

    spec: StressorSpec
