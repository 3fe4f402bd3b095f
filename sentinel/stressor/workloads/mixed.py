"""Multiply in one dtype after another, with phases of memory traffic, and check every result."""

from __future__ import annotations

import time
from itertools import cycle

import torch

from sentinel.config.options import (
    ALL,
    PhaseSeconds,
    Plan,
    Seeds,
    Verify,
    check_plan,
    check_seconds,
    check_seeds,
    split_names,
)
from sentinel.stressor.context import WorkloadContext
from sentinel.stressor.verification.matmul import (
    DTYPES,
    MEMORY,
    Dtype,
    check_capability,
    has_capability,
)
from sentinel.stressor.verification.pipeline import ResultPipeline
from sentinel.stressor.verification.sizing import build

_PHASES: dict[str, Dtype] = {**DTYPES, MEMORY.name: MEMORY}


def mixed(
    ctx: WorkloadContext,
    plan: Plan = ALL,
    seconds: PhaseSeconds = 10.0,
    verify: Verify = "full",
    seeds: Seeds = 4,
) -> None:
    """Run the phases of a plan repeatedly.

    Args:
        ctx: The workload's context.
        plan: Kinds of numbers and ``memory``, with a plus between them, or ``all`` of them.
        seconds: The duration of each phase.
        verify: Which results are checked: every one, one in 16, or none.
        seeds: The number of seeds of the inputs; each pass through the plan uses the next.

    Raises:
        ConfigError: An option is out of range, or the GPU does not support a part of the plan.
    """
    check_seconds(seconds)
    check_seeds(seeds)
    phases = _parse_plan(plan, ctx.device)
    kinds = list(dict.fromkeys(phases))
    pipelines = build(ctx, [_PHASES[name] for name in kinds], workload="mixed", verify=verify)
    by_name = dict(zip(kinds, pipelines, strict=True))
    for pipeline in pipelines:
        pipeline.product.draw_ahead(seeds)
        pipeline.prepare(seed=1)
    for seed in cycle(range(1, seeds + 1)):
        for name in phases:
            if not _run_phase(by_name[name], seed, seconds):
                return


def _run_phase(pipeline: ResultPipeline, seed: int, seconds: float) -> bool:
    """Run one phase; return False if the workload is to return."""
    pipeline.begin_seed(seed)
    until = time.monotonic() + seconds
    while pipeline.step():
        if time.monotonic() >= until:
            return pipeline.finish_seed()
    pipeline.settle()
    return False


def _parse_plan(plan: str, device: torch.device) -> list[str]:
    """Return the names of the phases.

    Raises:
        ConfigError: A phase is unknown, or the GPU does not support it.
    """
    if plan == ALL:
        return [name for name, dtype in _PHASES.items() if has_capability(dtype, device)]
    check_plan(plan)
    names = split_names(plan)
    for name in names:
        check_capability(_PHASES[name], device, "mixed")
    return names
