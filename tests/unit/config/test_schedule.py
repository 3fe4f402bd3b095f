"""Hours, end times and duty cycles are parsed and evaluated in local wall-clock time."""

from __future__ import annotations

import time as time_module
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.config.schedule import (
    Duty,
    first_after,
    is_ever_open,
    is_over,
    parse_duty,
    parse_hours,
    parse_until,
    seconds_until,
)

#: A Monday.
MONDAY = datetime(2026, 3, 23)  # noqa: DTZ001 - local time is what this is about


def at(day: int, clock: str) -> datetime:
    """Build a time in the week of MONDAY; ``day`` counts from 0."""
    moment = time.fromisoformat(clock)
    return MONDAY + timedelta(days=day, hours=moment.hour, minutes=moment.minute)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        (
            "Mon-Fri 08:00-18:00",
            [at(0, "08:00"), at(4, "17:59")],
            [at(0, "07:59"), at(4, "18:00"), at(5, "12:00"), at(6, "12:00")],
        ),
        ("wed 00:00-24:00", [at(2, "00:00"), at(2, "23:59")], [at(1, "23:59"), at(3, "00:00")]),
        (
            "22:00-06:00",
            [at(0, "22:00"), at(1, "05:59"), at(6, "23:00")],
            [at(0, "06:00"), at(0, "21:59")],
        ),
        (
            "Sun 22:00-06:00",
            [at(6, "22:00"), at(0, "05:59") + timedelta(days=7)],
            [at(6, "05:00"), at(0, "22:00"), at(1, "05:00")],
        ),
        ("Sat-Mon 10:00-11:00", [at(5, "10:30"), at(0, "10:30")], [at(1, "10:30"), at(4, "10:30")]),
    ],
)
def test_hours_include_their_first_minute_and_exclude_their_last(
    text: str, inside: list[datetime], outside: list[datetime]
) -> None:
    (hours,) = parse_hours(text)
    assert all(map(hours.contains, inside))
    assert not any(map(hours.contains, outside))


@pytest.mark.parametrize(
    "text",
    [
        *("", "Mon", "08:00", "Mon 8:00-18:00", "Mon 08:00-08:00", "Mon 24:00-02:00"),
        *("Mo 08:00-18:00", "Mon-Fri 08:00-25:00", "Mon-Fri 08:60-18:00", "Mon 08:00-18:00,"),
        *("Mon 08:00 - 18:00", "-Fri 08:00-18:00", "Mon 24:01-23:00"),
    ],
)
def test_malformed_hours_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time span; write 22:00"):
        parse_hours(text)


@pytest.mark.parametrize(
    ("quiet", "only", "expected"),
    [
        ("22:00-07:00", "22:00-07:00", False),
        ("21:00-08:00", "22:00-07:00", False),
        ("00:00-24:00", None, False),
        ("00:00-12:00, 12:00-24:00", None, False),
        ("22:00-07:00", None, True),
        ("22:00-06:59", "22:00-07:00", True),
        ("Mon-Sat 00:00-24:00", "Sat 23:00-01:00", True),
        ("Mon-Sun 00:00-24:00", "Sat 23:00-01:00", False),
    ],
)
def test_quiet_hours_may_leave_no_time_of_the_week(
    quiet: str, only: str | None, *, expected: bool
) -> None:
    hours = () if only is None else parse_hours(only)
    assert is_ever_open(parse_hours(quiet), hours) is expected


@given(st.integers(0, 2 * 7 * 24 * 60))
def test_hours_and_the_rest_of_the_day_make_the_whole_day(minutes: int) -> None:
    moment = MONDAY + timedelta(minutes=minutes)
    (inside,), (outside,) = parse_hours("07:30-21:15"), parse_hours("21:15-07:30")
    assert inside.contains(moment) != outside.contains(moment)


def test_a_daylight_saving_change_moves_no_hour() -> None:
    """In Berlin the hour after 02:00 is skipped once a year and repeated once a year."""
    (night,) = parse_hours("Sun 01:30-03:30")
    try:
        berlin = ZoneInfo("Europe/Berlin")
    except ZoneInfoNotFoundError:
        pytest.skip("this host has no time zones")
    for day, real_hours in (
        (datetime(2026, 3, 29, tzinfo=UTC), 1),
        (datetime(2026, 10, 25, tzinfo=UTC), 3),
    ):
        begin = day - timedelta(hours=6)
        minutes = (begin + timedelta(minutes=n) for n in range(24 * 60))
        held = sum(
            night.contains(moment.astimezone(berlin).replace(tzinfo=None)) for moment in minutes
        )
        assert held == real_hours * 60


@pytest.mark.parametrize(
    ("local", "end", "hours"),
    [
        ("2026-03-28T23:00", "2026-03-29T06:00", 6),
        ("2026-10-24T23:00", "2026-10-25T06:00", 8),
        ("2026-10-25T02:10", "2026-10-25T02:40", 0.5),
        ("2026-10-25T02:10/again", "2026-10-25T02:40", 0.5),
        ("2026-10-25T02:10", "2026-10-25T03:10", 2),
        ("2026-10-25T02:10/again", "2026-10-25T03:10", 1),
        ("2026-03-29T01:30", "2026-03-29T02:45", 0.5),  # skipped: its clock shows 03:00
        ("2026-03-28T23:00", "2026-03-29T02:00", 3),
        ("2026-06-03T23:00", "2026-06-04T06:00", 7),
    ],
)
def test_the_time_to_an_end_includes_a_daylight_saving_change(
    monkeypatch: pytest.MonkeyPatch, local: str, end: str, hours: float
) -> None:
    with berlin(monkeypatch):
        assert seconds_until(datetime.fromisoformat(end), parsed(local)) == hours * 3600


@contextmanager
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this process have the clock of Berlin."""
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        time_module.tzset()
        yield
    time_module.tzset()


def parsed(text: str) -> datetime:
    """Parse a local time; ``/again`` stands for the second of two."""
    text, _, again = text.partition("/")
    return datetime.fromisoformat(text).replace(fold=int(bool(again)))


@pytest.mark.parametrize(
    ("begun", "until", "minutes"),
    [
        ("2026-10-25T01:30", "02:30", 60),  # the first of two
        ("2026-10-25T02:45", "02:30", 45),  # the second
        ("2026-10-25T02:10/again", "02:30", 20),
        ("2026-10-25T02:45/again", "02:30", 23 * 60 + 45),
        ("2026-10-25T00:00", "03:00", 4 * 60),
        ("2026-10-24T23:00", "2026-10-25 02:30", 3 * 60 + 30),
        ("2026-10-25T02:45", "2026-10-25 02:30", 0),  # it was
        ("2026-10-25T02:45/again", "2026-10-25 02:30", 0),
        ("2026-03-29T01:30", "02:30", 30),  # skipped
        ("2026-03-29T00:30", "03:00", 90),
        ("2026-03-29T03:10", "02:30", 23 * 60 + 20),
        ("2026-03-28T23:00", "06:00", 6 * 60),
    ],
)
def test_an_end_time_comes_once_on_the_days_when_the_clocks_change(
    monkeypatch: pytest.MonkeyPatch, begun: str, until: str, minutes: int
) -> None:
    with berlin(monkeypatch):
        start = parsed(begun)
        end = first_after(parse_until(until), start)
        clock = (
            datetime.fromtimestamp(start.timestamp() + 60 * n)  # noqa: DTZ006
            for n in range(2 * 24 * 60)
        )
        assert [is_over(end, local) for local in clock].index(True) == minutes


def test_an_end_time_without_a_date_is_the_next_one() -> None:
    assert first_after(parse_until("18:30"), at(0, "12:00")) == at(0, "18:30")
    assert first_after(parse_until("18:30"), at(0, "18:30")) == at(1, "18:30")
    assert first_after(parse_until("2026-03-24 08:00"), at(0, "12:00")) == at(1, "08:00")
    assert first_after(parse_until("2026-03-24T08:00"), at(3, "12:00")) == at(1, "08:00"), "over"


@pytest.mark.parametrize(
    "text", ["", "tomorrow", "25:00", "2026-13-01 10:00", "18:30+02:00", "2026"]
)
def test_a_malformed_end_time_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        parse_until(text)


def test_a_duty_cycle_is_work_then_rest() -> None:
    assert parse_duty("30m/5m") == parse_duty(" 1800s / 300s ") == Duty(on=1800.0, off=300.0)


@pytest.mark.parametrize(
    "text", ["", "30m", "30m/", "/5m", "30m/0s", "30m/5m/5m", "0.5s/5s", "30/5", "on"]
)
def test_a_malformed_duty_cycle_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duty cycle"):
        parse_duty(text)


@given(st.integers(1, 10_000), st.integers(1, 10_000), st.floats(0, 1e6))
def test_the_phase_changes_at_the_end_of_the_phase(on: int, off: int, elapsed: float) -> None:
    duty = Duty(on=float(on), off=float(off))
    turn = duty.next_turn(elapsed)
    assert elapsed < turn <= elapsed + max(on, off) + 1e-6
    if turn - elapsed > 1e-6:  # there are numbers between the two
        assert duty.rests((elapsed + turn) / 2) == duty.rests(elapsed)
    assert duty.rests(turn + 1e-3) != duty.rests(elapsed)
