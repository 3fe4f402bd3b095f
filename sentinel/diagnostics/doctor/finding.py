"""What an examination comes to: lines that are ok, a warning or a problem, and one verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is: a warning limits sentinel, a problem stops it or makes it unsafe."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line: what was looked at, what was found, what that means, and what to do about it.

    ``gpu`` is a UUID, ``None`` where the line is about the host or a GPU that has no name;
    ``index`` is nvidia-smi's index of that GPU, for people.
    """

    check: str
    level: Level
    found: str
    means: str
    do: str = ""
    gpu: str | None = None
    index: int | None = None


def well(check: str, found: str, means: str) -> Finding:
    """Return a line that asks for nothing."""
    return Finding(check=check, level=Level.OK, found=found, means=means)


def warning(check: str, found: str, means: str, do: str) -> Finding:
    """Return a line for what limits sentinel."""
    return Finding(check=check, level=Level.WARNING, found=found, means=means, do=do)


def problem(check: str, found: str, means: str, do: str) -> Finding:
    """Return a line for what keeps sentinel from working, or makes it unsafe."""
    return Finding(check=check, level=Level.PROBLEM, found=found, means=means, do=do)


def verdict(findings: Iterable[Finding]) -> Level:
    """Return the worst level of all lines."""
    levels = {finding.level for finding in findings}
    return next((bad for bad in (Level.PROBLEM, Level.WARNING) if bad in levels), Level.OK)
