"""The trend of a temperature, over the window that a client asks for."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.api.history.queries import step_for
from sentinel.api.history.timestamps import MAX_AGE_S, iso, parse_since
from sentinel.api.history.trend import MIN_CHANGE_C, MIN_SAMPLES, fit_trend
from sentinel.api.http.errors import ProblemError
from sentinel.protocol.history_types import Direction

NOW = 1_790_000_000.0


def line(slope: float, count: int = 60) -> list[tuple[float, float]]:
    """Return whole degrees, one a second, that rise by ``slope`` a second."""
    return [(at, float(round(50 + slope * at))) for at in range(count)]


@pytest.mark.parametrize(
    ("readings", "direction"),
    [
        (line(0.1), Direction.RISING),
        (line(-0.1), Direction.FALLING),
        (line(0.0), Direction.STABLE),
        (line(0.005), Direction.STABLE),  # 0.3 degrees in a minute: below what NVML tells
        (line(5.0, MIN_SAMPLES - 1), Direction.UNKNOWN),
        ([(7.0, 50.0)] * 30, Direction.UNKNOWN),
        ([(at, 50.0 + at % 2) for at in range(60)], Direction.STABLE),  # a flicker of one degree
        ([], Direction.UNKNOWN),
    ],
)
def test_a_trend_is_fitted_to_the_readings(
    readings: list[tuple[float, float]], direction: Direction
) -> None:
    assert fit_trend(readings).direction is direction


def test_a_trend_includes_the_figures_behind_it() -> None:
    trend = fit_trend([(10.0 + at, 40.0 + at / 2) for at in range(21)])
    assert (trend.samples, trend.current_c) == (21, 50.0)
    assert (trend.minimum_c, trend.maximum_c, trend.average_c) == (40.0, 50.0, 45.0)
    assert trend.slope_c_per_min == pytest.approx(30.0)  # half a degree a second


def test_too_few_readings_have_no_trend() -> None:
    one = fit_trend([(0.0, 61.0)])
    assert (one.current_c, one.average_c, one.slope_c_per_min) == (61.0, 61.0, None)
    none = fit_trend([])
    assert (none.samples, none.current_c, none.minimum_c, none.average_c) == (0, None, None, None)


@given(
    st.lists(st.tuples(st.integers(0, 3600), st.integers(20, 110)), max_size=80).map(sorted),
    st.integers(-(10**6), 10**6),
)
def test_a_trend_does_not_depend_on_the_time_and_reverses_with_its_readings(
    readings: list[tuple[int, int]], later: int
) -> None:
    trend = fit_trend(readings)
    moved = fit_trend([(at + later, value) for at, value in readings])
    turned = fit_trend([(at, -value) for at, value in readings])
    slope, moved_slope, turned_slope = (one.slope_c_per_min for one in (trend, moved, turned))
    if slope is None or moved_slope is None or turned_slope is None:
        assert trend.direction is turned.direction is moved.direction is Direction.UNKNOWN
        return
    assert moved_slope == pytest.approx(slope, abs=1e-6)
    assert turned_slope == pytest.approx(-slope, abs=1e-9)
    change = slope / 60 * (readings[-1][0] - readings[0][0])
    if abs(abs(change) - MIN_CHANGE_C) > 1e-6:
        assert (trend.direction is Direction.RISING) == (change >= MIN_CHANGE_C)
        assert (trend.direction is Direction.FALLING) == (change <= -MIN_CHANGE_C)


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("90s", 90.0),
        ("2h", 7200.0),
        ("7d", 7 * 86400.0),
        ("45", 45.0),
        (datetime.fromtimestamp(NOW - 60, UTC).isoformat(), 60.0),
        ("2026-09-21T14:13:20+02:00", NOW - 1_789_992_800.0),
        (datetime.fromtimestamp(NOW + 60, UTC).isoformat(), 0.0),  # the clocks may differ a little
    ],
)
def test_since_is_a_duration_before_now_or_a_timestamp(text: str, ago: float) -> None:
    assert NOW - parse_since(text, NOW) == pytest.approx(ago)


@pytest.mark.parametrize(
    "text",
    ["", "a while", "2026-11-20T19:40:00", "-5s", "9" * 400, "99999d", "0001-01-01T00:00:00+00:00"],
)
def test_an_invalid_time_is_refused_with_its_parameter(text: str) -> None:
    with pytest.raises(ProblemError, match=r"^since: "):
        parse_since(text, NOW)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_timestamp_of_a_file_can_be_formatted(moment: float) -> None:
    assert datetime.fromisoformat(iso(moment)).tzinfo is not None


@given(st.floats(0, MAX_AGE_S), st.integers(1, 3600))
def test_the_step_grows_with_the_span_and_limits_the_rows(span: float, points: int) -> None:
    step = step_for(span, points)
    assert math.ceil(int(span) / step) <= points
    assert step >= 60 or span <= 3600
