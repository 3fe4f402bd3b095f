"""Multiply matrices on the tensor cores, in one kind of number, and check every product."""

from __future__ import annotations

import time
from typing import Literal

from sentinel.stressor.context import WorkloadContext
from sentinel.stressor.verification.matmul import choose
from sentinel.stressor.verification.pipeline import ResultPipeline, Verify
from sentinel.stressor.verification.sizing import build, check_seeds

#: How often a seed changes, in seconds, where the ring has gone round by then.
_SEED_SECONDS = 60.0


def gemm(
    ctx: WorkloadContext,
    dtype: Literal["auto", "bf16", "fp16", "tf32", "fp32", "fp64", "fp8", "int8"] = "auto",
    size: int = 0,
    verify: Verify = "full",
    seeds: int = 4,
) -> None:
    """Multiply two matrices for ever and check each product bit for bit.

    Args:
        ctx: The GPU.
        dtype: The kind of number; ``auto`` is bf16, on older GPUs fp16 or fp32.
        size: Rows of square matrices, a multiple of 64; 0 takes the largest that fit into the
            memory and are multiplied within a quantum.
        verify: Which products are checked: every one, one in 16, or none.
        seeds: How many seeds of the inputs take turns; one lasts about a minute.

    Raises:
        ConfigError: The GPU has no units for the dtype, or an option is out of range.
    """
    check_seeds(seeds, "gemm")
    kind = choose(dtype, ctx.device, "gemm")
    (pipeline,) = build(ctx, (kind,), workload="gemm", size=size, verify=verify)
    pipeline.product.draw_ahead(seeds)
    pipeline.prepare(seed=1)
    burn(pipeline, seeds)
    pipeline.settle()


def burn(pipeline: ResultPipeline, seeds: int, seconds: float = _SEED_SECONDS) -> None:
    """Go round until the stop, with one seed after another for so many ``seconds``."""
    while True:
        first, until = pipeline.rounds, time.monotonic() + seconds
        while pipeline.turn():
            if time.monotonic() >= until and pipeline.rounds > first:
                break
        else:
            return
        if not pipeline.close():
            return
        pipeline.open(pipeline.seed % seeds + 1)
