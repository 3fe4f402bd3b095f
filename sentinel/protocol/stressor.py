"""What the processes of sentinel tell each other: readings, a child's messages, its orders.

Times are seconds of the monotonic clock, which all processes of a host share; sizes are bytes.
A value that could not be read is ``None``, never zero and never an empty tuple.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from sentinel.protocol.gpu import Gpu

# --- messages of a stressor ------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CreatingContext:
    """Everything is imported; the next thing the child does is to create its context."""

    torch: str


@dataclass(frozen=True, kw_only=True)
class Ready:
    """The child holds its memory and has run every kernel once; from now on it is steady.

    ``refused`` says that the device gave fewer chunks than were asked for.
    """

    held: int
    asked: int
    chunks: int
    refused: bool


#: How many seconds of work there may be between two calls of ``pace``: a stop waits for it.
MAX_QUANTUM_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Work completed since the last such message, which was ``seconds`` ago.

    ``max_quantum_s`` is how many seconds the longest time between two calls of ``pace`` took, the
    host's or the device's, whichever is longer, and without what ``pace`` itself waited.
    """

    seconds: float
    iterations: int
    flops: float
    bytes: float
    checks: int
    errors: int
    max_quantum_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Note:
    """What the workload is at, for people; it holds until the next one."""

    text: str


class FailureKind(StrEnum):
    """Why a child gave up, or was given up."""

    OUT_OF_MEMORY = "out_of_memory"
    SPAWN = "spawn"
    WORKLOAD = "workload"
    """The workload raised an error, or something of ours did."""
    RETURNED = "returned"
    UNUSABLE = "unusable"
    """No retry can mend it: a wrong option, a torch that cannot use the GPU."""
    MALFORMED = "malformed"
    """No retry can mend it: what is named as a workload is none."""
    NOT_READY = "not_ready"
    HANG = "hang"
    STUCK = "stuck"
    GARBAGE = "garbage"
    CRASH = "crash"


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The child's last words, or what is said of one that had none."""

    kind: FailureKind
    reason: str


class FindingPlace(StrEnum):
    """What was wrong."""

    RESULT = "result"
    """A result, while its inputs and its reference were right."""
    INPUT = "input"
    """An input, so that every result since is wrong."""
    REFERENCE = "reference"
    """What results are compared with."""
    MEMORY = "memory"
    """Memory that nobody wrote to since it was last right."""
    GOLDEN = "golden"
    """A result that is the same every time and not what other GPUs of its kind compute."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A GPU that was wrong, with the evidence.

    ``number`` counts the findings of one child from 1; the supervisor acknowledges each. ``round``
    is how often the workload had gone round, ``seed`` that of its inputs. ``count`` elements were
    wrong, the first of them at ``first``: row and column of a matrix, or chunk and element.
    ``bits`` is how often each bit of an element differed, from the lowest. ``reread`` is whether
    they were wrong again when they were read a second time: then the store was bad, else the load.
    ``repeated`` of ``repeats`` more tries were wrong, too: a fault that is repeatable, or transient
    with none. ``None`` stands where that could not be tried.
    """

    number: int
    place: FindingPlace
    workload: str
    dtype: str | None
    round: int
    seed: int | None
    count: int
    first: tuple[int, ...]
    bits: tuple[int, ...]
    reread: bool | None
    repeated: int | None
    repeats: int | None
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class MemoryContention:
    """While the child filled its memory, ``grown`` bytes more than it took were gone."""

    grown: int


@dataclass(frozen=True, kw_only=True)
class SelftestResult:
    """How one trial of a selftest went, in one kind of number.

    Of ``tried`` bits that were flipped in a ``result`` that was just computed, in one that lay in
    ``memory``, in an ``input`` or in a ``reference``, ``found`` were found. Of ``tried`` results
    with nothing flipped, which are ``clean``, ``found`` were taken for wrong.
    """

    dtype: str
    place: str
    tried: int
    found: int


@dataclass(frozen=True, kw_only=True)
class SelftestDone:
    """All trials of a selftest were told."""


ChildMessage = (
    CreatingContext
    | MemoryContention
    | Ready
    | Progress
    | Note
    | Finding
    | SelftestResult
    | SelftestDone
    | Failed
)
STRESSOR_MESSAGES: tuple[type[ChildMessage], ...] = typing.get_args(ChildMessage)


# --- what a child is told --------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The supervisor is alive; the child may live for another lease."""


@dataclass(frozen=True, kw_only=True)
class Stop:
    """End by yourself, within a quantum of work."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Keep the device busy for this ``share`` of the time from now on, from 0 to 1."""

    share: float


@dataclass(frozen=True, kw_only=True)
class FindingAck:
    """The supervisor has the finding of this number; the child need not keep it."""

    number: int


StressorCommand = Lease | Stop | Pace | FindingAck
STRESSOR_COMMANDS: tuple[type[StressorCommand], ...] = typing.get_args(StressorCommand)


class ChildExitCode(IntEnum):
    """The exit codes of our own children; any other is an accident."""

    DONE = 0
    LEASE_RAN_OUT = 80
    ORPHANED = 81
    FAILED = 82


@dataclass(frozen=True, kw_only=True)
class MemoryTarget:
    """How much to hold: a share of what is free, or a size; exactly one of them."""

    share: float | None = None
    size: int | None = None


@dataclass(frozen=True, kw_only=True)
class StressorSpec:
    """All that a stressor child is told. ``simulation`` is the registry's folder, if pretended.

    ``reserve`` bytes of what is free are left, whatever the target. ``check_contention``: others
    may come and not be listed, so the child looks out for them while it takes its memory.
    ``clearing``: it only opens a context, and ends. ``goldens`` is the file of the golden
    checksums, if they are kept.
    """

    gpu: Gpu
    memory: MemoryTarget
    chunk: int
    workload: str
    options: Mapping[str, str]
    lease: float
    reserve: int = 0
    check_contention: bool = False
    clearing: bool = False
    goldens: str | None = None
    simulation: str | None = None
