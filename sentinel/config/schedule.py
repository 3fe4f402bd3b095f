"""Hours of the week, moments to end at and cycles, as people write them, in local time. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, time, timedelta

from sentinel.units import parse_duration

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_TIME = re.compile(r"([01][0-9]|2[0-4]):([0-5][0-9])", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Hours:
    """A stretch of the day on some days of the week; ``days`` count from Monday, 0.

    It begins with the minute ``start`` of such a day and ends before ``end``, which is on the next
    day where it is not later.
    """

    text: str
    days: frozenset[int]
    start: int
    end: int

    def hold(self, local: datetime) -> bool:
        """Return whether it is such an hour; ``local`` is what a clock on the wall shows.

        So a change of clocks needs no care: the hour that is left out never comes, and the one that
        comes twice counts twice.
        """
        minute, day = local.hour * 60 + local.minute, local.weekday()
        if self.start < self.end:
            return day in self.days and self.start <= minute < self.end
        yesterday = (day - 1) % len(_DAYS)
        return (day in self.days and minute >= self.start) or (
            yesterday in self.days and minute < self.end
        )


@dataclass(frozen=True, kw_only=True)
class Duty:
    """A cycle that goes on for ever: ``on`` seconds of work, then ``off`` seconds of rest."""

    on: float
    off: float

    def rests(self, elapsed: float) -> bool:
        """Return whether it is time to rest, so many seconds after the first cycle began."""
        return elapsed % (self.on + self.off) >= self.on

    def next_turn(self, elapsed: float) -> float:
        """Return how many seconds after the first cycle began the next turn is, work or rest."""
        cycle = self.on + self.off
        begun = elapsed - elapsed % cycle
        return begun + (cycle if self.rests(elapsed) else self.on)


#: The shortest turn of a cycle, in seconds: what is shorter is a pace, not a rest.
_SHORTEST_TURN = 1.0


def parse_duty(text: str) -> Duty:
    """Return the cycle that ``text`` names, such as ``30m/5m``: work, then rest.

    Raises:
        ValueError: It is not two durations of a second or more with a slash between them.
    """
    on, _, off = text.partition("/")
    try:
        duty = Duty(on=parse_duration(on), off=parse_duration(off))
    except ValueError:
        duty = Duty(on=0.0, off=0.0)
    if min(duty.on, duty.off) < _SHORTEST_TURN:
        message = (
            f"{text!r} is no cycle of work and rest; write two times of 1s or more, such as 30m/5m"
        )
        raise ValueError(message)
    return duty


def parse_hours(text: str) -> tuple[Hours, ...]:
    """Return the hours in a comma list such as ``Mon-Fri 08:00-18:00, Sat 22:00-06:00``.

    Raises:
        ValueError: One of them is none.
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
        message = f"{text!r} are no hours; write them as Mon-Fri 08:00-18:00 or 22:00-06:00"
        raise ValueError(message)
    return Hours(text=text, days=frozenset(n % 7 for n in numbers), start=begins, end=ends)


def _range(first: str, last: str) -> range:
    """Return the numbers of the days from ``first`` to ``last``, which may be in the next week."""
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
    """Return a moment in local time: of whatever day for ``18:30``, or ``2026-12-24 18:30``.

    Raises:
        ValueError: It is neither.
    """
    for parse in (time.fromisoformat, datetime.fromisoformat):
        try:
            found: datetime | time = parse(text.strip())
        except ValueError:
            continue
        if found.tzinfo is None:
            return found
    message = f"{text!r} is no moment; write it as 18:30 or 2026-12-24 18:30, in local time"
    raise ValueError(message)


def first_after(until: datetime | time, local: datetime) -> datetime:
    """Return the moment that is meant at ``local``: the next one where no day was given."""
    if isinstance(until, datetime):
        return until
    today = datetime.combine(local.date(), until)
    return today if today > local else today + timedelta(days=1)
