"""Wait until a daemon has started a stressor, or has nothing to start."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from sentinel.client import Client, GpuStatus
from sentinel.errors import ExitCode, SentinelError
from sentinel.protocol.rules import with_time

_POLL_INTERVAL_S = 0.1
#: A GPU that waits for its turn counts as one with nothing to start after so long, in seconds: the
#: shortest waits, for a second reading and for --rearm, end before.
_SHORT_WAIT_S = 30.0

#: The rules by which a GPU waits only for a short time, and those of a GPU that is about to start.
_SHORT_RULES = frozenset({"confirm", "rearm", "idle.wait", "idle.utilization", "allocations"})
_SOON_RULES = frozenset({"idle", "api", "probe", "limits.starts_per_second"})
_NOT_READ = "unknown: not read yet"


class NotProvedError(SentinelError):
    """The daemon runs, and no stressor of it has become ready."""

    exit_code = ExitCode.FAIL


@dataclass(frozen=True, kw_only=True)
class FirstStressor:
    """What a daemon has proved."""

    #: The indices of the GPUs that stressors occupy; None if that was not asked.
    occupied: tuple[int, ...] | None
    #: What the daemon does, as a sentence.
    text: str


def wait_for_stressor(
    client: Client,
    wait: float,
    is_alive: Callable[[], bool],
    *,
    clock: Callable[[], float] = time.monotonic,
) -> FirstStressor:
    """Wait until one stressor is ready, or until no GPU is about to get one.

    Args:
        client: The client of the daemon.
        wait: The longest wait, in seconds.
        is_alive: Checks whether the daemon runs, if it does not answer.
        clock: The clock.

    Raises:
        NotProvedError: Stressors have failed and none is ready, or the time is over.
        SentinelError: The daemon has ended, or does not answer.
    """
    began = clock()
    while True:
        late = clock() - began
        try:
            status = client.status()
        except SentinelError:
            if late > wait or not is_alive():
                raise
            time.sleep(_POLL_INTERVAL_S)  # its API process is replaced
            continue
        if status.daemon.ending:
            raise NotProvedError(f"the daemon ends: {status.daemon.ending}")
        gpus = status.gpus
        occupied = tuple(gpu.index for gpu in gpus if gpu.occupied)
        if occupied:
            text = f"occupies {_names(occupied)}{_rest(gpus, late)}"
            return FirstStressor(occupied=occupied, text=text)
        pending = [gpu for gpu in gpus if _is_pending(gpu, late)]
        failed = [gpu for gpu in gpus if gpu.stressor.upper() in {"BACKOFF", "FATAL"}]
        if failed and not pending:
            raise NotProvedError(f"no stressor has started: {_reasons(failed)}")
        if not pending:
            text = f"has nothing to start: {_reasons(gpus)}" if gpus else "has no GPU"
            return FirstStressor(occupied=(), text=text)
        if late > wait:
            raise NotProvedError(f"no stressor has started within {wait:g} s: {_reasons(pending)}")
        time.sleep(_POLL_INTERVAL_S)


def _is_pending(gpu: GpuStatus, late: float) -> bool:
    """Check whether a GPU has a stressor that is starting, or is about to get one."""
    stressor = gpu.stressor.upper()
    if stressor != "STOPPED":
        return stressor in {"STARTING", "STOPPING"}
    if gpu.rule in _SOON_RULES:
        return True
    if gpu.rule_until_s is not None and late + gpu.rule_until_s > _SHORT_WAIT_S:
        return False
    return late < _SHORT_WAIT_S and (gpu.rule in _SHORT_RULES or gpu.reason.startswith(_NOT_READ))


def _rest(gpus: tuple[GpuStatus, ...], late: float) -> str:
    """Describe the GPUs beside those that are occupied that get a stressor now or soon."""
    starting = [gpu.index for gpu in gpus if gpu.stressor.upper() == "STARTING"]
    waiting = [
        gpu.index
        for gpu in gpus
        if not gpu.occupied and gpu.index not in starting and _is_pending(gpu, late)
    ]
    parts = [
        f"; {_names(indices)} {'is' if len(indices) == 1 else 'are'} {verb}"
        for indices, verb in ((starting, "starting"), (waiting, "about to start"))
        if indices
    ]
    return "".join(parts)


def _reasons(gpus: tuple[GpuStatus, ...] | list[GpuStatus]) -> str:
    """Join the reasons of GPUs, each once, with the GPUs that it is for."""
    by_reason: dict[str, list[int]] = {}
    for gpu in gpus:
        by_reason.setdefault(with_time(gpu.reason, gpu.rule_until_s), []).append(gpu.index)
    return "; ".join(f"{_names(indices)}: {reason}" for reason, indices in by_reason.items())


def _names(indices: tuple[int, ...] | list[int]) -> str:
    return f"GPU {', '.join(map(str, indices))}"
