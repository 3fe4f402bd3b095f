"""Compare the used memory of a GPU with what its processes account for. Pure."""

from __future__ import annotations

from sentinel.config.model import Config
from sentinel.core.gpu_state import GpuState
from sentinel.core.stressor_state import Running, Starting, Stopping
from sentinel.protocol.gpu import Reading

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
