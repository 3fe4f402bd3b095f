"""Go back and forth between full load and rest, to shake power supplies and regulators.

The load is that of gemm, and every product is checked as there. At both edges all of the device
changes at once: a phase of load begins on an idle device, and ends when its last product is done.
"""

from __future__ import annotations

import time

from sentinel.errors import ConfigError
from sentinel.stressor.context import WorkloadContext
from sentinel.stressor.verification.matmul import AUTO, choose
from sentinel.stressor.verification.pipeline import ResultPipeline
from sentinel.stressor.verification.sizing import build

_SLOWEST, _FASTEST = 0.5, 10.0
_LEAST, _MOST = 0.1, 0.9


def pulse(ctx: WorkloadContext, *, hz: float = 1.0, duty: float = 0.5, size: int = 0) -> None:
    """Multiply matrices for a part of each period, and rest for the other.

    Args:
        ctx: The GPU.
        hz: Periods a second, from 0.5 to 10.
        duty: The share of a period under load, from 0.1 to 0.9.
        size: Rows of the square matrices, as for gemm.
    """
    if not _SLOWEST <= hz <= _FASTEST:
        raise ConfigError(f"pulse: hz={hz:g} is out of range; allowed is from 0.5 to 10")
    if not _LEAST <= duty <= _MOST:
        raise ConfigError(f"pulse: duty={duty:g} is out of range; allowed is from 0.1 to 0.9")
    kind = choose(AUTO, ctx.device, "pulse")
    (pipeline,) = build(ctx, (kind,), workload="pulse", size=size)
    pipeline.prepare(seed=1)
    while not ctx.ready:  # until then pace waits for all that was queued
        if not pipeline.turn(at_most=1):
            return
    begin = time.monotonic()
    while load(pipeline, begin + duty / hz):
        # Where a phase took longer than its period, whole periods are left out.
        begin += (1 + max(0, int((time.monotonic() - begin) * hz))) / hz
        if not ctx.pace(rest=max(0.0, begin - time.monotonic())):
            break
    pipeline.settle()


def load(pipeline: ResultPipeline, end: float) -> bool:
    """Keep the device under full load until ``end``, and then wait until it is idle.

    Args:
        pipeline: Where the products go.
        end: A time of the monotonic clock. The last product ends within half of one of it.

    Returns:
        False once the workload is to return.
    """
    queued = 0.0  # what was queued last is not done yet when a turn ends
    while (left := end - time.monotonic() - queued) > pipeline.seconds / 2 or not queued:
        products = max(1, min(pipeline.per_quantum, round(left / pipeline.seconds)))
        queued = products * pipeline.seconds
        if not pipeline.turn(at_most=products):
            return False
    pipeline.settle()
    return not pipeline.instruments.stopped
