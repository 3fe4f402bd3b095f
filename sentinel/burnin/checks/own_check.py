"""The types of a check of your own: what a package registers, and what its process sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sentinel.burnin.checks.check import Check, Severity, Status
from sentinel.burnin.checks.load_checks import LoadEvidence
from sentinel.burnin.checks.thresholds import Limit
from sentinel.burnin.records.record import GpuRecord
from sentinel.config.plan import Plan


@dataclass(frozen=True, kw_only=True)
class RunEvidence:
    """All that a check of the node may use."""

    plan: Plan
    #: Every GPU of the run, by index.
    gpus: tuple[GpuRecord, ...]


@dataclass(frozen=True, kw_only=True)
class GpuCheck(Check[LoadEvidence]):
    """A check of each GPU of a run."""


@dataclass(frozen=True, kw_only=True)
class NodeCheck(Check[RunEvidence]):
    """A check of all GPUs of a run together."""


# --- messages --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OwnSpec:
    """What the process of one check has to do."""

    #: The id of the check, which is the name of its entry point.
    id: str
    #: Its ``module:attribute``.
    place: str
    #: The folder of the run; None to describe the check only.
    folder: str | None = None
    #: Replaced limits by name.
    limits: Mapping[str, float] = field(default_factory=dict)
    #: The file that replaced them.
    origin: str = ""


@dataclass(frozen=True, kw_only=True)
class OwnCheck:
    """A check, as its package declares it."""

    #: Whether it judges the node, or each GPU.
    of_node: bool
    unit: str
    threshold: str
    source: str
    limits: Mapping[str, Limit] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class OwnResult:
    """The result of a check for one GPU, or for the node."""

    #: The UUID, or None for the node.
    gpu: str | None
    status: Status
    #: The value, if it is a number.
    number: float | None
    #: The value, if it is text.
    text: str | None
    severity: Severity
    threshold: str
    action: str
    evidence: str


@dataclass(frozen=True, kw_only=True)
class OwnDone:
    """The check has judged everything, or cannot judge."""

    #: Why it cannot be used, or None.
    error: str | None = None


OwnMessage = OwnCheck | OwnResult | OwnDone
