"""Multiply matrices on the tensor cores in one dtype, and check every product."""

from __future__ import annotations

import time

from sentinel.config.options import GemmDtype, Seeds, Size, Verify, check_seeds
from sentinel.stressor.context import WorkloadContext
from sentinel.stressor.verification.matmul import choose_dtype
from sentinel.stressor.verification.pipeline import ResultPipeline
from sentinel.stressor.verification.sizing import build

#: The minimum duration of a seed, which ends with a full round of the ring.
_SEED_DURATION_S = 60.0


def gemm(
    ctx: WorkloadContext,
    dtype: GemmDtype = "auto",
    size: Size = 0,
    verify: Verify = "full",
    seeds: Seeds = 4,
) -> None:
    """Multiply two matrices repeatedly, and check each product bit for bit.

    Args:
        ctx: The workload's context.
        dtype: The kind of number; ``auto`` is bf16, on older GPUs fp16 or fp32.
        size: Rows of square matrices, a multiple of 64; 0 takes the largest that fit into the
            memory and are multiplied within a quantum.
        verify: Which products are checked: every one, one in 16, or none.
        seeds: The number of seeds of the inputs; each is used for about a minute.

    Raises:
        ConfigError: The GPU does not support the dtype, or an option is out of range.
    """
    check_seeds(seeds)
    kind = choose_dtype(dtype, ctx.device, "gemm")
    (pipeline,) = build(ctx, (kind,), workload="gemm", size=size, verify=verify)
    pipeline.product.draw_ahead(seeds)
    pipeline.prepare(seed=1)
    run_seeds(pipeline, seeds)
    pipeline.settle()


def run_seeds(pipeline: ResultPipeline, seeds: int, seconds: float = _SEED_DURATION_S) -> None:
    """Step the pipeline until the stop, changing the seed after ``seconds`` and a full round."""
    while True:
        first, until = pipeline.rounds, time.monotonic() + seconds
        while pipeline.step():
            if time.monotonic() >= until and pipeline.rounds > first:
                break
        else:
            return
        if not pipeline.finish_seed():
            return
        pipeline.begin_seed(pipeline.seed % seeds + 1)
