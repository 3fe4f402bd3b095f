"""What `status` and `top` show of each GPU: a row of short texts. Values in, text out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from sentinel.client import GpuStatus, Process, ReservationInfo, Status
from sentinel.units import format_brief, format_duration, format_size

HEADER = (
    "GPU",
    "STATE",
    "SINCE",
    "HELD BY",
    "MEMORY",
    "LOAD",
    "TEMP",
    "POWER",
    "RATE",
    "HAND-OVER",
)
#: The column that is cut first, and those whose figures stand below each other.
FLEXIBLE = 3
RIGHT = (0, 2, 4, 5, 6, 7, 8)

#: The colour of each state.
STYLES = {
    "occupied": "green",
    "starting": "green",
    "stopping": "yellow",
    "busy": "cyan",
    "paused": "magenta",
    "reserved": "magenta",
    "backoff": "yellow",
    "failed": "bold red",
    "unknown": "red",
}

#: A state of our stressor by which a GPU is called, whatever else is true of it.
_BY_STRESSOR = {"RUNNING": "occupied", "STARTING": "starting", "STOPPING": "stopping"}
_BY_FAILURE = {"BACKOFF": "backoff", "FATAL": "failed"}
_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))


def state(gpu: GpuStatus) -> str:
    """Return one word for what a GPU is: what we do on it, what was ordered, who is on it."""
    stressor, admin = gpu.stressor.upper(), gpu.admin.upper()
    if stressor in _BY_STRESSOR:
        return _BY_STRESSOR[stressor]
    if admin in {"PAUSED", "RESERVED"}:
        return admin.lower()
    if gpu.occupancy.upper() == "IDLE":
        return _BY_FAILURE.get(stressor, "idle")
    return gpu.occupancy.lower()


def row(gpu: GpuStatus, reservations: Sequence[ReservationInfo] = ()) -> tuple[str, ...]:
    """Return the cells of a GPU; an empty one is not known."""
    return (
        f"{gpu.index}{'!' if gpu.findings else ''}",
        state(gpu),
        "" if gpu.since_s is None else format_brief(gpu.since_s),
        _holder(gpu, reservations),
        _memory(gpu),
        "" if gpu.utilization is None else f"{gpu.utilization:.0%}",
        "" if gpu.temperature_c is None else f"{gpu.temperature_c}C",
        "" if gpu.power_w is None else f"{gpu.power_w:.0f}W",
        rate(gpu),
        _handover(gpu),
    )


def facts(status: Status, now: datetime) -> Iterator[str]:
    """Yield the lines about the daemon as a whole."""
    daemon = status.daemon
    running = format_duration(max(0.0, round((now - daemon.since).total_seconds())))
    pretended = ", SIMULATED GPUs" if daemon.simulated else f", driver {daemon.driver}"
    ending = f" ({daemon.ending})" if daemon.ending else ""
    yield f"{daemon.phase}{ending}  {daemon.workload}{pretended}"
    yield f"pid {daemon.pid} for {running}, version {daemon.version}"
    yield f"socket {daemon.socket}"
    yield f"log {daemon.log or 'on the standard output of the daemon'}"
    if daemon.age_s is not None and daemon.age_s > 5:  # noqa: PLR2004 - as /v1/health has it
        yield f"NOT FRESH: the supervisor said this {format_duration(daemon.age_s)} ago"


def notes(status: Status) -> Iterator[str]:
    """Yield what a row has no room for: what is wrong with a GPU, and until when it is kept off."""
    for gpu in status.gpus:
        word = state(gpu)
        if gpu.findings:
            last = f"; last: {gpu.last_finding}" if gpu.last_finding else ""
            yield f"GPU {gpu.index}: {gpu.findings} findings, it cannot be trusted{last}"
        if word in {"failed", "backoff", "unknown"}:
            yield f"GPU {gpu.index}: {gpu.reason}"
        if word == "paused" and gpu.until_s is not None:
            yield f"GPU {gpu.index}: paused for another {format_duration(gpu.until_s)}"
        if gpu.health in {"throttled", "critical"}:
            yield f"GPU {gpu.index}: {gpu.health}, {gpu.multiplier:.0%} of its speed is left"
        if gpu.read_s is not None and gpu.read_s > 5:  # noqa: PLR2004 - stale, as decide has it
            yield f"GPU {gpu.index}: last read {format_duration(gpu.read_s)} ago"
    for one in status.reservations:
        why = f" for {one.reason}" if one.reason else ""
        end = f" until {one.until.astimezone():%H:%M:%S}" if one.until else ""
        yield f"GPU {', '.join(map(str, one.indices))}: reserved as {one.id}{why}{end}"
    for given in status.allocations:
        holder = given.holder
        whose = f" for {holder.name or 'pid'} {holder.pid}" if holder.pid is not None else ""
        where = given.gpu if given.index is None else given.index
        yield f"GPU {where}: {format_size(given.size)} allocated as {given.id}{whose}"


def rate(gpu: GpuStatus) -> str:
    """Return how fast our stressor works, in the unit that says most."""
    for value, unit in ((gpu.flops_per_s, "F/s"), (gpu.bytes_per_s, "B/s")):
        if value:
            size, prefix = next((step for step in _UNITS if value >= step[0]), _UNITS[-1])
            return f"{value / size:.3g}{prefix}{unit}"
    return f"{gpu.iterations_per_s:.3g}/s" if gpu.iterations_per_s else ""


def _holder(gpu: GpuStatus, reservations: Sequence[ReservationInfo]) -> str:
    """Return who has a GPU: we, others, or the one for whom it is kept."""
    if gpu.stressor.upper() in _BY_STRESSOR:
        return f"sentinel {gpu.workload}" if gpu.workload else "sentinel"
    if gpu.processes:
        more = f" +{len(gpu.processes) - 1}" if len(gpu.processes) > 1 else ""
        return _person(gpu.processes[0]) + more
    kept = next((one for one in reservations if one.id == gpu.reservation), None)
    if kept is None:
        return ""
    return kept.reason or kept.holder.name or kept.id


def _person(process: Process) -> str:
    """Return who a process is, the most telling first: the end is cut where there is no room."""
    if process.user:
        return f"{process.user} {process.pid} {process.name or ''}".rstrip()
    return f"{process.name or 'pid'} {process.pid}"


def _memory(gpu: GpuStatus) -> str:
    total = gpu.memory_total / 2**30
    return (
        f"?/{total:.0f}G"
        if gpu.memory_used is None
        else f"{gpu.memory_used / 2**30:.0f}/{total:.0f}G"
    )


def _handover(gpu: GpuStatus) -> str:
    """Return how long the last hand-over took until the memory was back, and when it was."""
    if gpu.handover is None:
        return ""
    took = gpu.handover.memory_back
    took = gpu.handover.exit if took is None else took
    return f"{format_brief(took)}, {format_brief(gpu.handover.ago_s)} ago"
