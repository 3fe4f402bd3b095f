"""Check that a held GPU is watched for newcomers, by its stressor or by the probe. Pure."""

from __future__ import annotations

from sentinel.config.model import Config
from sentinel.core.gpu_state import GpuState
from sentinel.core.observation import WatchTimes
from sentinel.core.stressor_state import Running, Starting, Stopping

#: A stressor whose last look is older does not watch, in seconds. Its thread may wait for the
#: interpreter lock, and NVML for a context that another process creates: 0.1 s on an H200.
SELF_WATCH_TIMEOUT_S = 0.5
#: The limit of the probe while the stressor starts, in seconds: NVML does not answer while it
#: creates its context, for more than 0.09 s on an H200.
STARTING_TIMEOUT_S = 0.5


#: With a longer interval between two reads, probe and stressor do not alternate, in seconds: either
#: may be alone for a moment. Newcomers got their memory from a holder that read every 50 ms.
MAX_ALTERNATION_S = 0.05
#: They do not alternate with one that last read longer ago, in seconds: NVML does not answer for
#: 0.1 s while a context is created.
ALTERNATION_TIMEOUT_S = 0.2


def held_since(gpu_state: GpuState) -> float | None:
    """Return since when a living child may hold memory, or None if none does.

    Before it begins to create its context, a child holds nothing that a newcomer could miss.
    """
    match gpu_state.stressor:
        case Starting(attaching=float(since)) | Running(since=since):
            return since
        case Stopping(exit=None, kill_sent=False, since=since):
            return since
        case _:
            return None


def watches_itself(times: WatchTimes, now: float) -> bool:
    """Check whether the stressor itself would notice a newcomer."""
    return now - times.stressor <= SELF_WATCH_TIMEOUT_S


def alternates(times: WatchTimes, now: float, config: Config) -> bool:
    """Check whether probe and stressor both read the memory, so that each may read half as often.

    Args:
        times: When the memory was last read.
        now: The time.
        config: The configuration, with the interval.
    """
    last = min(times.probe, times.stressor)
    return 2 * config.watch_interval <= MAX_ALTERNATION_S and now - last <= ALTERNATION_TIMEOUT_S


def blind_limit(gpu_state: GpuState, config: Config) -> float:
    """Return for how long the probe may not read a GPU whose stressor does not watch, in s."""
    if isinstance(gpu_state.stressor, Starting):
        return max(config.unwatched_after, STARTING_TIMEOUT_S)
    return config.unwatched_after


def unwatched_for(
    gpu_state: GpuState, times: WatchTimes, now: float, config: Config
) -> float | None:
    """Compute for how long a held GPU has not been watched, in seconds; None within the limit.

    Args:
        gpu_state: The GPU.
        times: When its memory was last read.
        now: The time.
        config: The configuration of this GPU, with the limit.
    """
    since = held_since(gpu_state)
    if since is None or watches_itself(times, now):
        return None
    blind = now - max(since, times.probe, times.stressor, times.supervised)
    return blind if blind > blind_limit(gpu_state, config) else None
