"""What became of a phase and of a run, for the formats that know skipped and broken tests. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from sentinel.burnin.reports.verdict import Verdict


class Outcome(Enum):
    """What became of a phase of a GPU, or of a run."""

    #: Everything was done.
    DONE = auto()
    #: It was not reached, or was interrupted: the GPU was needed, or a signal ended the run.
    SKIPPED = auto()
    #: The tool could not do it.
    BROKEN = auto()


def of_phase(phase: Mapping[str, Any]) -> Outcome:
    """Find what became of a phase of the report; one that is not mandatory is never BROKEN."""
    if phase["complete"]:
        return Outcome.DONE
    if phase["not_tested"] and phase["mandatory"]:
        return Outcome.BROKEN
    return Outcome.SKIPPED


def of_run(report: Mapping[str, Any]) -> Outcome:
    """Find what became of a run: DONE if it passed or failed."""
    if report["verdict"] == Verdict.NOT_APPLICABLE:
        return Outcome.SKIPPED  # a screen proves nothing
    if report["verdict"] != Verdict.INCOMPLETE:
        return Outcome.DONE
    phases = [phase for gpu in report["gpus"] for phase in gpu["coverage"]]
    if not phases or any(of_phase(one) is Outcome.BROKEN for one in phases):
        return Outcome.BROKEN
    return Outcome.SKIPPED


def describe_phase(phase: Mapping[str, Any]) -> str:
    """Describe how much of a phase was done, and why no more."""
    parts = []
    if phase["quota_s"]:
        parts.append(f"{phase['done_s']:.1f} of {phase['quota_s']:.1f} s")
    if phase["quota_passes"]:
        parts.append(f"{phase['passes']} of {phase['quota_passes']} passes")
    text = f"{', '.join(parts)} of work that counts"
    return f"{text}: {phase['not_tested']}" if phase["not_tested"] else text
