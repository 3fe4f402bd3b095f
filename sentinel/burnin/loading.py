"""Build the record of each GPU of a burn-in from its events and samples. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from math import inf
from typing import Any

from sentinel.burnin.kernel_faults import KernelFault
from sentinel.burnin.record import (
    CHECKSUM,
    END,
    INTERRUPTIONS,
    KERNEL_FAULT,
    LAST,
    LINK,
    LOST,
    SELFTEST,
    TELEMETRY,
    UNIT,
    WATCHED,
    WORK,
    XID,
    Checksum,
    GpuRecord,
    Interruption,
    PhaseRecord,
    Sample,
)
from sentinel.burnin.xids import NO_DETAILS, XidEvent
from sentinel.config.plan import Plan
from sentinel.config.verified_work import fold
from sentinel.protocol.burnin_events import (
    EVENT_KINDS,
    BurninEvent,
    Busy,
    Dropped,
    Ended,
    Interrupted,
    Named,
    PhaseEnded,
    PhaseStarted,
    Ready,
    RunStarted,
    StressorFailed,
    StressorFatal,
    StressorStarting,
    Unknown,
    Unwatched,
    Warm,
    XidReported,
    Yielding,
)
from sentinel.protocol.codec import DecodeError, check_fields, from_json
from sentinel.protocol.stressor import FindingPlace
from sentinel.protocol.xids import BEFORE_EXIT_S, OwnEnd

#: The samples that are the fields of a value.
_VALUES: Mapping[str, Any] = {
    XID: XidEvent,
    KERNEL_FAULT: KernelFault,
    CHECKSUM: Checksum,
}
_HEAT = {"temperature_c": float | None, "temperature_margin_c": float | None}
#: The fields that are read of other events and samples, with their types.
_FIELDS: Mapping[str, Mapping[str, Any]] = {
    "stressor.mismatch": {"errors": int},
    "burnin.phase_ended": {"errors": int},
    "stressor.finding": {
        "place": FindingPlace,
        "workload": str,
        **dict.fromkeys(("dtype", "detail"), str | None),
    },
    "stressor.unkillable": {"pid": int | None},
    "stressor.failed": {"reason": str, "kind": str | None},
    "stressor.fatal": {"reason": str, "kind": str | None},
    "gpu.fault": {"fault": str, "reason": str},
    "gpu.unknown": {"reason": str | None},
    "gpu.identity": {"complete": bool},
    "gpu.released": {"reason": str | None, **_HEAT},
    "gpu.health_changed": _HEAT,
    "gpu.overheat": _HEAT,
    TELEMETRY: {"reasons": tuple[str, ...] | None},
    # A part, unit or place that this version does not know is of another one, and is no error.
    LINK: {
        "part": str,
        "peer": int | None,
        "rate": float | None,
        **dict.fromkeys(("size", "checked", "wrong"), int),
    },
    UNIT: {"unit": str, "checks": int, "wrong": int},
    SELFTEST: {**dict.fromkeys(("dtype", "place"), str), "tried": int, "found": int},
    WATCHED: {"first": float, "last": float},
    END: {"pid": int},
    LOST: {"events": int},
    LAST: {"count": int | None, "event_count": int | None},
}
#: No clock of a host has counted so many seconds.
_LATEST_S = 1e10

#: What of a sample is no number.
_LABELS = frozenset({"time", "event", "gpu", "index", "reasons"})
#: The numbers of work and of links; one may be missing.
_WORKED = ("seconds", "iterations", "flops", "bytes", "checks", "errors")
_MEASURED = (*_WORKED, "rate")
_NUMBERS = (int, float)
#: What ends a stretch is reported at most so long before its end, or after it, in seconds.
_CAUSED_WITHIN_S = 10.0
#: The cause of an interruption of which no event says more.
_STOPPED = "the run was stopped"


def load(
    plan: Plan, events: Iterable[Mapping[str, Any]], samples: Iterable[Mapping[str, Any]]
) -> dict[str, GpuRecord]:
    """Build the record of each GPU, by its UUID.

    Args:
        plan: What was run.
        events: The events in the form of the log, in their order.
        samples: The recorded samples, in their order.
    """
    records: dict[str, GpuRecord] = {}
    dropped = parts = count = 0
    for count, row in enumerate(events, start=1):  # noqa: B007 - the number of all
        event = parse(row)
        dropped += event.events if isinstance(event, Dropped) else 0
        parts += isinstance(event, RunStarted)
        _take_row(records, row, event, plan)
    logged: list[XidEvent | KernelFault] = []
    closed, begun = False, parts
    known = None
    for number, sample in enumerate(samples):
        closed = sample["event"] == LAST
        known = sample.get("event_count") if closed else None
        dropped += abs(number - sample.get("count", number)) if closed else 0
        parts -= closed
        dropped += sample["events"] if sample["event"] == LOST else 0
        if sample["event"] in {XID, KERNEL_FAULT}:
            logged.append(from_json(_VALUES[sample["event"]], sample, sample["event"]))
        elif sample.get("gpu") in records:
            measured = _is_measured(sample)
            dropped += not measured
            if measured:
                _take_sample(records[sample["gpu"]], sample)
    dropped += abs(count - (count if known is None else known))
    for record in records.values():
        record.xids = [event for event in logged if isinstance(event, XidEvent)]
        record.faults = [event for event in logged if isinstance(event, KernelFault)]
        record.dropped, record.closed = dropped, closed
        record.cut, record.parts = parts > 0, begun
    return records


def parse(row: Mapping[str, Any]) -> BurninEvent | None:
    """Build the value of an event of the log, or return None for another event.

    Raises:
        DecodeError: A field is missing or of a wrong type.
    """
    kind = EVENT_KINDS.get(row["event"])
    if kind is PhaseEnded:
        row = {**row, "work": row}
    return None if kind is None else from_json(kind, row, row["event"])


def checked(rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the events or samples of a file, with what is read of them of its type.

    Raises:
        DecodeError: A field is missing or of a wrong type.
    """
    for row in rows:
        name = row["event"]
        if abs(from_json(float, row.get("at"), f"{name}.at")) > _LATEST_S:
            raise DecodeError("a moment of the monotonic clock", f"{name}.at")
        if "time" in row:
            from_json(datetime, row["time"], f"{name}.time")
        if not _is_measured(row):
            yield row  # it counts as lost
            continue
        check_fields(row, _FIELDS.get(name, {}), name)
        if name in _VALUES:
            yield {**row, **vars(from_json(_VALUES[name], row, name))}
        elif name == WORK and any(row.get(one) is None for one in _WORKED):
            yield {**row, "seconds": inf}  # not measured
        else:
            yield row


def _take_row(
    records: dict[str, GpuRecord], row: Mapping[str, Any], event: BurninEvent | None, plan: Plan
) -> None:
    """Apply one event of the log to the record of its GPU, or of all."""
    named: tuple[Named, ...] = ()
    if isinstance(event, RunStarted):
        named = event.gpus
        for record in records.values():
            _take_resumption(record, float(row["at"]))
    uuid = row.get("gpu")
    if uuid is not None:
        named = (Named(uuid=uuid, index=row.get("index")),)
    _add_gpus(records, named, plan)
    if uuid is not None:
        record = records[uuid]
        if isinstance(event, XidReported):
            record.nvml_xids.append(_xid(event))
        if not _is_elsewhere(record, row, event):
            _take_event(record, row, event)


def _add_gpus(records: dict[str, GpuRecord], named: Iterable[Named], plan: Plan) -> None:
    """Add the GPUs that an event names; the first event of a run names all of them."""
    for gpu in named:
        if gpu.uuid not in records:
            phases = [PhaseRecord(phase=phase) for phase in plan.phases]
            records[gpu.uuid] = GpuRecord(uuid=gpu.uuid, index=gpu.index or 0, phases=phases)


def _is_elsewhere(record: GpuRecord, row: Mapping[str, Any], event: BurninEvent | None) -> bool:
    """Check whether an event is of other work of a daemon on a GPU that is done."""
    at = float(row["at"])
    if record.elsewhere and at < record.elsewhere[-1][1]:
        return True
    if isinstance(event, PhaseStarted | StressorStarting) and record.ended != "":
        record.elsewhere.append((at, inf))
        return True
    return False


def _take_event(record: GpuRecord, row: Mapping[str, Any], event: BurninEvent | None) -> None:
    """Apply one event; one that names no phase is of the current one."""
    record.events.append(row)
    at = float(row["at"])
    by_name = {phase.phase.name: phase for phase in record.phases}
    phase = by_name.get(row.get("phase", "")) or _current(record)
    match event:
        case Ended():
            record.ended = event.reason
        case Busy():  # a newcomer's memory is seen before its name
            cause = INTERRUPTIONS[Yielding.name]
            _complete(record, cause, cause + _names(event.processes or ()))
        case StressorFailed() | StressorFatal() if _ended_last(record, at):
            _complete(record, _STOPPED, INTERRUPTIONS[event.name])
        case _ if phase is not None:
            _take_event_of_phase(record, phase, at, event)


def _take_event_of_phase(
    record: GpuRecord, phase: PhaseRecord, at: float, event: BurninEvent | None
) -> None:
    """Apply one event to its phase."""
    match event:
        case PhaseStarted():
            before = record.phases[max(0, record.phases.index(phase) - 1)]
            goes_on = before.ended == at and before.phase.workload == phase.phase.workload
            phase.ready = at if goes_on else phase.ready
            if goes_on and not phase.phase.in_one_stretch:  # the same stressor
                phase.stretches.append((at, at))
            phase.spans.append((at, None))
        case Warm():
            phase.stretches.append((at, at))
        case Ready():
            phase.ready = min(phase.ready, at)
            phase.stretches += [] if phase.phase.steady else [(at, at)]
        case Yielding() | Unknown() | Unwatched():  # also where they end no stretch that counts
            _interrupt(record, phase, at, 0.0)
        case Interrupted():  # the sum at the end of the phase has it, with the work before it
            _interrupt(record, phase, at, event.stretch_s)
        case PhaseEnded():
            phase.work = fold(phase.phase, phase.work, event)
            phase.told_passes = event.passes
            _end_stretch(phase, at)
            if phase.spans:
                phase.spans[-1] = (phase.spans[-1][0], at)


def _xid(event: XidReported) -> XidEvent:
    """Convert what NVML has delivered."""
    return XidEvent(
        number=event.xid,
        pci_bus_id="",
        at=event.reported_at,
        pid=None,
        text=NO_DETAILS,
        count=event.repeats or 1,
        last_at=event.last_at,
    )


def _take_resumption(record: GpuRecord, at: float) -> None:
    """Add the cut before a resumption as an interruption, and end what a kill has left open."""
    unfinished = record.unfinished
    if unfinished is None or not record.events:
        return
    last = float(record.events[-1]["at"])
    interruption = Interruption(
        at=last,
        phase=unfinished.phase.name,
        cause=f"the run was cut short: {record.cut_short}",
        stretch_s=unfinished.work.stretch,
    )
    record.interruptions.append(interruption)
    record.ended = ""
    if record.elsewhere:
        record.elsewhere[-1] = (record.elsewhere[-1][0], at)
    for phase in record.phases:
        _end_stretch(phase, last)
        if phase.spans and phase.spans[-1][1] is None:
            phase.spans[-1] = (phase.spans[-1][0], last)


def _current(record: GpuRecord) -> PhaseRecord | None:
    """Find the phase that has begun and not ended."""
    open_ = [phase for phase in record.phases if phase.spans and phase.ended is None]
    return open_[-1] if open_ else None


def _end_stretch(phase: PhaseRecord, at: float) -> None:
    if phase.stretches and phase.stretches[-1][0] == phase.stretches[-1][1]:
        phase.stretches[-1] = (phase.stretches[-1][0], at)


def _interrupt(record: GpuRecord, phase: PhaseRecord, at: float, stretch_s: float) -> None:
    """Add an interruption; the end of a stretch completes that of the event that has caused it."""
    _end_stretch(phase, at)
    last = record.interruptions[-1] if record.interruptions else None
    lately = list(_lately(record, at))
    interruption = Interruption(
        at=at, phase=phase.phase.name, cause=_cause(lately), stretch_s=stretch_s
    )
    if (
        last is not None
        and (last.phase, last.stretch_s) == (interruption.phase, 0.0)
        and last.at >= float(lately[-1]["at"])
        and last.cause.startswith(interruption.cause)
    ):
        record.interruptions[-1] = replace(last, stretch_s=stretch_s)
    else:
        record.interruptions.append(interruption)


def _lately(record: GpuRecord, at: float) -> Iterator[Mapping[str, Any]]:
    """Yield the events that may have caused one, the last first: those of the same stressor."""
    for row in reversed(record.events):
        if at - float(row["at"]) > _CAUSED_WITHIN_S or row["event"] == StressorStarting.name:
            return
        yield row


def _cause(lately: Iterable[Mapping[str, Any]]) -> str:
    """Name what ended a stretch: the last event that says so, else the reason of a release."""
    released = None
    for row in lately:
        cause = INTERRUPTIONS.get(row["event"])
        if cause is not None:
            return cause + _names(row.get("processes") or ())
        if released is None and row["event"] == "gpu.released":
            released = str(row["reason"])
    return released or _STOPPED


def _complete(record: GpuRecord, cause: str, known: str) -> None:
    """Replace the cause of the last interruption if it is this one: a later event knows more."""
    last = record.interruptions[-1] if record.interruptions else None
    if last is not None and last.cause == cause:
        record.interruptions[-1] = replace(last, cause=known)


def _ended_last(record: GpuRecord, at: float) -> bool:
    """Check whether the last interruption is of the stressor whose failure was reported now."""
    *_, first = _lately(record, at)
    return bool(record.interruptions) and record.interruptions[-1].at >= float(first["at"])


def _names(processes: Iterable[Mapping[str, Any]]) -> str:
    names = [str(process.get("name") or process["pid"]) for process in processes]
    return f" ({', '.join(names)})" if names else ""


def _is_number(value: object) -> bool:
    return isinstance(value, _NUMBERS) and abs(value) < inf  # not for NaN


def _is_measured(sample: Mapping[str, Any]) -> bool:
    """Check whether what was measured are numbers; any other sample is."""
    if sample["event"] not in {WORK, LINK}:
        return True
    measured = [sample.get(name) for name in _MEASURED]
    return all(_is_number(value) for value in measured if value is not None)


def _take_sample(record: GpuRecord, sample: Mapping[str, Any]) -> None:
    """Add a sample to the phase of its time, or what is of the whole GPU to its record."""
    at = float(sample["at"])
    if any(first <= at < last for first, last in record.elsewhere):
        return
    if sample["event"] == TELEMETRY:  # what is no number was not read
        sample = {n: v if n in _LABELS or _is_number(v) else None for n, v in sample.items()}
    record.sampled_s += float(sample["seconds"]) if sample["event"] == WORK else 0.0
    if sample["event"] == WATCHED:
        record.xids_watched.append((sample["first"], sample["last"]))
        return
    if sample["event"] == END:
        record.ends.append(OwnEnd(pid=sample["pid"], at=at - BEFORE_EXIT_S))
        return
    if sample["event"] == CHECKSUM:
        record.checksums.append(from_json(Checksum, sample))
        return
    if sample["event"] == SELFTEST:
        record.selftests.append(Sample(at=at, values=sample))
        return
    for number, phase in enumerate(record.phases):
        if phase.has(at):
            worked = record.phases[number - 1] if number and at < phase.ready else phase
            lists = {
                TELEMETRY: phase.telemetry,
                WORK: worked.reports,
                LINK: worked.links,
                UNIT: worked.units,
            }
            if sample["event"] in lists:
                lists[sample["event"]].append(Sample(at=at, values=sample))
            return
