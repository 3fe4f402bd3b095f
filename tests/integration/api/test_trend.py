"""The window of a trend, in a history with readings of earlier API processes."""

from __future__ import annotations

import pytest

from sentinel.api import history_queries
from tests.harness.history_harness import UUID, HistoryHarness, make_view


def heat(past: HistoryHarness, degrees: int) -> None:
    past.write_views(make_view(past.now, temperature_c=degrees))


def last(past: HistoryHarness, seconds: int) -> list[tuple[int, int]]:
    """List the last readings as seconds before now and temperatures."""
    found = past.database.query(
        lambda where: history_queries.temperatures(where, UUID, past.wall - seconds), past.now
    )
    return [(at - int(past.wall), degrees) for at, degrees in found]


def test_a_trend_covers_the_last_minutes_across_a_restart(past: HistoryHarness) -> None:
    heat(past, 20)
    past.advance(400)
    heat(past, 30)
    past.restart()
    past.advance(100)
    heat(past, 40)
    assert last(past, 60) == [(0, 40)]
    assert last(past, 300) == [(-100, 30), (0, 40)], "each when it was"
    assert last(past, 3600) == [(-500, 20), (-100, 30), (0, 40)]


def test_readings_of_an_earlier_daemon_are_outside_the_window(past: HistoryHarness) -> None:
    for _ in range(10):
        heat(past, 85)
        past.advance(1)
    past.restart()
    past.advance(7 * 86_400)
    heat(past, 40)
    assert last(past, 3600) == [(0, 40)]


@pytest.mark.parametrize("jump", [10**6, -(10**7), -60])
@pytest.mark.parametrize("restarts", [True, False])
def test_a_trend_starts_again_when_the_clock_is_set(
    past: HistoryHarness, jump: int, *, restarts: bool
) -> None:
    past.advance(300)
    heat(past, 85)
    if restarts:
        past.restart()
    past.advance(10, jump=jump)
    for degrees in (40, 41):
        heat(past, degrees)
        past.advance(60)
    assert [degrees for _, degrees in last(past, 300)] == [40, 41]
