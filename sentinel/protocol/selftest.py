"""Messages of a stressor that runs a selftest: one per trial, and one at the end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SelftestResult:
    """The result of one trial of a selftest.

    In a trial of place "clean", nothing is flipped: ``tried`` counts results, ``found`` false
    alarms.
    """

    dtype: str
    #: Where bits were flipped: "result" (just computed), "memory", "input", "reference"; or
    #: "clean".
    place: str
    #: How many bits were flipped.
    tried: int
    #: How many of them were found.
    found: int


@dataclass(frozen=True, kw_only=True)
class SelftestDone:
    """All trials of a selftest are done."""
