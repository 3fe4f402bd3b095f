"""Attribute the processes and the memory of one reading: ours, ignored, foreign. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sentinel.config.model import Config
from sentinel.core.gpu.allocations import allocated_processes, charged_memory
from sentinel.core.gpu_state import Attribution, GpuState
from sentinel.core.identity import ResidentProcess, is_own
from sentinel.core.stressor_state import Running, Starting, Stopping
from sentinel.protocol.gpu import GpuProcess, ProcessKind, Reading

#: Graphics processes below this many bytes together share a GPU with a stressor: an X server that
#: only shows a login screen holds a few MiB on every GPU.
GRAPHICS_ALLOWANCE_BYTES = 100 * 2**20

#: An ignore rule by size applies to a process whose memory has been steady for so long, in
#: seconds. Every newcomer is small until milliseconds before its large allocation.
STEADY_S = 60.0
#: A steady process changes by at most this many bytes.
STEADY_CHANGE_BYTES = 2**20

#: The kernel keeps 15 characters of ``nvidia-cuda-mps-server``.
MPS_SERVER = "nvidia-cuda-mps"


def ignored_processes(
    gpu_state: GpuState,
    others: Iterable[GpuProcess],
    allocated: Mapping[int, str],
    at: float,
    config: Config,
) -> dict[int, str]:
    """Return the reason for each process to ignore, by PID.

    Names and users are compared only where /proc describes the processes that NVML lists.

    Args:
        gpu_state: The GPU with its resident processes.
        others: The listed processes that are not Sentinel's own.
        allocated: The allocations of allocated processes, by PID.
        at: When the processes were read.
        config: The configuration of this GPU.
    """
    others = tuple(others)
    graphics = [process for process in others if process.kind is ProcessKind.GRAPHICS]
    ignored = {}
    if config.yield_to == "compute":
        ignored = {process.pid: "graphics (yield_to = compute)" for process in graphics}
    elif _are_light(graphics):
        ignored = {process.pid: "light graphics" for process in graphics}
    if not gpu_state.identity.names_known:
        return ignored
    for pid, name in allocated.items():
        ignored[pid] = f"allocated memory ({name})"
    for process in others:
        if process.name == MPS_SERVER and process.kind is ProcessKind.COMPUTE:
            ignored[process.pid] = "an MPS server; its clients are listed themselves"
        for rule in config.ignore:
            if rule.matches(process) and (
                rule.max_bytes is None or _is_steady(gpu_state, process, at)
            ):
                ignored[process.pid] = f"ignored by {rule}"
    return ignored


def pending_ignores(gpu_state: GpuState, config: Config) -> dict[int, str]:
    """Return by PID the foreign processes that a rule by size may ignore later, and when."""
    if not gpu_state.identity.names_known:
        return {}
    return {
        process.pid: f"{rule} ignores it after {STEADY_S:g} s of steady memory"
        for process in gpu_state.attribution.foreign
        for rule in config.ignore
        if rule.max_bytes is not None and rule.matches(process)
    }


def _are_light(graphics: list[GpuProcess]) -> bool:
    """Check that the memory of these processes is known and small in total."""
    sizes = [process.memory for process in graphics if process.memory is not None]
    return len(sizes) == len(graphics) and sum(sizes) <= GRAPHICS_ALLOWANCE_BYTES


def _is_steady(gpu_state: GpuState, process: GpuProcess, at: float) -> bool:
    """Check that a process was steady for long enough, and before the stressor was started."""
    resident = gpu_state.resident_processes.get(process.pid)
    if resident is None or resident.started is None or resident.started != process.started:
        return False
    until = (
        gpu_state.started if isinstance(gpu_state.stressor, Starting | Running | Stopping) else at
    )
    return resident.since + STEADY_S <= until


def resident_processes(
    gpu_state: GpuState, reading: Reading | None, config: Config
) -> Mapping[int, ResidentProcess]:
    """Update since when each listed process is steady; empty without an ignore rule by size."""
    if not any(rule.max_bytes is not None for rule in config.ignore):
        return {}
    if reading is None or reading.processes is None:
        return {}  # the processes may have changed in the meantime
    return {
        p.pid: _resident(gpu_state.resident_processes.get(p.pid), p, reading)
        for p in reading.processes
    }


def _resident(
    before: ResidentProcess | None, process: GpuProcess, reading: Reading
) -> ResidentProcess:
    """Keep the record of a process that has not changed; else start a new one."""
    if before is not None and process.memory is not None and before.memory is not None:
        change = abs(process.memory - before.memory)
        if change <= STEADY_CHANGE_BYTES and before.started == process.started:
            return before
    at = reading.processes_at
    return ResidentProcess(started=process.started, since=at, memory=process.memory)


#: Memory growth up to this many bytes is noise. On an H200 the driver's figure did not move beside
#: NVML clients, and by 64 KiB for a moment while CUDA programs started on other GPUs of the host; a
#: newcomer's first growth is larger (docs/handing-over.md).
SLACK_BYTES = 2**20

#: Defaults of ``idle.memory``: unattributed memory of an idle GPU, in bytes, where every process is
#: listed and where some may not be. Any CUDA context takes more than the latter, 527 MiB on an
#: H200 (an empty one's total less what a newcomer finds free there, benchmarks/measured), and
#: nvidia-smi shows 0 MiB on an idle H200.
IDLE_MEMORY_LISTED_BYTES = 2**30
IDLE_MEMORY_UNLISTED_BYTES = 32 * 2**20

#: Memory of a context that NVML counts as used and lists for no process, in bytes. On an H200 it is
#: 8.8 MiB, whatever a stressor takes besides; a newcomer's context is 25 MiB more before it is
#: listed, some 120 ms before its first allocation.
CONTEXT_OVERHEAD_BYTES = 16 * 2**20


def foreign_memory(gpu_state: GpuState, reading: Reading) -> int:
    """Compute the used memory that is not the stressor's, in bytes.

    Uses the memory that the driver reports for own processes, or else the memory that was used
    before the stressor was started.
    """
    used = reading.memory.used if reading.memory is not None else 0
    if gpu_state.child is None:
        return used
    if gpu_state.attribution.own_memory:
        return max(0, used - gpu_state.attribution.own_memory)
    match gpu_state.stressor:
        case Running(expected=int(expected), baseline=baseline):
            return max(0, used - (expected - baseline))
        case Running(baseline=baseline, ready=ready):
            return max(baseline, used - ready.held) if used > ready.held else baseline
        case Starting(baseline=baseline) | Stopping(baseline=baseline):
            return min(used, baseline)
        case _:
            return used


def idle_memory(gpu_state: GpuState, config: Config) -> int:
    """Compute how much memory may be unattributed on an idle GPU, in bytes."""
    if config.idle_memory is not None:
        return config.idle_memory
    listed = gpu_state.identity.complete
    return IDLE_MEMORY_LISTED_BYTES if listed else IDLE_MEMORY_UNLISTED_BYTES


def attribute(gpu_state: GpuState, reading: Reading | None, config: Config) -> Attribution:
    """Attribute a reading's processes and memory.

    Args:
        gpu_state: The GPU, with the current child and the resident processes of this reading.
        reading: The latest reading, or None before the first.
        config: The configuration of this GPU.
    """
    if reading is None:
        return Attribution()
    own: list[GpuProcess] = []
    others: list[GpuProcess] = []
    child = gpu_state.child
    for process in reading.processes or ():
        (own if is_own(process, child) else others).append(process)
    allocated = allocated_processes(gpu_state, others)
    ignored = ignored_processes(gpu_state, others, allocated, reading.processes_at, config)
    listed = sum(process.memory or 0 for process in reading.processes or ())
    return Attribution(
        own=tuple(own),
        foreign=tuple(process for process in others if process.pid not in ignored),
        ignored=ignored,
        allocated=allocated,
        own_memory=sum(process.memory or 0 for process in own),
        ignored_memory=sum(p.memory or 0 for p in others if p.pid in ignored),
        allocated_memory=sum(charged_memory(p) for p in others if p.pid in allocated),
        unattributed=reading.memory.used - listed if reading.memory is not None else 0,
    )
