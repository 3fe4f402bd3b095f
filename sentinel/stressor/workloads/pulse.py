"""Alternate between full load and rest, to stress power supplies and regulators.

The load is that of gemm, and every product is checked. At both edges the load of the whole device
changes at once: a phase starts on an idle device, and ends when its last product is done.

All processes of a host share the monotonic clock. Periods that begin at its whole multiples, for
example, are the same in every stressor, whenever each was started, and without any message.
"""

from __future__ import annotations

import math
import time

from sentinel.config.options import Duty, Hz, Size, Sync, check_duty, check_hz
from sentinel.stressor.context import WorkloadContext
from sentinel.stressor.verification.matmul import AUTO, choose_dtype
from sentinel.stressor.verification.pipeline import ResultPipeline
from sentinel.stressor.verification.sizing import build

#: The share of a period by which a time may be wrong: rounding is far below, jitter far above.
_ROUNDING = 1e-3


def pulse(
    ctx: WorkloadContext,
    *,
    hz: Hz = 1.0,
    duty: Duty = 0.5,
    size: Size = 0,
    sync: Sync = "off",
) -> None:
    """Multiply matrices for a part of each period, and rest for the other.

    Args:
        ctx: The workload's context.
        hz: Periods per second, from 0.5 to 10.
        duty: The share of a period under load, from 0.1 to 0.9.
        size: Rows of the square matrices, as for gemm.
        sync: ``in-phase`` has all GPUs of the host pulse at once, ``out-of-phase`` those of an odd
            index half a period later than the others.
    """
    check_hz(hz)
    check_duty(duty)
    kind = choose_dtype(AUTO, ctx.device, "pulse")
    (pipeline,) = build(ctx, (kind,), workload="pulse", size=size)
    pipeline.prepare(seed=1)
    while not ctx.ready:  # until then pace waits for all queued work
        if not pipeline.step(at_most=1):
            return
    if sync == "off":
        begin = origin = time.monotonic()
    else:
        origin = shift_s(sync, ctx.index, hz)
        begin = next_begin(origin, hz, time.monotonic())
        ctx.pace(rest=max(0.0, begin - time.monotonic()))
    while run_load_phase(pipeline, begin + duty / hz):
        # Skip whole periods if a phase took longer than one.
        begin = next_begin(origin, hz, max(time.monotonic(), begin))
        if not ctx.pace(rest=max(0.0, begin - time.monotonic())):
            break
    pipeline.settle()


def shift_s(sync: Sync, index: int, hz: float) -> float:
    """Compute how much later than a multiple of the period the periods of a GPU begin, in seconds.

    Args:
        sync: ``in-phase`` or ``out-of-phase``.
        index: The GPU's index on its host.
        hz: Periods per second.
    """
    return index % 2 / (2 * hz) if sync == "out-of-phase" else 0.0


def next_begin(origin: float, hz: float, now: float) -> float:
    """Compute when the first period begins that is more than a thousandth of one after ``now``.

    Rounded times may be too early, and no period is to be done twice.

    Args:
        origin: When some period begins, in seconds of the monotonic clock, as is ``now``.
        hz: Periods per second.
        now: The present time.
    """
    return origin + (math.floor((now - origin) * hz + _ROUNDING) + 1) / hz


def run_load_phase(pipeline: ResultPipeline, end: float) -> bool:
    """Keep the device under full load until ``end``, then wait until it is idle.

    Args:
        pipeline: The pipeline to step.
        end: A monotonic time. The last product ends within half its duration of it.

    Returns:
        False if the workload is to return.
    """
    queued = 0.0  # the last step's work is still running when the step returns
    while (left := end - time.monotonic() - queued) > pipeline.seconds / 2 or not queued:
        products = max(1, min(pipeline.per_quantum, round(left / pipeline.seconds)))
        queued = products * pipeline.seconds
        if not pipeline.step(at_most=products):
            return False
    pipeline.settle()
    return not pipeline.inspector.stopped
