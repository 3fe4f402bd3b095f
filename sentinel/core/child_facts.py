"""Apply what was reported of one GPU: messages and exit of its child, findings, XIDs. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.config.model import Config
from sentinel.core import faults, lifecycle, start_memory
from sentinel.core.attribution import SLACK_BYTES
from sentinel.core.gpu_state import (
    Evidence,
    EvidenceKind,
    GpuState,
    Running,
    Starting,
    StopCause,
    Stopping,
    XidWindow,
)
from sentinel.core.lifecycle import to_stopping, yielding
from sentinel.core.newcomer import plausible
from sentinel.core.observation import ChildExit, ChildFacts, Observation, ProbeFacts
from sentinel.core.step import Action, Event, Send, Step, gpu_event, sensor_fields
from sentinel.protocol.gpu import Reading
from sentinel.protocol.stressor import (
    Announcement,
    ChildMessage,
    CreatingContext,
    Failed,
    FailureKind,
    Finding,
    FindingAck,
    MemoryContention,
    Note,
    Progress,
    Ready,
)
from sentinel.protocol.views import VerifiedCounts, VerifiedWork
from sentinel.protocol.xids import BEFORE_EXIT_S, OwnEnd, is_of_own_end

#: A workload's note is cut to this many characters; a plugin may have written it.
MAX_NOTE_LENGTH = 200

#: The watch of XIDs goes on for so long after it was confirmed, in seconds: twice the interval and
#: a busy host.
CONFIRMED_S = 6.0


def fold_findings(
    gpu_state: GpuState, facts: ChildFacts, reading: Reading | None, now: float
) -> Step[GpuState]:
    """Apply the findings among a child's messages.

    A child repeats a finding until it is acknowledged, so a known one is only acknowledged again.
    """
    actions: list[Action] = []
    events: list[Event] = []
    for finding in facts.messages:
        if not isinstance(finding, Finding):
            continue
        actions.append(
            Send(
                uuid=gpu_state.gpu.uuid,
                generation=facts.generation,
                message=FindingAck(number=finding.number),
            )
        )
        before = gpu_state.findings
        if before.generation == facts.generation and finding.number <= before.number:
            continue
        findings = replace(
            before,
            total=before.total + 1,
            generation=facts.generation,
            number=finding.number,
            last=finding,
        )
        gpu_state = replace(gpu_state, findings=findings)
        events.append(_finding_event(gpu_state, finding, reading, now))
    return Step(gpu_state, actions=tuple(actions), events=tuple(events))


def _finding_event(
    gpu_state: GpuState, finding: Finding, reading: Reading | None, now: float
) -> Event:
    """Build the event with the whole finding and the latest readings of the GPU."""
    fields: dict[str, object] = {**vars(finding), "place": finding.place.value}
    fields["first"], fields["bits"] = list(finding.first), list(finding.bits)
    fields["kind"] = kind_of(finding)
    fields |= sensor_fields(reading)
    return gpu_event("stressor.finding", gpu_state, now, **fields)


def kind_of(finding: Finding) -> str | None:
    """Name whether the fault came back on a retry; None if there was no retry."""
    if finding.repeated is None:
        return None
    return "repeatable" if finding.repeated else "transient"


def count_verified(gpu_state: GpuState, report: Progress, now: float) -> GpuState:
    """Count a report of a stressor, if results were checked in it."""
    if not report.checks:
        return gpu_state
    before, spec = gpu_state.verified.counts, gpu_state.launch.spec
    counts = VerifiedCounts(
        seconds=before.seconds + report.seconds,
        checks=before.checks + report.checks,
        errors=before.errors + report.errors,
    )
    workload = spec.workload if spec is not None else None
    return replace(gpu_state, verified=VerifiedWork(counts=counts, at=now, workload=workload))


def verified_work_of(gpu_state: GpuState) -> VerifiedWork:
    """Return the verified work of a GPU with its findings."""
    work = gpu_state.verified
    counts = replace(work.counts, findings=gpu_state.findings.total)
    return replace(work, counts=counts)


def fold(gpu_state: GpuState, facts: ChildFacts, now: float) -> Step[GpuState]:
    """Apply the new facts about the child: each message, and its exit last."""
    if facts.generation != gpu_state.generation:
        return Step(gpu_state)
    if facts.child is not None and isinstance(gpu_state.stressor, Starting):
        gpu_state = replace(gpu_state, launch=replace(gpu_state.launch, child=facts.child))
    step = Step(gpu_state)
    for message in facts.messages:
        step = step.then(_apply, message, now)
    step = step.then(_killed, facts, now)
    return step if facts.exit is None else step.then(_exited, facts.exit, now)


def _killed(gpu_state: GpuState, facts: ChildFacts, now: float) -> Step[GpuState]:
    """Apply when the child was killed, or that it must be because of a malformed message."""
    if facts.garbage is not None and gpu_state.is_live:
        failed = Failed(kind=FailureKind.GARBAGE, reason=facts.garbage)
        gpu_state = to_stopping(gpu_state, StopCause.GARBAGE, now, kill_at=now, failed=failed)
    match gpu_state.stressor:
        case Stopping(killed_at=None) as stopping if facts.killed_at is not None:
            stopping = replace(stopping, killed_at=facts.killed_at)
            gpu_state = replace(gpu_state, stressor=stopping)
    return Step(gpu_state)


def _exited(gpu_state: GpuState, exit_: ChildExit, now: float) -> Step[GpuState]:
    """Apply the exit of the child; one that saw memory contention has yielded by itself."""
    step = Step(gpu_state)
    match gpu_state.stressor:
        case (
            Starting(contention=MemoryContention() as seen)
            | Running(contention=MemoryContention() as seen)
        ):
            step = _yielded(gpu_state, replace(seen, at=seen.at or exit_.at), now)
    gpu_state = to_stopping(step.state, StopCause.EXITED, now, kill_at=now)
    if isinstance(gpu_state.stressor, Stopping):
        gpu_state = replace(gpu_state, stressor=replace(gpu_state.stressor, exit=exit_))
    step = step._replace(state=gpu_state)
    return step if gpu_state.burnin is None else step.then(_recorded, exit_, now)


def _recorded(gpu_state: GpuState, exit_: ChildExit, now: float) -> Step[GpuState]:
    """Report the exit for the record of a burn-in."""
    child = gpu_state.child
    values = {"pid": child.pid if child is not None else 0, "at": exit_.at}
    event = gpu_event("burnin.measured", gpu_state, now, kind="StressorExit", values=values)
    return Step(gpu_state, events=(event,))


def _apply(gpu_state: GpuState, message: ChildMessage, now: float) -> Step[GpuState]:
    """Apply one message of the child; ignore it if it does not fit the state."""
    match message, gpu_state.stressor:
        case CreatingContext() | Announcement(), Starting() as starting:
            starting = lifecycle.advance_start(starting, message, now)
            return Step(replace(gpu_state, stressor=starting))
        case MemoryContention(), _:
            return _contend(gpu_state, message, now)
        case Ready(), Starting() as starting:
            level = start_memory.level_at_ready(gpu_state, now)
            running = Running(since=now, ready=message, last_progress=now, at_ready=level)
            fields = {**vars(message), "start_s": now - starting.since}
            event = gpu_event("stressor.ready", gpu_state, now, **fields)
            return Step(replace(gpu_state, stressor=running), events=(event,))
        case Note(text=text), Running() as running:
            return Step(replace(gpu_state, stressor=replace(running, note=text[:MAX_NOTE_LENGTH])))
        case Progress(), Running() | Stopping() as stressor:
            if isinstance(stressor, Running):
                stressor = replace(stressor, progress=message, last_progress=now)
            gpu_state = count_verified(gpu_state, message, now)
            events = _mismatch(gpu_state, message, now)
            return Step(replace(gpu_state, stressor=stressor), events=events)
        case Failed(), Starting() | Running():
            later = now + 1.0
            return Step(
                to_stopping(gpu_state, StopCause.EXITED, now, kill_at=later, failed=message)
            )
        case Failed(), Stopping() as stopping:
            return Step(replace(gpu_state, stressor=replace(stopping, failed=message)))
        case _:
            return Step(gpu_state)


def _contend(gpu_state: GpuState, message: MemoryContention, now: float) -> Step[GpuState]:
    """Apply what the child saw of a newcomer; one that killed itself has yielded."""
    message = plausible(message, gpu_state.launch.at, now)
    # The thread that watches counts from its limit, and that has the slack on top.
    seen = replace(message, grown=message.grown + SLACK_BYTES)
    match gpu_state.stressor:
        case Starting() as starting if seen.killed_at is None:
            return Step(replace(gpu_state, stressor=replace(starting, contention=message)))
        case Running() as running if seen.killed_at is None:
            return Step(replace(gpu_state, stressor=replace(running, contention=seen)))
        case Starting() | Running() | Stopping(evidence=None, kill_sent=False):
            return _yielded(gpu_state, seen, now)
        case _:
            return Step(gpu_state)


def _yielded(gpu_state: GpuState, seen: MemoryContention, now: float) -> Step[GpuState]:
    """Record that the child has yielded by itself; it is killed all the same, in case it lied."""
    evidence = Evidence(
        kind=EvidenceKind.MEMORY,
        at=seen.at or seen.killed_at or now,
        took=seen.took,
        grown=seen.grown,
    )
    event = yielding(gpu_state, evidence, now)
    gpu_state = to_stopping(gpu_state, StopCause.YIELD, now, kill_at=now)
    stopping = gpu_state.stressor
    if isinstance(stopping, Stopping):
        stopping = replace(
            stopping,
            cause=StopCause.YIELD,
            evidence=evidence,
            killed_at=seen.killed_at,
        )
    return Step(replace(gpu_state, stressor=stopping), events=(event,))


def _mismatch(gpu_state: GpuState, progress: Progress, now: float) -> tuple[Event, ...]:
    """Report wrong results, if there are any; also from a child that is stopping."""
    if not progress.errors:
        return ()
    fields = {"errors": progress.errors, "checks": progress.checks}
    return (gpu_event("stressor.mismatch", gpu_state, now, **fields),)


def report_xids(gpu_state: GpuState, seen: Observation, _: Config) -> Step[GpuState]:
    """Remember an end that Sentinel gave the stressor, and report the XIDs since the last tick."""
    gpu_state = _with_own_end(gpu_state)
    if seen.probe is None:
        return Step(gpu_state)
    ends = () if gpu_state.own_end is None else (gpu_state.own_end,)
    events = []
    for xid in seen.probe.xids:
        if xid.uuid == gpu_state.gpu.uuid:
            gpu_state = faults.with_xid(gpu_state, xid.number)
            fields = {
                "xid": xid.number,
                "repeats": xid.repeats,
                "own": is_of_own_end(xid.number, xid.at, None, ends),
                "reported_at": xid.at,
                "last_at": xid.last_at,
            }
            events.append(gpu_event("gpu.xid", gpu_state, seen.now, **fields))
    return Step(gpu_state, events=tuple(events)).then(_follow_watch, seen.probe, seen.now)


def _follow_watch(gpu_state: GpuState, probe: ProbeFacts, now: float) -> Step[GpuState]:
    """Confirm the watch of a GPU's XIDs; in a burn-in, report one that was broken."""
    before, watch = gpu_state.xids_watched, probe.xids_watched
    since = {gpu.uuid: gpu.since for gpu in watch.gpus} if watch is not None else {}
    first = since.get(gpu_state.gpu.uuid)
    if first is None or watch is None:
        return Step(gpu_state)
    events: tuple[Event, ...] = ()
    if before is not None and before.first != first and gpu_state.burnin is not None:
        events = (_window_event(gpu_state, before, now),)
    window = XidWindow(first=first, last=watch.at)
    return Step(replace(gpu_state, xids_watched=window), events=events)


def window_until(gpu_state: GpuState, now: float) -> tuple[Event, ...]:
    """Report until now the time in which the XIDs of a GPU were watched without a break."""
    window = gpu_state.xids_watched
    if window is None:
        return ()
    if now - window.last <= CONFIRMED_S:
        window = replace(window, last=now)
    return (_window_event(gpu_state, window, now),)


def _window_event(gpu_state: GpuState, window: XidWindow, now: float) -> Event:
    values = vars(window)
    return gpu_event("burnin.measured", gpu_state, now, kind="XidsWatched", values=values)


def _with_own_end(gpu_state: GpuState) -> GpuState:
    """Remember when Sentinel ended the stressor; a crash of it is none of its doing."""
    match gpu_state.stressor:
        case Stopping(cause=StopCause.EXITED, kill_sent=False, killed_at=None):
            return gpu_state
        case Stopping(since=since, killed_at=killed_at, exit=exit_):
            at = since if killed_at is None else killed_at
            if killed_at is None and exit_ is not None:  # it was asked, and took its time
                at = max(since, exit_.at - BEFORE_EXIT_S)
            child = gpu_state.child
            end = OwnEnd(pid=child.pid if child is not None else 0, at=at)
            return gpu_state if end == gpu_state.own_end else replace(gpu_state, own_end=end)
        case _:
            return gpu_state
