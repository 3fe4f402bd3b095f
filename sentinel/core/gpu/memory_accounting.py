"""How much of a GPU's used memory somebody listed accounts for. Pure."""

from __future__ import annotations

from sentinel.config.model import Config
from sentinel.core.identity import OwnChild, is_ours
from sentinel.core.state import GpuState, Running, Starting, Stopping
from sentinel.protocol.gpu import Reading

#: Growth up to this many bytes is nobody. On an H200 the driver's figure did not move beside NVML
#: clients, and by 64 KiB for a moment while CUDA programs started on other GPUs of the host; a
#: newcomer's first growth is larger (docs/handing-over.md).
SLACK = 2**20

#: Memory that no process accounts for and that is nobody's, unless ``idle.memory`` says otherwise,
#: in bytes: where every process is listed, and where some may not be. Any CUDA context takes more
#: than the latter, 527 MiB on an H200 (an empty one's total less what a newcomer finds free there,
#: benchmarks/measured), and nvidia-smi shows 0 MiB on an idle H200.
UNATTRIBUTED_LISTED = 2**30
UNATTRIBUTED_HIDDEN = 32 * 2**20

#: How much memory the driver itself takes once a GPU is in use, and names nobody for, in bytes. On
#: an H200 it is 8.8 MiB, whatever a stressor takes besides; a newcomer's context is 25 MiB more
#: before it is listed, and that some 120 ms before its first allocation.
OVERHEAD = 16 * 2**20


def unattributed_memory(reading: Reading) -> int:
    """Return how much memory is in use that no listed process holds, in bytes."""
    named = sum(process.memory or 0 for process in reading.processes or ())
    return reading.memory.used - named if reading.memory is not None else 0


def foreign_memory(gpu_state: GpuState, reading: Reading, child: OwnChild | None) -> int:
    """Return how much of the used memory is not our stressor's, in bytes.

    By what the driver says that our own processes hold; where it does not say, by what was there
    before our stressor came.
    """
    used = reading.memory.used if reading.memory is not None else 0
    if child is None:
        return used
    own = [process.memory for process in reading.processes or () if is_ours(process, child)]
    if any(own):
        return max(0, used - sum(amount or 0 for amount in own))
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
    """Return how much memory that nobody accounts for is nobody's, in bytes."""
    if config.idle_memory is not None:
        return config.idle_memory
    return UNATTRIBUTED_LISTED if gpu_state.identity.complete else UNATTRIBUTED_HIDDEN
