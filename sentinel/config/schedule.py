"""Parse and evaluate hours of the week, end times and duty cycles, in local time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta

from sentinel.units import parse_duration

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_WEEK = timedelta(days=7)
_TIME = re.compile(r"([01][0-9]|2[0-4]):([0-5][0-9])", re.ASCII)

#: A shorter phase would be a matter of pace.
_MIN_PHASE_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Hours:
    """A time span on some days of the week."""

    #: The hours as they were written.
    text: str
    #: The days on which it starts; Monday is 0.
    days: frozenset[int]
    #: The first minute of the day.
    start: int
    #: The minute at which it ends; on the next day if it is not after ``start``.
    end: int

    def contains(self, local: datetime) -> bool:
        """Check a local wall-clock time.

        At a change of clocks, the hour that is skipped never matches, and the repeated hour matches
        twice.
        """
        minute, day = local.hour * 60 + local.minute, local.weekday()
        if self.start < self.end:
            return day in self.days and self.start <= minute < self.end
        yesterday = (day - 1) % len(_DAYS)
        return (day in self.days and minute >= self.start) or (
            yesterday in self.days and minute < self.end
        )

    def ends_at(self, local: datetime) -> datetime:
        """Compute when these hours end, for a time in them."""
        minute, midnight = local.hour * 60 + local.minute, datetime.combine(local.date(), time())
        overnight = self.start >= self.end
        begun_today = minute >= self.start and local.weekday() in self.days
        return midnight + timedelta(days=overnight and begun_today, minutes=self.end)

    def begins_after(self, local: datetime) -> datetime:
        """Compute when these hours begin next, after a time."""
        midnight = datetime.combine(local.date(), time())
        begins = (
            midnight + timedelta(days=day, minutes=self.start)
            for day in range(len(_DAYS) + 1)
            if (local.weekday() + day) % len(_DAYS) in self.days
        )
        return next(begin for begin in begins if begin > local)


@dataclass(frozen=True, kw_only=True)
class Closed:
    """Why the hours of the settings forbid stressors on all GPUs now."""

    #: Whether by quiet hours, or else outside the hours in which GPUs are occupied.
    is_quiet: bool
    reason: str
    #: When that ends; None if it does not within a week, or the time is not known.
    until: datetime | None


def find_closed(
    quiet: Sequence[Hours], only: Sequence[Hours], local: datetime | None
) -> Closed | None:
    """Return why no GPU may be occupied at a local time, or None if GPUs may be.

    Args:
        quiet: The hours in which every GPU is released.
        only: The hours in which GPUs are occupied, or none for all.
        local: The local time, or None if it is not known; then all hours forbid.
    """
    if quiet and (local is None or any(hours.contains(local) for hours in quiet)):
        end = None if local is None else end_of_hours(quiet, local)
        until = "" if end is None or local is None else f" until {_clock(end, local)}"
        return Closed(is_quiet=True, reason=f"quiet hours{until}", until=end)
    if only and (local is None or not any(hours.contains(local) for hours in only)):
        begin = None if local is None else min(hours.begins_after(local) for hours in only)
        at = "" if begin is None or local is None else f", next at {_clock(begin, local)}"
        reason = f"occupied only {', '.join(hours.text for hours in only)}{at}"
        return Closed(is_quiet=False, reason=reason, until=begin)
    return None


def is_ever_open(quiet: Sequence[Hours], only: Sequence[Hours]) -> bool:
    """Check whether GPUs may be occupied at any time of the week."""
    monday = datetime(2024, 1, 1)  # noqa: DTZ001 - local time; GPUs can be occupied from these on
    begins = {0, *(hours.start for hours in only), *(hours.end for hours in quiet)}
    return any(
        find_closed(quiet, only, monday + timedelta(days=day, minutes=minute)) is None
        for day in range(len(_DAYS))
        for minute in begins
    )


def _clock(at: datetime, local: datetime) -> str:
    """Format a local time, with its day if that is not within a day."""
    return f"{at:%H:%M}" if at - local <= timedelta(days=1) else f"{_DAYS[at.weekday()]} {at:%H:%M}"


def end_of_hours(hours: Iterable[Hours], local: datetime) -> datetime | None:
    """Compute when the hours end that contain a time, with those that follow without a gap.

    Returns:
        The end, or None if no hours contain the time or they do not end within a week.
    """
    end = local
    while (current := [hour for hour in hours if hour.contains(end)]) and end - local <= _WEEK:
        end = max(window.ends_at(end) for window in current)
    return end if local < end <= local + _WEEK else None


def seconds_until(end: datetime, local: datetime) -> float:
    """Compute the time from one local time of this host to another; its clocks may change between.

    An end in an hour that is repeated is that of the repetition if ``local`` is in it, and one that
    is skipped comes with the change.
    """
    at = end.replace(fold=local.fold).timestamp()
    while datetime.fromtimestamp(at - 60) >= end > local:  # noqa: DTZ006 - it is local
        at -= 60
    return at - local.timestamp()


@dataclass(frozen=True, kw_only=True)
class Duty:
    """An endless cycle of work and rest."""

    #: Seconds of work, at the start of each cycle.
    on: float
    #: Seconds of rest.
    off: float

    def rests(self, elapsed: float) -> bool:
        """Check for rest, ``elapsed`` seconds after the first cycle began."""
        return elapsed % (self.on + self.off) >= self.on

    def next_turn(self, elapsed: float) -> float:
        """Return the end of the current phase, in seconds after the first cycle began."""
        cycle = self.on + self.off
        begun = elapsed - elapsed % cycle
        return begun + (cycle if self.rests(elapsed) else self.on)


def parse_duty(text: str) -> Duty:
    """Parse a cycle of work and rest, such as ``30m/5m``.

    Raises:
        ValueError: The text is not two durations of at least a second, separated by a slash.
    """
    on, _, off = text.partition("/")
    try:
        duty = Duty(on=parse_duration(on), off=parse_duration(off))
    except ValueError:
        duty = Duty(on=0.0, off=0.0)
    if min(duty.on, duty.off) < _MIN_PHASE_S:
        form = "two durations with their units, of 1s or more, such as 30m/5m"
        message = f"{text!r} is not a duty cycle; write {form}"
        raise ValueError(message)
    return duty


def parse_hours(text: str) -> tuple[Hours, ...]:
    """Parse a comma list of hours, such as ``Mon-Fri 08:00-18:00, Sat 22:00-06:00``.

    Raises:
        ValueError: An entry is malformed.
    """
    return tuple(_parse_one(part.strip()) for part in text.split(","))


def _parse_one(text: str) -> Hours:
    days, _, span = text.rpartition(" ")
    first, _, last = days.strip().partition("-")
    start, _, end = span.partition("-")
    try:
        begins, ends = _minute(start), _minute(end)
        numbers = range(7) if not days.strip() else _range(first, last or first)
    except (KeyError, ValueError):
        begins = ends = 0
        numbers = range(0)
    if begins in {ends, 24 * 60}:
        message = f"{text!r} is not a time span; write 22:00-06:00 or 'Mon-Fri 08:00-18:00'"
        raise ValueError(message)
    return Hours(text=text, days=frozenset(n % 7 for n in numbers), start=begins, end=ends)


def _range(first: str, last: str) -> range:
    """Return the days from ``first`` to ``last``; those of the next week are 7 and more."""
    days = {day.lower(): number for number, day in enumerate(_DAYS)}
    begins, ends = days[first.strip().lower()], days[last.strip().lower()]
    return range(begins, ends + 1 if begins <= ends else ends + 8)


def _minute(text: str) -> int:
    match = _TIME.fullmatch(text.strip())
    minute = int(match[1]) * 60 + int(match[2]) if match else 24 * 60 + 1
    if minute > 24 * 60:
        raise ValueError(text)
    return minute


def parse_until(text: str) -> datetime | time:
    """Parse a local time of day, such as ``18:30``, or a date and time: ``2026-12-24 18:30``.

    Raises:
        ValueError: The text is neither, or has an offset.
    """
    for parse in (time.fromisoformat, datetime.fromisoformat):
        if ":" not in text:  # 2026 would be 20:26
            break
        try:
            found: datetime | time = parse(text.strip())
        except ValueError:
            continue
        if found.tzinfo is None:
            return found
    message = f"{text!r} is not a time; write one such as 18:30 or 2026-12-24 18:30, in local time"
    raise ValueError(message)


def first_after(until: datetime | time, local: datetime) -> datetime:
    """Return the date and time of ``until``; without a date, the next one after ``local``.

    That has a fold if it comes again, as the hour of ``local`` is repeated.
    """
    if isinstance(until, datetime):
        return until
    today = datetime.combine(local.date(), until)
    again = today.replace(fold=1)
    if today > local or again.timestamp() <= local.timestamp():
        return today if today > local else today + timedelta(days=1)
    return again


def is_over(end: datetime, local: datetime) -> bool:
    """Check whether an end of :func:`first_after` has come; a skipped one comes with the change."""
    return local >= end and (not end.fold or local.timestamp() >= end.timestamp())
