"""Format the GPUs, their processes and the daemon as rows and lines, for `status` and `top`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import itemgetter
from typing import TYPE_CHECKING

from sentinel.cli.display.log_lines import format_clock
from sentinel.cli.display.output import Table, printable
from sentinel.host.process_setup import STRESSOR
from sentinel.host.procfs import read_stat
from sentinel.protocol.rules import FAULT_STATES, gpu_state, has_stressor, with_time
from sentinel.units import (
    format_brief,
    format_count,
    format_duration,
    format_indices,
    format_scaled,
    format_size,
)

if TYPE_CHECKING:
    from sentinel.client import GpuStatus, Holder, Process, ReservationInfo, Status
    from sentinel.protocol.api_types import BurninProgress


#: The maximum age of a state that is shown as current, in seconds: as /v1/health has it.
STALE_AFTER_S = 5.0

_BARS = " ▁▂▃▄▅▆▇█"

GPUS = Table(
    (
        *("GPU", "STATE", "SINCE", "HELD BY", "MEMORY"),
        *("LOAD", "TEMP", "POWER", "RATE", "HAND-OVER"),
    ),
    flexible=3,
    right=(0, 2, 4, 5, 6, 7, 8),
    styles={
        "occupied": "green",
        "starting": "green",
        "stopping": "yellow",
        "busy": "cyan",
        "paused": "magenta",
        "reserved": "magenta",
        "backoff": "yellow",
        "failed": "bold red",
        "unknown": "red",
        **dict.fromkeys(FAULT_STATES, "bold red"),
    },
)
PROCESSES = Table(("GPU", "PID", "USER", "TYPE", "MEMORY", "COMMAND"), flexible=5, right=(0, 1, 4))
#: The kernel keeps this many characters of a process's name.
_MAX_NAME = 15


def is_stale(status: Status) -> bool:
    """Check whether the supervisor does not answer, so that a status shows what was and not is."""
    return status.daemon.age_s is not None and status.daemon.age_s > STALE_AFTER_S


def row(
    gpu: GpuStatus, reservations: Sequence[ReservationInfo] = (), *, stale: bool = False
) -> tuple[str, ...]:
    """Return the cells of a GPU; an empty cell is unknown, as are all of a stale status."""
    if stale:
        return (
            _name(gpu),
            "unknown",
            "",
            f"last: {gpu_state(gpu)}",
            *("" for _ in GPUS.header[4:]),
        )
    return (
        _name(gpu),
        gpu_state(gpu),
        "" if gpu.since_s is None else format_brief(gpu.since_s),
        holder_of(gpu, reservations),
        _memory(gpu),
        "" if gpu.utilization is None else f"{gpu.utilization:.0%}",
        "" if gpu.temperature_c is None else f"{gpu.temperature_c}C",
        "" if gpu.power_w is None else f"{gpu.power_w:.0f}W",
        rate(gpu),
        _handover(gpu),
    )


def _name(gpu: GpuStatus) -> str:
    """Return the index, and a mark if something is wrong with the GPU."""
    return f"{gpu.index}{'!' if gpu.standing_findings or gpu.faults else ''}"


def title(status: Status) -> str:
    """Return the host with the models of its GPUs."""
    models: dict[str, list[int]] = {}
    for gpu in status.gpus:
        size = f"{gpu.memory_total / 2**30:.0f} GiB"
        models.setdefault(f"{gpu.name}, {size}", []).append(gpu.index)
    if len(models) == 1:
        ((model, indices),) = models.items()
        text = f"{len(indices)} x {model}"
    else:
        text = "; ".join(
            f"GPU {format_indices(indices, separator=',')}: {model}"
            for model, indices in models.items()
        )
    return f"{status.daemon.host or 'sentinel'}  {text or 'no GPU'}"


def list_line(gpu: GpuStatus, *, stale: bool = False) -> str:
    """Return one GPU as `nvidia-smi -L` lists it, and its state; that is unknown if stale."""
    word = "unknown" if stale else gpu_state(gpu)
    return f"GPU {gpu.index}: {gpu.name} (UUID: {gpu.uuid}) {word}"


def facts(status: Status, now: datetime) -> Iterator[str]:
    """Yield the lines about the daemon."""
    daemon = status.daemon
    running = format_duration(max(0.0, round((now - daemon.since).total_seconds())))
    driver = ", SIMULATED GPUs" if daemon.simulated else f", driver {daemon.driver}"
    ending = f" ({daemon.ending})" if daemon.ending else ""
    if is_stale(status):
        age = daemon.age_s or 0.0
        since = (now - timedelta(seconds=age)).astimezone()
        yield (
            f"STALE: the supervisor has not answered since {since:%H:%M:%S},"
            f" for {format_duration(round(age))}"
        )
    yield f"{daemon.phase}{ending}  {daemon.workload}{driver}"
    if daemon.ignored_devices:
        yield printable(daemon.ignored_devices)
    elif daemon.visible_devices is not None:
        yield f"CUDA_VISIBLE_DEVICES={printable(daemon.visible_devices)}"
    if daemon.forgotten:
        yield printable(f"earlier wrong results are not known: {daemon.forgotten}")
    yield f"pid {daemon.pid} for {running}, version {daemon.version}"
    yield f"socket {daemon.socket}"
    kept = "on the standard output of the daemon" if daemon.journal is None else "in the journal"
    yield f"log {daemon.log or kept}"


def notes(status: Status) -> Iterator[str]:
    """Yield what does not fit into a row, by index: reasons, problems, reservations and more."""
    stale = is_stale(status)
    lines: list[tuple[float, str]] = []
    if not stale:  # the row of a GPU has its processes, and a line of its own a reservation
        lines += _reasons(
            gpu
            for gpu in status.gpus
            if not (gpu.processes or gpu.occupied or gpu.admin == "RESERVED")
        )
    for gpu in status.gpus:
        own = [*findings(gpu), *(() if stale else _current_notes(gpu))]
        lines += [(gpu.index, f"GPU {gpu.index}: {text}") for text in own]
    lines += _grants(status)
    yield from (text for _, text in sorted(lines, key=itemgetter(0)))


def grants(status: Status) -> Iterator[str]:
    """Yield the lines of reservations, queue, allocations and sessions, by index."""
    yield from (text for _, text in sorted(_grants(status), key=itemgetter(0)))


def findings(gpu: GpuStatus) -> Iterator[str]:
    """Yield what is wrong: known faults, a stale index, and the findings that count."""
    yield from (f"{fault.text}: {fault.remedy}" for fault in gpu.faults or ())
    if gpu.renumbered:
        yield f"{gpu.renumbered}; name this one by its UUID, {gpu.uuid}"
    if gpu.standing_findings:
        last = f"; last: {gpu.last_finding}" if gpu.last_finding else ""
        yield f"{gpu.standing_findings} findings, it cannot be trusted{last}"


def _grants(status: Status) -> Iterator[tuple[float, str]]:
    """Yield reservations, queue, allocations and sessions, each with its first index."""
    for reservation in status.reservations or ():
        yield min(reservation.indices, default=math.inf), describe_reserved(reservation)
    for waiting in status.queue or ():
        yield math.inf, f"queue {waiting.place}: {describe_queued(waiting)}"
    for allocation in status.allocations or ():
        process = process_of(allocation.holder)
        user = f" for {process}" if process else ""
        where = allocation.gpu if allocation.index is None else allocation.index
        text = f"GPU {where}: {format_size(allocation.size)} allocated as {allocation.id}{user}"
        yield math.inf if allocation.index is None else allocation.index, text
    for session in status.sessions or ():
        end = f" until {format_clock(session.until)}" if session.until else ""
        why = f", suspended: {session.suspended}" if session.suspended else ""
        text = f"GPU {', '.join(map(str, session.indices))}: session {session.name}{end}{why}"
        yield min(session.indices, default=math.inf), text


def describe_reserved(one: ReservationInfo) -> str:
    """Describe a reservation: its GPUs, whose it is, what it is for, and until when."""
    by = _whose("by", one.holder, ends_with_process=one.bound)
    why = f" for {one.reason}" if one.reason else ""
    end = f" until {format_clock(one.until)}" if one.until else ""
    return f"GPU {', '.join(map(str, one.indices))}: reserved as {one.id}{by}{why}{end}"


def describe_queued(one: ReservationInfo) -> str:
    """Describe a request in the queue: whose it is, what it waits for, and since when."""
    why = f" for {one.reason}" if one.reason else ""
    since = f"{one.since.astimezone():%H:%M:%S}"
    whose = _whose("of", one.holder, ends_with_process=True)
    return f"request {one.id}{whose} has been waiting for {wish_of(one)}{why} since {since}"


def wish_of(one: ReservationInfo) -> str:
    """Name the GPUs that a request can use, or their number."""
    named = ", ".join(map(str, one.indices))
    what = f"GPU {named}" if named else format_count(one.count, "GPU")
    return f"{one.count} of {what}" if named and one.count < len(one.indices) else what


def _whose(word: str, holder: Holder, *, ends_with_process: bool) -> str:
    """Name the user of a reservation, and the process that it ends with; empty if not known."""
    user, process = user_of(holder), process_of(holder) if ends_with_process else ""
    return (f" {word} {user}" if user else "") + (f" ({process})" if process else "")


def user_of(holder: Holder) -> str:
    """Name the user of a reservation or a request; empty if the daemon does not know it."""
    return holder.user or ("" if holder.uid is None else f"uid {holder.uid}")


def process_of(holder: Holder | Process) -> str:
    """Name the process of a holder, or a process; empty if there is none."""
    return "" if holder.pid is None else f"{holder.name or 'pid'} {holder.pid}"


def why(gpu: GpuStatus) -> str:
    """Return the reason why a GPU is not occupied, and the time until that may change."""
    return with_time(gpu.reason, gpu.rule_until_s)


def reasons(gpus: Iterable[GpuStatus]) -> Iterator[str]:
    """Yield why GPUs are not occupied; those with the same reason share a line."""
    yield from (text for _, text in _reasons(gpus))


def _reasons(gpus: Iterable[GpuStatus]) -> Iterator[tuple[int, str]]:
    """Yield the lines of :func:`reasons`, each with its first index."""
    indices: dict[str, list[int]] = {}
    for gpu in gpus:
        indices.setdefault(why(gpu), []).append(gpu.index)
    for reason, those in indices.items():
        yield min(those), f"GPU {format_indices(those, separator=',')}: {reason}"


def _current_notes(gpu: GpuStatus) -> Iterator[str]:
    """Yield what a row of a GPU does not show of its current state."""
    if gpu.burnin is not None:
        yield f"burn-in {_burnin(gpu.burnin)}"
    if gpu.health in {"throttled", "critical"}:
        yield health(gpu)
    if gpu.read_s is not None and gpu.read_s > STALE_AFTER_S:
        yield f"last read {format_duration(gpu.read_s)} ago"


def _burnin(progress: BurninProgress) -> str:
    """Format how far a GPU is in a burn-in."""
    if progress.over:
        return f"{progress.plan}: {progress.ended or 'all phases are done'}"
    parts = [f"{progress.plan}, {progress.number} of {progress.phases}: {progress.phase}"]
    if left_s := round(progress.left_s):  # none in a phase that ends by passes
        parts.append(f"at least {format_duration(left_s)} of work left")
    return ", ".join([*parts, *filter(None, [progress.waiting])])


def health(gpu: GpuStatus) -> str:
    """Format the health of a GPU with its cause, and what it permits if that is not all."""
    cause = "" if gpu.health_cause is None else f" because of its {gpu.health_cause}"
    limit = f", {gpu.multiplier:.0%} of its speed permitted" if gpu.multiplier < 1 else ""
    return f"{gpu.health or 'unknown'}{cause}{limit}"


def rate(gpu: GpuStatus) -> str:
    """Format the rate of the stressor, in FLOP/s, bytes/s or iterations/s."""
    for value, unit in ((gpu.flops_per_s, "F/s"), (gpu.bytes_per_s, "B/s")):
        if value:
            return format_scaled(value, unit).replace(" ", "")
    return f"{gpu.iterations_per_s:.3g}/s" if gpu.iterations_per_s else ""


def holder_of(gpu: GpuStatus, reservations: Sequence[ReservationInfo]) -> str:
    """Format the holder of a GPU: sentinel, foreign processes, or a reservation."""
    if has_stressor(gpu):
        session = f" [{gpu.session}]" if gpu.session else ""
        return f"sentinel {gpu.workload}{session}" if gpu.workload else "sentinel"
    reservation = next((held for held in reservations if held.id == gpu.reservation), None)
    # A stressor that is not the daemon's is there for the reservation: a self-test or a trial.
    is_trial = reservation is not None and all(
        process.name == STRESSOR for process in gpu.processes
    )
    if gpu.processes and not is_trial:
        more = f" +{len(gpu.processes) - 1}" if len(gpu.processes) > 1 else ""
        return _process(gpu.processes[0]) + more
    if reservation is None:
        return ""
    purpose = reservation.reason or reservation.holder.name or reservation.id
    return f"{user_of(reservation.holder)} {purpose}".lstrip()


def _process(process: Process) -> str:
    """Format a process, most important part first, because the end may be truncated."""
    if process.user:
        return f"{process.user} {process.pid} {process.name or ''}".rstrip()
    return process_of(process)


def _memory(gpu: GpuStatus) -> str:
    total = gpu.memory_total / 2**30
    return (
        f"?/{total:.0f}G"
        if gpu.memory_used is None
        else f"{gpu.memory_used / 2**30:.0f}/{total:.0f}G"
    )


def _handover(gpu: GpuStatus) -> str:
    """Format the duration and the age of the last hand-over."""
    if gpu.handover is None:
        return ""
    took = gpu.handover.memory_back
    took = gpu.handover.exit if took is None else took
    return f"{format_brief(took)}, {format_brief(gpu.handover.ago_s)} ago"


def graph(values: Sequence[float | None], maximum: float) -> str:
    """Return a bar for each value as a share of ``maximum``, and a dot for an unknown value."""
    steps = len(_BARS) - 1
    return "".join(
        "·" if value is None else _BARS[max(0, min(steps, round(steps * value / (maximum or 1.0))))]
        for value in values
    )


# --- processes -------------------------------------------------------------------------------


@dataclass(frozen=True)
class GpuJob:
    """A process on a GPU; None is unknown."""

    index: int
    pid: int
    #: stressor, or NVML's list that has the process: compute, mps or graphics.
    kind: str
    user: str | None
    memory_bytes: int | None
    command: str | None
    #: Whether /proc of this host has the process.
    is_local: bool


def jobs(gpus: Sequence[GpuStatus], *, local: bool) -> list[GpuJob]:
    """List the processes on these GPUs: stressors, foreign and allocated ones.

    Args:
        gpus: The GPUs.
        local: Whether the daemon runs on this host, so that /proc has the processes.
    """
    return [job for gpu in gpus for job in _jobs_of(gpu, local=local)]


def process_row(job: GpuJob) -> tuple[str, ...]:
    """Return the cells of a process; an empty cell is unknown.

    The folder of the program is left out, since it takes the room of the arguments.
    """
    program, space, rest = (job.command or "").partition(" ")
    command = f"{program.rpartition('/')[2]}{space}{rest}"
    used = "" if job.memory_bytes is None else f"{job.memory_bytes / 2**20:.0f}MiB"
    return str(job.index), str(job.pid), job.user or "", job.kind, used, command


def _jobs_of(gpu: GpuStatus, *, local: bool) -> Iterator[GpuJob]:
    if gpu.pid is not None:
        yield GpuJob(
            index=gpu.index,
            pid=gpu.pid,
            kind="stressor",
            user=gpu.stressor_user,
            memory_bytes=gpu.held,
            command=f"sentinel {gpu.workload or ''}".rstrip(),
            is_local=local and read_stat(gpu.pid) is not None,
        )
    seen = set()
    for process in (*(gpu.processes or ()), *(gpu.allocated_processes or ())):
        if process.pid in seen:
            continue
        seen.add(process.pid)
        yield GpuJob(
            index=gpu.index,
            pid=process.pid,
            kind=process.kind or "compute",
            user=process.user,
            memory_bytes=process.memory,
            command=process.command or process.name,
            is_local=local and _is_same(process),
        )


def _is_same(process: Process) -> bool:
    """Check that /proc means this process, and not one of another PID namespace."""
    stat = read_stat(process.pid)
    if stat is None or process.name is None:
        return False
    return stat.name[:_MAX_NAME] == process.name[:_MAX_NAME]
