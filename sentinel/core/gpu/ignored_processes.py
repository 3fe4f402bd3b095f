"""Decide which foreign processes are ignored, by kind, name, user or memory. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sentinel.config.model import Config
from sentinel.core.gpu_state import GpuState
from sentinel.core.identity import ResidentProcess
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
