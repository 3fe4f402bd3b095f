"""What processes say that look at something and end: the examiner, and the lister of workloads.

Each says what it does next, so that whoever waits for it knows where it hangs or crashed.
"""

from __future__ import annotations

from dataclasses import dataclass

# --- messages of an examiner -----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Asking:
    """The next thing the examiner does is this call, of the GPU with that index or of none."""

    call: str
    gpu: int | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the driver said to a call: numbers, a text, an error, or that there is no such thing.

    Without numbers, text and error, the GPU or the driver does not have what was asked for, which
    is no fault and not zero. ``lost`` means that no other call to this GPU, or without a GPU to
    this driver, can help.
    """

    call: str
    gpu: int | None = None
    numbers: tuple[int, ...] | None = None
    text: str | None = None
    error: str | None = None
    lost: bool = False


@dataclass(frozen=True, kw_only=True)
class Examined:
    """All has been asked; the examiner ends after this message."""


# --- messages of a lister --------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Importing:
    """The next thing the lister does is to import the workload of this number."""

    number: int


@dataclass(frozen=True, kw_only=True)
class WorkloadOption:
    """One option of a workload, for people; without a ``default`` it must be given."""

    name: str
    kind: str
    default: str | None
    text: str


@dataclass(frozen=True, kw_only=True)
class Described:
    """What the workload of this number says of itself, or the ``error`` that keeps it from that."""

    number: int
    summary: str = ""
    options: tuple[WorkloadOption, ...] = ()
    error: str | None = None
