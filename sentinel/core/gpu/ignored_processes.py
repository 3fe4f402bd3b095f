"""Which processes that are not ours make a GPU busy, and which are let be and why. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from sentinel.config.model import Config
from sentinel.core.gpu.allocations import guests
from sentinel.core.identity import OwnChild, ResidentProcess, is_ours
from sentinel.core.state import GpuState, Running, Starting, Stopping
from sentinel.protocol.gpu import GpuProcess, ProcessKind, Reading

#: Graphics processes below this many bytes together share a GPU with us: an X server that only
#: shows a login screen holds a few MiB on every GPU.
GRAPHICS_ALLOWANCE = 100 * 2**20

#: For how long a process must have been there without growing before a rule by size covers it, in
#: seconds. Every newcomer is small until milliseconds before its large allocation.
STEADY = 60.0
#: By how many bytes a process may change and still be steady.
STEADINESS = 2**20

#: The kernel keeps 15 characters of ``nvidia-cuda-mps-server``.
MPS_SERVER = "nvidia-cuda-mps"


def foreign_processes(
    gpu_state: GpuState, reading: Reading, child: OwnChild | None, config: Config
) -> tuple[GpuProcess, ...]:
    """Return the processes that make a GPU busy: all that are not ours and are not let be."""
    others = tuple(p for p in reading.processes or () if not is_ours(p, child))
    spared = let_be(gpu_state, others, reading.processes_at, config)
    return tuple(process for process in others if process.pid not in spared)


def let_be(
    gpu_state: GpuState, others: tuple[GpuProcess, ...], at: float, config: Config
) -> dict[int, str]:
    """Return by PID which of the processes that are not ours make no GPU busy, and why not.

    Names and users count only where /proc is known to speak of the processes that NVML lists.

    Args:
        gpu_state: The GPU, with who has been on it for how long.
        others: The processes.
        at: When they were read.
        config: What holds for this GPU.
    """
    if not others:
        return {}
    graphics = [process for process in others if process.kind is ProcessKind.GRAPHICS]
    spared = {}
    if config.yield_to == "compute":
        spared = {process.pid: "graphics (yield_to = compute)" for process in graphics}
    elif _are_light(graphics):
        spared = {process.pid: "light graphics" for process in graphics}
    if not gpu_state.identity.names_known:
        return spared
    for pid, promise in guests(gpu_state, others).items():
        spared[pid] = f"a guest: memory was promised to it ({promise})"
    for process in others:
        if process.name == MPS_SERVER and process.kind is ProcessKind.COMPUTE:
            spared[process.pid] = "an MPS server, whose clients are listed themselves"
        for rule in config.ignore:
            if rule.matches(process) and (
                rule.max_bytes is None or _is_steady(gpu_state, process, at)
            ):
                spared[process.pid] = f"ignored by {rule}"
    return spared


def not_yet(
    gpu_state: GpuState, others: tuple[GpuProcess, ...], at: float, config: Config
) -> dict[int, str]:
    """Return by PID which processes a rule by size may let be later, and what it waits for."""
    spared = let_be(gpu_state, others, at, config)
    rules = [rule for rule in config.ignore if rule.max_bytes is not None]
    return {
        process.pid: f"{rule} lets it be once it has been steady for {STEADY:g} s"
        for process in others
        for rule in rules
        if process.pid not in spared and gpu_state.identity.names_known and rule.matches(process)
    }


def _are_light(graphics: list[GpuProcess]) -> bool:
    """Return whether they are known to hold little together; what nobody tells is not little."""
    amounts = [process.memory for process in graphics]
    return None not in amounts and sum(a for a in amounts if a is not None) <= GRAPHICS_ALLOWANCE


def _is_steady(gpu_state: GpuState, process: GpuProcess, at: float) -> bool:
    """Return whether it was steady for long enough, and already was when our stressor came."""
    resident = gpu_state.resident_processes.get(process.pid)
    if resident is None or resident.started is None or resident.started != process.started:
        return False
    until = (
        gpu_state.started if isinstance(gpu_state.stressor, Starting | Running | Stopping) else at
    )
    return resident.since + STEADY <= until


def resident_processes(
    gpu_state: GpuState, reading: Reading | None, config: Config
) -> Mapping[int, ResidentProcess]:
    """Return who has been on a GPU for how long without growing; nobody where no rule asks."""
    if not any(rule.max_bytes is not None for rule in config.ignore):
        return {}
    if reading is None or reading.processes is None:
        return {}  # who knows what they did meanwhile?
    return {
        p.pid: _resident(gpu_state.resident_processes.get(p.pid), p, reading)
        for p in reading.processes
    }


def _resident(
    before: ResidentProcess | None, process: GpuProcess, reading: Reading
) -> ResidentProcess:
    """Return what is known of one process: as before, or since just now if it is another."""
    if before is not None and process.memory is not None and before.memory is not None:
        grown = abs(process.memory - before.memory)
        if grown <= STEADINESS and before.started == process.started:
            return before
    at = reading.processes_at
    return ResidentProcess(started=process.started, since=at, memory=process.memory)
