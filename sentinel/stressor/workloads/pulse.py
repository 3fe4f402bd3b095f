"""Go back and forth between full load and rest, to shake power supplies and regulators.

The load is that of gemm, and every product is checked as there. At both edges all of the device
changes at once: a phase of load begins on an idle device, and ends when its last product is done.
"""

from __future__ import annotations

import time

from sentinel.errors import ConfigError
from sentinel.stressor.context import WorkloadContext
from sentinel.stressor.workloads.gemm import Ring, ring_for

__all__ = ["pulse"]

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
    ring = ring_for(ctx, size)
    ring.prepare()
    seconds = max(ctx.measure(ring.multiply), 1e-6)
    while not ctx.ready:  # until then pace waits for all that was queued
        work(ctx, ring, 1)
        if not ctx.pace():
            return
    begin = time.monotonic()
    while load(ctx, ring, seconds, begin + duty / hz):
        # Where a phase took longer than its period, whole periods are left out.
        begin += (1 + max(0, int((time.monotonic() - begin) * hz))) / hz
        if not ctx.pace(rest=max(0.0, begin - time.monotonic())):
            break
    ctx.report(iterations=0, errors=ring.comparison.errors.last_news())


def load(ctx: WorkloadContext, ring: Ring, seconds: float, end: float) -> bool:
    """Keep the device under full load until ``end``, and then wait until it is idle.

    Args:
        ctx: The GPU.
        ring: Where the products go.
        seconds: What one of them takes.
        end: A time of the monotonic clock. The last product ends within half of one of it.

    Returns:
        False once the workload is to return.
    """
    most = max(1, round(ctx.quantum / seconds))
    queued = 0.0  # what was queued last is not done yet when pace returns
    while (left := end - time.monotonic() - queued) > seconds / 2 or not queued:
        products = max(1, min(most, round(left / seconds)))
        queued = products * seconds
        work(ctx, ring, products)
        if not ctx.pace():
            return False
    return ctx.pace()


def work(ctx: WorkloadContext, ring: Ring, products: int) -> None:
    """Queue some products and report them."""
    checks = sum(ring.step() for _ in range(products))
    ctx.report(
        iterations=products,
        flops=ring.flops * products,
        checks=checks,
        errors=ring.comparison.errors.news(),
    )
