"""What a person reads: one line per change, the list of GPUs, and what would be done and why."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any, TextIO

import click

from sentinel.core.actions import Event
from sentinel.protocol.gpu import Gpu
from sentinel.protocol.stressor import MAX_QUANTUM_S
from sentinel.units import format_duration, format_size

if TYPE_CHECKING:  # heavy, and not needed to read a log
    from structlog.typing import EventDict, WrappedLogger

    from sentinel.diagnostics.survey import Survey
    from sentinel.supervisor.event_log import Sink


_COLOURS = {
    "occupied": "green",
    "yielding": "yellow",
    "handed over": "green",
    "busy": "cyan",
    "unknown": "red",
    "failed": "red",
    "fatal": "red",
    "mismatch": "red",
    "finding": "red",
    "leak": "red",
    "unkillable": "red",
}


def text_lines(stream: TextIO, gpus: Mapping[str, Gpu], *, colour: bool) -> Sink:
    """Return a sink that writes one readable line per event: time, GPU, what, and the figures."""
    import structlog

    def render(_: WrappedLogger, __: str, event: EventDict) -> str:
        word, text = describe(event["event"], event["fields"])
        gpu = gpus.get(event["gpu"])
        place = f"GPU {gpu.index}" if gpu else "sentinel"
        clock = f"{datetime.now().astimezone():%H:%M:%S}"
        return _line(clock, place, word, text, colour=colour)

    log = structlog.wrap_logger(
        structlog.WriteLogger(stream), processors=[render], wrapper_class=structlog.BoundLogger
    )

    def write(event: Event) -> None:
        if event.name == "gpu.identity" and event.fields["complete"]:
            return  # as on every plain host: nothing to tell a person
        log.info(event.name, gpu=event.gpu, fields=dict(event.fields))

    return write


def log_line(line: str, *, colour: bool) -> str | None:
    """Return what a person reads of a line of the log; ``None`` where there is nothing to tell.

    A line that is none of ours is shown as it is, and so is an event of another version.
    """
    try:
        record = json.loads(line)
        name = record.pop("event")
        moment = datetime.fromisoformat(record.pop("time")).astimezone()
    except (ValueError, TypeError, AttributeError, KeyError):
        return _printable(line.rstrip("\n"))
    index = record.pop("index", None)
    fields = {key: value for key, value in record.items() if key not in {"at", "gpu"}}
    if name == "gpu.identity" and fields.get("complete"):
        return None  # as on every plain host: nothing to tell a person
    try:
        word, text = describe(name, fields)
    except (KeyError, TypeError, ValueError, AttributeError):
        word, text = name, " ".join(f"{key}={value}" for key, value in fields.items())
    place = "sentinel" if "gpu" not in record else f"GPU {'?' if index is None else index}"
    today = moment.date() == datetime.now().astimezone().date()
    clock = f"{moment:%H:%M:%S}" if today else f"{moment:%m-%d %H:%M:%S}"
    return _line(clock, place, word, text, colour=colour)


def _line(clock: str, place: str, word: str, text: str, *, colour: bool) -> str:
    padded = f"{_printable(word):<11} "
    if colour and word in _COLOURS:
        padded = click.style(padded, fg=_COLOURS[word])
    return f"{clock}  {place:<8}  {padded}{_printable(text)}".rstrip()


def _printable(text: str) -> str:
    """Return text without what would move a terminal's cursor: processes choose their names."""
    return "".join(one if one.isprintable() else "?" for one in text)


# --- words for each event --------------------------------------------------------------------


def describe(name: str, fields: Mapping[str, Any]) -> tuple[str, str]:
    """Return the word and the sentence for an event; an event without words shows its fields."""
    known = _WORDS.get(name)
    if known is None:
        return name, " ".join(f"{key}={value}" for key, value in fields.items())
    word, say = known
    return word, say(fields)


def _started(f: Mapping[str, Any]) -> str:
    names = sorted({gpu["name"] for gpu in f["gpus"]})
    listed = ", ".join(f"{gpu['index']}" for gpu in f["gpus"])
    kind = "nothing here is a real GPU" if f["simulated"] else f"driver {f['driver']}"
    return f"{f['version']}: GPU {listed} ({', '.join(names)}), {f['workload']}; {kind}"


def _people(by: Sequence[Mapping[str, Any]]) -> str:
    """Return who is on the GPU: name, PID and user, as far as known."""
    shown = []
    for process in by[:3]:
        user = f", {process['user']}" if process.get("user") else ""
        shown.append(f"{process.get('name') or 'a process'} (pid {process['pid']}{user})")
    more = f" and {len(by) - 3} more" if len(by) > 3 else ""  # noqa: PLR2004
    return ", ".join(shown) + more


def _busy(f: Mapping[str, Any]) -> str:
    return f"{f['reason']}: {_people(f['processes'])}" if f["processes"] else str(f["reason"])


def _idle(f: Mapping[str, Any]) -> str:
    return f"left alone for {format_duration(f['left_alone_s'])}" if f["left_alone_s"] else ""


def _ready(f: Mapping[str, Any]) -> str:
    refused = f" of the {format_size(f['asked'])} asked for" if f["refused"] else ""
    held = f"{format_size(f['held'])}{refused} in {f['chunks']} chunks"
    return f"{held}, ready after {format_duration(f['start_s'])}"


def _yielding(f: Mapping[str, Any]) -> str:
    if f["processes"]:
        return f"to {_people(f['processes'])}"
    if f["evidence"] == "computing":
        return "to somebody who computes on it and is not listed"
    return f"to somebody whose memory grew by {format_size(f['grown'])}"


def _handed_over(f: Mapping[str, Any]) -> str:
    back = f["memory_back_s"]
    memory = "memory taken over" if back is None else f"memory back after {format_duration(back)}"
    kill = f["kill_s"]
    how = "asked at" if kill is None else f"killed {format_duration(kill)} after"
    return f"{how} the first sign of it, gone after {format_duration(f['exit_s'])}, {memory}"


def _finding(f: Mapping[str, Any]) -> str:
    what = f["place"] if f["place"] != "memory" else "piece of memory"
    bits = [number for number, times in enumerate(f["bits"]) if times]
    flipped = f", bit {bits[0]}" if len(bits) == 1 else f", {len(bits)} different bits"
    again = f", {f['repeated']} of {f['repeats']} tries wrong again" if f["repeats"] else ""
    kind = f["kind"] or "once"
    numbers = f" in {f['dtype']}" if f["dtype"] else ""
    return (
        f"a WRONG {what}{numbers} ({kind}): {f['count']} elements from {f['first']} on{flipped}"
        f"{again}; this GPU cannot be trusted"
    )


def _identity(f: Mapping[str, Any]) -> str:
    hidden = f" others may not be listed: {f['hidden']};" if f["hidden"] else ""
    rest = "" if f["complete"] else f";{hidden} memory tells of newcomers"
    return f"{f['reason']}{rest}"


def _ghost(f: Mapping[str, Any]) -> str:
    if f["utilization"] is not None:
        return f"used {f['utilization']:.0%} of the time by no process since our stressor has gone"
    return f"{format_size(f['bytes'])} stay in use by no process since our stressor has gone"


def _verdict(f: Mapping[str, Any]) -> str:
    would = "may be occupied" if f["allowed"] else "left as it is"
    return f"{would}: {f['reason']} (rule {f['rule']})"


def _status(f: Mapping[str, Any]) -> str:
    if f["stressor"] != "RUNNING":
        who = f": {_people(f['processes'])}" if f["processes"] else ""
        return f"{f['occupancy'].lower()}, {f['stressor'].lower()}: {f['reason']}{who}"
    rates = []
    if f.get("flops_per_s"):
        rates.append(f"{f['flops_per_s'] / 1e12:.3g} TFLOP/s")
    if f.get("bytes_per_s"):
        rates.append(f"{f['bytes_per_s'] / 1e12:.3g} TB/s")
    checks = f.get("checks")
    if checks:
        rates.append(f"{checks} results checked, {f['errors']} wrong")
    if f.get("longest_quantum_s", 0.0) > MAX_QUANTUM_S:
        rates.append(f"a quantum of {format_duration(f['longest_quantum_s'])}, which is too long")
    work = ", ".join([*rates, *_measured(f)]) or "holds its memory"
    note = f"; {f['note']}" if f["note"] else ""
    return f"{work}, for {format_duration(f['running_s'])}{note}"


def _pace(f: Mapping[str, Any]) -> str:
    if f["rests"]:
        return "rests now, and keeps its memory"
    if f["health"] == 0.0:
        return "rests for the sake of the GPU's health"
    wanted = []
    if f["util_target"] is not None:
        wanted.append(f"busy for {f['util_target']:.0%} of the time")
    if f["power_target_w"] is not None:
        wanted.append(f"at {f['power_target_w']:.0f} W")
    if f["health"] < 1.0:
        wanted.append(f"for {f['health']:.0%} of the time at most, for the sake of its health")
    return ", ".join(wanted) or "as hard as it can"


def _measured(f: Mapping[str, Any]) -> list[str]:
    """Return how a GPU does whose stressor has a pace, as far as it tells."""
    if f["share"] == 1.0 and f["util_target"] is None and f["power_target_w"] is None:
        return []
    said = [f"works {f['share']:.0%} of the time"]
    if f["utilization"] is not None:
        said.append(f"used {f['utilization']:.0%}")
    if f["power_w"] is not None:
        said.append(f"{f['power_w']:.0f} W")
    return said


def _failed(f: Mapping[str, Any]) -> str:
    return f"{f['reason']}; again in {format_duration(f['pause_s'])}"


def _stopped(f: Mapping[str, Any]) -> str:
    killed = f", killed after {format_duration(f['stop_s'])}" if f["killed"] else ""
    return f"{f['cause']}{killed}"


def _unavailable(f: Mapping[str, Any]) -> str:
    return f"the driver cannot be asked: {f['reason']}"


def _probe_exited(f: Mapping[str, Any]) -> str:
    crashed = ""
    if "call" in f:
        crashed = f", crashed in {f['call']}, left out for {format_duration(f['left_out_s'])}"
    return f"ended with code {f['exit_code']} and is replaced{crashed}"


def _probe_hung(f: Mapping[str, Any]) -> str:
    if "call" not in f:
        return f"the probe said nothing for {format_duration(f['silent_s'])} and is replaced"
    left_out = f", left out for {format_duration(f['pause_s'])}" if "pause_s" in f else ""
    return f"the driver hangs in {f['call']}; the probe is replaced{left_out}"


def _by(f: Mapping[str, Any]) -> str:
    """Return who asked for it, where anybody did."""
    by = f["by"]
    if by is None:
        return "its time is over"
    who = f"uid {by['uid']}" if by["uid"] is not None else "a client"
    process = "" if by["pid"] is None else f" (pid {by['pid']})"
    return f"asked by {who}{process} over {by['via']}"


def _for(f: Mapping[str, Any]) -> str:
    return "" if f["for_s"] is None else f"for {format_duration(f['for_s'])}, "


def _condition(fields: Mapping[str, Any]) -> str:
    """Return how a GPU does, and by what."""
    degrees = fields["temperature_c"]
    heat = "" if degrees is None else f" at {degrees} C"
    share = f", {fields['memory_foreign_share']:.0%} of its memory others'"
    return f"{fields['health']}{heat}{share}; it was {fields['before']}"


def _reserved(f: Mapping[str, Any]) -> str:
    reason = f"{f['reason']}, " if f["reason"] else ""
    bound = "as long as who asked lives, " if f["bound"] else ""
    return f"{f['id']}: {reason}{_for(f)}{bound}{_by(f)}"


_WORDS: dict[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = {
    "sentinel.started": ("started", _started),
    "sentinel.stopping": (
        "stopping",
        lambda f: f"{f['reason']}{', at once' if f['at_once'] else ''}",
    ),
    "sentinel.stopped": ("stopped", lambda f: f"exit code {f['exit_code']}"),
    "sentinel.stalled": ("stalled", lambda f: f"did not run for {format_duration(f['s'])}"),
    "config.unused": ("config", lambda f: f"{f['source']} names no GPU of this host"),
    "probe.ready": ("probe", lambda f: f"replaced; driver {f['driver']}, {f['gpus']} GPUs"),
    "probe.exited": ("probe", _probe_exited),
    "probe.hung": ("probe", _probe_hung),
    "driver.unavailable": ("no driver", _unavailable),
    "gpu.idle": ("idle", _idle),
    "gpu.busy": ("busy", _busy),
    "gpu.identity": ("identity", _identity),
    "gpu.memory_leaked": ("leak", _ghost),
    "gpu.cleanup_started": (
        "clearing",
        lambda f: f"opens and closes a context, try {f['attempt']}",
    ),
    "gpu.unknown": ("unknown", lambda f: str(f["reason"])),
    "gpu.yielding": ("yielding", _yielding),
    "gpu.handed_over": ("handed over", _handed_over),
    "gpu.status": ("status", _status),
    "stressor.starting": ("starting", lambda f: str(f["workload"])),
    "stressor.ready": ("occupied", _ready),
    "stressor.pace": ("pace", _pace),
    "stressor.stopped": ("stopped", _stopped),
    "stressor.failed": ("failed", _failed),
    "stressor.fatal": ("fatal", lambda f: f"{f['reason']}; not tried again until restarted"),
    "sentinel.occupying": ("occupying", _by),
    "sentinel.drained": ("drained", _by),
    "sentinel.configured": ("configured", lambda f: f"{f['workload']}, {_by(f)}"),
    "gpu.paused": ("paused", lambda f: f"{_for(f)}{_by(f)}"),
    "gpu.resumed": ("resumed", _by),
    "gpu.reserved": ("reserved", _reserved),
    "gpu.health_changed": ("health", _condition),
    "gpu.overheat": ("overheat", lambda f: f"{f['temperature_c']} C, above {f['limit_c']:g} C"),
    "memory.allocated": (
        "allocated",
        lambda f: f"{format_size(f['size'])} as {f['id']}, {_by(f)}",
    ),
    "memory.deallocated": ("given back", lambda f: f"{format_size(f['size'])} as {f['id']}"),
    "gpu.unreserved": ("unreserved", lambda f: f"{f['id']}: {_by(f)}"),
    "driver.release_requested": ("driver", lambda f: f"is to be let go of, {_for(f)}{_by(f)}"),
    "driver.released": ("driver", lambda _: "nothing of ours uses it any more"),
    "driver.acquire_requested": ("driver", lambda f: f"is used again, {_by(f)}"),
    "command.rejected": ("refused", lambda f: f"{f['order']}: {f['reason']}; {_by(f)}"),
    "service.ready": ("service", lambda f: f"answers after {format_duration(f['start_s'])}"),
    "service.failed": ("service", lambda f: f"{f['reason']}, and is replaced"),
    "service.warning": ("service", lambda f: f"{f['about']}: {f['text']}"),
    "gpu.verdict": ("verdict", _verdict),
    "gpu.released": ("released", lambda f: f["reason"]),
    "stressor.mismatch": (
        "mismatch",
        lambda f: f"{f['errors']} of {f['checks']} results were WRONG: this GPU cannot be trusted",
    ),
    "stressor.finding": ("finding", _finding),
    "stressor.unkillable": (
        "unkillable",
        lambda f: f"pid {f['pid']} survives SIGKILL for {format_duration(f['since_s'])}",
    ),
    "log.dropped": ("lost", lambda f: f"{f['events']} lines that nobody read in time"),
}


# --- one-time looks --------------------------------------------------------------------------


def print_gpus(gpus: Sequence[Gpu], *, text: bool) -> None:
    """Print the GPUs, as a table or as one JSON object."""
    if not text:
        click.echo(json.dumps({"schema_version": 1, "gpus": [asdict(gpu) for gpu in gpus]}))
        return
    for gpu in gpus:
        size = format_size(gpu.memory_total)
        click.echo(f"{gpu.index:>3}  {gpu.uuid}  {gpu.pci_bus_id}  {size:>9}  {gpu.name}")


def print_survey(survey: Sequence[Survey], *, text: bool, explain: bool) -> None:
    """Print what is on each GPU and what would be done, as lines or as one JSON object."""
    if not text:
        rows = [{**asdict(row), "verdict": asdict(row.verdict)} for row in survey]
        click.echo(json.dumps({"schema_version": 1, "gpus": rows}))
        return
    for row in survey:
        would = "would be occupied" if row.verdict.allowed else "would be left alone"
        click.echo(f"GPU {row.gpu.index}  {row.gpu.name}  {row.gpu.uuid}")
        click.echo(f"  {row.occupancy.lower()}: {would} ({row.verdict.reason})")
        if explain:
            click.echo(f"  decided by the rule `{row.verdict.rule}`")
        if row.reading is None or row.reading.memory is None:
            continue
        memory = row.reading.memory
        click.echo(f"  {format_size(memory.used)} of {format_size(memory.total)} in use")
        for process in row.reading.processes or ():
            held = format_size(process.memory) if process.memory is not None else "memory unknown"
            people = _people([asdict(process)])
            reasons = {**row.not_yet, **row.let_be} if explain else {}
            why = reasons.get(process.pid)
            click.echo(f"    {process.kind.value}: {people}, {held}{f' - {why}' if why else ''}")
