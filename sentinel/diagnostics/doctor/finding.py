"""The results of the checks: findings that are ok, a warning or a problem, and one verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """A warning limits sentinel; a problem stops it or makes it unsafe."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check."""

    check: str
    level: Level
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


def well(check: str, found: str, means: str) -> Finding:
    """Build a finding that needs no action."""
    return Finding(check=check, level=Level.OK, found=found, means=means)


def warning(check: str, found: str, means: str, do: str) -> Finding:
    """Build a finding for what limits sentinel."""
    return Finding(check=check, level=Level.WARNING, found=found, means=means, do=do)


def problem(check: str, found: str, means: str, do: str) -> Finding:
    """Build a finding for what stops sentinel, or makes it unsafe."""
    return Finding(check=check, level=Level.PROBLEM, found=found, means=means, do=do)


def verdict(findings: Iterable[Finding]) -> Level:
    """Find the worst level of all findings."""
    levels = {finding.level for finding in findings}
    return next((bad for bad in (Level.PROBLEM, Level.WARNING) if bad in levels), Level.OK)
