"""Attribute the processes and the memory of one reading to their owners. Pure."""

from __future__ import annotations

from sentinel.config.model import Config
from sentinel.core.gpu.allocations import allocated_processes, charged_memory
from sentinel.core.gpu.ignored_processes import ignored_processes
from sentinel.core.gpu_state import Attribution, GpuState
from sentinel.core.identity import is_own
from sentinel.protocol.gpu import GpuProcess, Reading


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
