"""The trend of a temperature, over the window that a client asks for."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.api.bodies import ProblemError
from sentinel.api.history_queries import (
    MIN_CHANGE_C,
    MIN_SAMPLES,
    STABLE_RANGE_C,
    fit_trend,
    iso,
    step_for,
)
from sentinel.api.routes.history import SINCE_MAX_AGE_S, parse_since
from sentinel.protocol.history_types import Direction

NOW = 1_790_000_000.0


def line(slope: float, count: int = 60) -> list[tuple[float, float]]:
    """Build one reading per second, in whole degrees, that rises by ``slope`` per second."""
    return [(at, float(round(50 + slope * at))) for at in range(count)]


@pytest.mark.parametrize(
    ("readings", "direction"),
    [
        (line(0.1), Direction.RISING),
        (line(-0.1), Direction.FALLING),
        (line(0.0), Direction.STABLE),
        (line(0.005), Direction.STABLE),  # 0.3 degrees per minute: below the resolution of NVML
        (line(5.0, MIN_SAMPLES - 1), Direction.UNKNOWN),
        ([(7.0, 50.0)] * 30, Direction.UNKNOWN),
        (
            [(at, 50.0 + at % 2) for at in range(60)],
            Direction.STABLE,
        ),  # an alternation by one degree
        ([], Direction.UNKNOWN),
        # 4 minutes up, then a drop below the beginning: the line rises, the temperature is lowest.
        ([(at, 50.0 + at / 10 if at < 240 else 48.0) for at in range(260)], Direction.VARYING),
        # 4 minutes down, then a jump above the beginning.
        ([(at, 80.0 - at / 10 if at < 240 else 82.0) for at in range(260)], Direction.VARYING),
        # Up and down again, symmetrically: the line is level.
        ([(at, 40.0 + min(at, 120 - at) / 2) for at in range(121)], Direction.VARYING),
        # A drop long ago, and stable since then.
        ([(at, 60.0 if at < 5 else 40.0) for at in range(60)], Direction.FALLING),
        ([(at, 50.0 + at % 5) for at in range(60)], Direction.STABLE),  # a range of 4 degrees
        ([(at, 50.0 + at % 6) for at in range(60)], Direction.VARYING),  # of 5 degrees
    ],
)
def test_a_trend_is_fitted_to_the_readings(
    readings: list[tuple[float, float]], direction: Direction
) -> None:
    assert fit_trend(readings).trend is direction


def test_a_trend_includes_the_figures_behind_it() -> None:
    trend = fit_trend([(10.0 + at, 40.0 + at / 2) for at in range(21)])
    assert (trend.samples, trend.current_c) == (21, 50.0)
    assert (trend.minimum_c, trend.maximum_c, trend.average_c) == (40.0, 50.0, 45.0)
    assert trend.slope_c_per_min == pytest.approx(30.0)  # half a degree per second


def test_too_few_readings_have_no_trend() -> None:
    trend = fit_trend([(0.0, 61.0)])
    assert (trend.current_c, trend.average_c, trend.slope_c_per_min) == (61.0, 61.0, None)
    empty = fit_trend([])
    assert (empty.samples, empty.current_c, empty.minimum_c, empty.average_c) == (
        0,
        None,
        None,
        None,
    )


@given(
    st.lists(st.tuples(st.integers(0, 3600), st.integers(20, 110)), max_size=80).map(sorted),
    st.integers(-(10**6), 10**6),
)
def test_a_trend_does_not_depend_on_the_time_and_reverses_with_its_readings(
    readings: list[tuple[int, int]], later: int
) -> None:
    trend = fit_trend(readings)
    moved = fit_trend([(at + later, value) for at, value in readings])
    mirrored = fit_trend([(at, -value) for at, value in readings])
    slope, moved_slope, mirrored_slope = (fit.slope_c_per_min for fit in (trend, moved, mirrored))
    if slope is None or moved_slope is None or mirrored_slope is None:
        assert trend.trend is mirrored.trend is moved.trend is Direction.UNKNOWN
        return
    assert moved_slope == pytest.approx(slope, abs=1e-6)
    assert mirrored_slope == pytest.approx(-slope, abs=1e-9)
    change = slope / 60 * (readings[-1][0] - readings[0][0])
    current, lowest, highest = trend.current_c, trend.minimum_c, trend.maximum_c
    assert current is not None
    assert lowest is not None
    assert highest is not None
    match trend.trend:
        case Direction.RISING:
            assert change >= MIN_CHANGE_C
            assert current > lowest
        case Direction.FALLING:
            assert change <= -MIN_CHANGE_C
            assert current < highest
        case direction:
            assert (direction is Direction.STABLE) == (highest - lowest < STABLE_RANGE_C)


@pytest.mark.parametrize(
    ("text", "age_s"),
    [
        ("90s", 90.0),
        ("2h", 7200.0),
        ("7d", 7 * 86400.0),
        ("45s", 45.0),
        (datetime.fromtimestamp(NOW - 60, UTC).isoformat(), 60.0),
        ("2026-09-21T14:13:20+02:00", NOW - 1_789_992_800.0),
        (datetime.fromtimestamp(NOW + 60, UTC).isoformat(), 0.0),  # clocks may differ
    ],
)
def test_since_is_a_duration_before_now_or_a_timestamp(text: str, age_s: float) -> None:
    assert NOW - parse_since(text, NOW) == pytest.approx(age_s)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a while",
        "45",
        "2026-11-20T19:40:00",
        "-5s",
        "9" * 400,
        "99999d",
        "0001-01-01T00:00:00+00:00",
        datetime.fromtimestamp(NOW + 61, UTC).isoformat(),
    ],
)
def test_an_invalid_time_is_refused_with_its_parameter(text: str) -> None:
    with pytest.raises(ProblemError, match=r"^since: "):
        parse_since(text, NOW)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_timestamp_of_a_file_can_be_formatted(time_s: float) -> None:
    assert datetime.fromisoformat(iso(time_s)).tzinfo is not None


@given(st.floats(0, SINCE_MAX_AGE_S), st.integers(1, 3600))
def test_the_step_grows_with_the_span_and_limits_the_rows(span: float, points: int) -> None:
    step = step_for(span, points)
    assert math.ceil(int(span) / step) <= points
    assert step >= 60 or span <= 3600
