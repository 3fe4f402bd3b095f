"""Format the events of a log for people."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TextIO

from sentinel.cli.display.output import printable, styled, terminal_width, wants_colour, wrapped
from sentinel.protocol.events import DEBUG_EVENTS, EVENTS, PERIODIC_EVENTS, Kind
from sentinel.protocol.rules import with_time
from sentinel.units import format_duration, format_scaled, format_size

if TYPE_CHECKING:
    from sentinel.host.event_lines import Sink
    from sentinel.protocol.events import Event
    from sentinel.protocol.gpu import Gpu


_Fields = Mapping[str, Any]

_COLOURS = {
    Kind.USE: "cyan",
    Kind.YIELD: "yellow",
    Kind.HANDOVER: "green",
    Kind.FINDING: "red",
}
#: As the log has them; a text in another field has its quotes escaped.
_NOT_NOTABLE = tuple(f'"event": "{name}"' for name in DEBUG_EVENTS | PERIODIC_EVENTS)
_CHOICE = re.compile(r"\[([^\]]*)\]")
_FIELD = re.compile(r"\{(\w+)(?::(\w+))?(\?)?\}")
#: What the causes of the end of a stressor mean, of those that do not say it themselves.
_CAUSES = {"policy": "after its release", "unknown": "the GPU cannot be read"}


def text_lines(stream: TextIO, gpus: Mapping[str, Gpu], *, colour: bool) -> Sink:
    """Return a sink that writes one readable line per event; a terminal's are wrapped."""

    def write(event: Event) -> None:
        if is_hidden(event.name, event.fields):
            return
        gpu = gpus.get(event.gpu or "")
        place = f"GPU {gpu.index}" if gpu else "sentinel"
        clock = f"{datetime.now().astimezone():%H:%M:%S}"
        width = terminal_width() if stream.isatty() else None
        text = _line(clock, place, event.name, event.fields, colour=colour, width=width)
        print(text, file=stream, flush=True)

    return write


def log_line(line: str, *, colour: bool, width: int | None = None) -> str | None:
    """Format a line of the log, wrapped at a width; return None for an event that is not shown.

    A line that is not an event is returned unchanged. An event of another version, whose fields do
    not fit its sentence, is shown with its fields.
    """
    try:
        record = json.loads(line)
        name = record.pop("event")
        moment = datetime.fromisoformat(record.pop("time"))
    except (ValueError, TypeError, AttributeError, KeyError):
        return printable(line.rstrip("\n"))
    index = record.pop("index", None)
    fields = {key: value for key, value in record.items() if key not in {"at", "gpu"}}
    if is_hidden(name, fields):
        return None
    place = "sentinel" if "gpu" not in record else f"GPU {'?' if index is None else index}"
    return _line(format_clock(moment), place, name, fields, colour=colour, width=width)


def readable(lines: Iterable[str]) -> Iterator[str]:
    """Format the lines of a log for people, in the colours and the width of standard output."""
    colour = wants_colour(sys.stdout)
    width = terminal_width() if sys.stdout.isatty() else None
    for line in lines:
        text = log_line(line, colour=colour, width=width)
        if text is not None:
            yield text


def describe(name: str, fields: _Fields) -> tuple[str, str]:
    """Return the word and the sentence of an event; without a sentence, its name and fields."""
    event = EVENTS.get(name)
    if event is not None:
        try:
            return event.word, render(event.sentence, fields)
        except (KeyError, TypeError, ValueError, AttributeError):
            pass
    return name, " ".join(f"{key}={value}" for key, value in fields.items())


def format_clock(moment: datetime) -> str:
    """Format a time in local time, with its date if it is not today."""
    local = moment.astimezone()
    today = local.date() == datetime.now().astimezone().date()
    return f"{local:%H:%M:%S}" if today else f"{local:%m-%d %H:%M:%S}"


def is_notable(line: str) -> bool:
    """Check for a line that people are shown: no debug level, nothing that a table repeats."""
    if any(name in line for name in _NOT_NOTABLE):  # most lines; quickly
        return False
    return is_shown(line)


def is_shown(line: str) -> bool:
    """Check for a line of the log that people are shown."""
    try:
        record = json.loads(line)
        return not is_hidden(record["event"], record)
    except (ValueError, TypeError, KeyError):
        return True


def is_hidden(name: str, fields: _Fields) -> bool:
    """Check for an event that only programs need."""
    if name == "burnin.measured":
        return True
    return name == "gpu.identity" and bool(fields.get("complete"))  # of all processes


def _line(
    clock: str, place: str, name: str, fields: _Fields, *, colour: bool, width: int | None = None
) -> str:
    word, text = describe(name, fields)
    line = f"{clock}  {place:<8}  {printable(word):<11} {printable(text)}".rstrip()
    if width is not None:
        line = wrapped(line, width)
    if colour and name in EVENTS and EVENTS[name].kind in _COLOURS:
        line = line.replace(word, styled(word, _COLOURS[EVENTS[name].kind]), 1)
    return line


# --- sentences -------------------------------------------------------------------------------


def render(sentence: str, fields: _Fields) -> str:
    """Fill in the template of a sentence; see protocol/events.py."""

    def choose(match: re.Match[str]) -> str:
        for alternative in match[1].split("|"):
            found = _FIELD.findall(alternative)
            required = [name for name, _, mark in found if mark] or [name for name, _, _ in found]
            if all(fields.get(name) for name in required):
                return alternative
        return ""

    def insert(match: re.Match[str]) -> str:
        name, form, mark = match.groups()
        if mark:
            return ""
        if form in _OF_ALL_FIELDS:
            return _OF_ALL_FIELDS[form](fields)
        value = fields[name]
        if form is not None:
            return _FORMATS[form](value)
        return f"{value:g}" if isinstance(value, float) else str(value)

    return _FIELD.sub(insert, _CHOICE.sub(choose, sentence))


def processes(listed: Sequence[_Fields]) -> str:
    """Format processes by name, PID and user; at most three."""
    shown = []
    for process in listed[:3]:
        user = f", {process['user']}" if process.get("user") else ""
        shown.append(f"{process.get('name') or 'a process'} (pid {process['pid']}{user})")
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""  # noqa: PLR2004
    return ", ".join(shown) + more


def _gpus(gpus: Sequence[_Fields]) -> str:
    names = sorted({gpu["name"] for gpu in gpus})
    return f"GPU {', '.join(str(gpu['index']) for gpu in gpus)} ({', '.join(names)})"


def _caller(by: _Fields | None) -> str:
    if by is None:
        return "its time has expired"
    if by["via"] == "sentinel":
        return "its process or its request has ended"
    if by["via"] == "signal":
        return "by a signal"
    # Events of older daemons, in their logs, have no name.
    number = f"uid {by['uid']}" if by["uid"] is not None else "a client"
    user = by.get("user") or number
    process = "" if by["pid"] is None else f" (pid {by['pid']})"
    return f"by {user}{process} over {by['via']}"


def _bits(errors: Sequence[int]) -> str:
    """Format the errors per bit: the number of the only wrong bit, or the count of wrong bits."""
    bits = [number for number, count in enumerate(errors) if count]
    return f", bit {bits[0]}" if len(bits) == 1 else f", {len(bits)} different bits"


def _status(f: _Fields) -> str:
    """Format the state of a GPU, with the rates of a running stressor."""
    from sentinel.protocol.stressor import MAX_QUANTUM_S  # slow to import

    if f["stressor"] != "RUNNING":
        users = f": {processes(f['processes'])}" if f["processes"] else ""
        reason = with_time(f["reason"], f.get("left_s"))
        return f"{f['occupancy'].lower()}, {f['stressor'].lower()}: {reason}{users}"
    facts = []
    for name, unit in (("flops_per_s", "FLOP/s"), ("bytes_per_s", "B/s")):
        if f.get(name):
            facts.append(format_scaled(f[name], unit))
    if f.get("checks"):
        facts.append(f"{f['checks']} results checked, {f['errors']} wrong")
    if f.get("longest_quantum_s", 0.0) > MAX_QUANTUM_S:
        facts.append(f"a quantum of {format_duration(f['longest_quantum_s'])}, which is too long")
    if f["share"] != 1.0 or f["util_target"] is not None or f["power_target_w"] is not None:
        facts.append(f"works {f['share']:.0%} of the time")
        if f["utilization"] is not None:
            facts.append(f"utilization {f['utilization']:.0%}")
        if f["power_w"] is not None:
            facts.append(f"{f['power_w']:.0f} W")
    note = f"; {f['note']}" if f["note"] else ""
    work = ", ".join(facts) or "holds its memory"
    return f"{work}, for {format_duration(f['running_s'])}{note}"


def _pace(f: _Fields) -> str:
    """Format the targets of a stressor."""
    if f["rests"]:
        return "rests, and keeps its memory"
    if f["health"] == 0.0:
        return "rests because of the GPU's health"
    targets = []
    if f["util_target"] is not None:
        targets.append(f"utilization {f['util_target']:.0%}")
    if f["power_target_w"] is not None:
        targets.append(f"{f['power_target_w']:.0f} W")
    if f["health"] < 1.0:
        targets.append(f"at most {f['health']:.0%} of the time because of the GPU's health")
    return ", ".join(targets) or "full speed"


_FORMATS: Mapping[str, Callable[[Any], str]] = {
    "bits": _bits,
    "caller": _caller,
    "cause": lambda cause: _CAUSES.get(cause, cause),
    "duration": format_duration,
    "gpus": _gpus,
    "percent": "{:.0%}".format,
    "processes": processes,
    "size": format_size,
    "watts": "{:.0f} W".format,
}
_OF_ALL_FIELDS: Mapping[str | None, Callable[[_Fields], str]] = {"status": _status, "pace": _pace}
