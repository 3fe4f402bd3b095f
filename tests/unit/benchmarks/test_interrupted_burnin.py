"""Newcomers in phases of a burn-in: only those that met a running stressor count."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.interrupted_burnin import interrupt
from benchmarks.results import Record

#: When the first newcomer comes and leaves; each further one ten seconds later.
CAME_S, LEFT_S = 12.0, 16.0


def newcomers() -> Iterator[Record]:
    number = 0
    while True:
        yield {"got": True, "came_at": CAME_S + 10 * number, "left_at": LEFT_S + 10 * number}
        number += 1


def event(name: str, at: float, **fields: object) -> Record:
    return {"event": name, "at": at, **fields}


def phase(name: str, at: float) -> list[Record]:
    return [event("burnin.phase_started", at, phase=name), event("stressor.ready", at + 1)]


def yielding(at: float, state: str) -> Record:
    return event("gpu.yielding", at, stressor=state)


@pytest.mark.parametrize(
    ("events", "met", "left"),
    [
        pytest.param([yielding(13, "RUNNING")], [("units", "RUNNING")], [], id="running"),
        pytest.param(
            [yielding(13, "STARTING"), event("stressor.ready", 20), yielding(23, "RUNNING")],
            [("units", "STARTING"), ("units", "RUNNING")],
            [],
            id="in a start, and another one",
        ),
        pytest.param(
            [*phase("pulse", 11)[:1], yielding(13, "STARTING")],
            [("pulse", "STARTING")],
            ["units"],
            id="in the start of the next phase",
        ),
        pytest.param(
            [yielding(11, "RUNNING"), event("stressor.stopped", 17)],
            [("units", None)],
            ["units"],
            id="after another newcomer had its GPU",
        ),
        pytest.param([], [("units", None)], ["units"], id="at the end"),
    ],
)
def test_a_newcomer_is_reported_with_what_it_met(
    events: list[Record], met: list[tuple[str, str | None]], left: list[str]
) -> None:
    waiting, loaded = ["units"], newcomers()
    taken = list(interrupt([*phase("units", 9), *events], waiting, lambda: next(loaded)))
    assert [(one["phase"], one["stressor"]) for one in taken] == met
    assert waiting == left


def test_no_newcomer_comes_in_a_phase_that_is_not_named() -> None:
    assert not list(interrupt(phase("memory", 1), ["units"], lambda: pytest.fail("it came")))
