"""Messages of one-shot processes: the inspection of the driver and the catalog of workloads."""

from __future__ import annotations

from dataclasses import dataclass

# --- the inspection of the driver ------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CallResult:
    """The result of one driver call; without numbers, text and error it is not supported."""

    call: str
    #: The index of the GPU, or None for a call about the driver.
    gpu: int | None = None
    numbers: tuple[int, ...] | None = None
    text: str | None = None
    error: str | None = None
    #: Whether more calls to this GPU, or without a GPU to this driver, are pointless.
    lost: bool = False


@dataclass(frozen=True, kw_only=True)
class InspectionDone:
    """The inspection is complete."""


# --- the catalog of workloads ----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class WorkloadOption:
    """One option of a workload, for people."""

    name: str
    kind: str
    #: The default as text, or None if the option is required.
    default: str | None
    text: str


@dataclass(frozen=True, kw_only=True)
class WorkloadInfo:
    """The description of the workload of this number, or the error that its import raised."""

    number: int
    summary: str = ""
    options: tuple[WorkloadOption, ...] = ()
    error: str | None = None
