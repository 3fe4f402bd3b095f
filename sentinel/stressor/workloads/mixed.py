"""Multiply in one kind of number after another, with phases of traffic, and check every result."""

from __future__ import annotations

import time
from itertools import cycle

import torch

from sentinel.errors import ConfigError
from sentinel.stressor.context import WorkloadContext
from sentinel.stressor.verification.matmul import (
    DTYPES,
    MEMORY,
    Dtype,
    check_capability,
    has_capability,
)
from sentinel.stressor.verification.pipeline import ResultPipeline, Verify
from sentinel.stressor.verification.sizing import build, check_seeds

_KINDS: dict[str, Dtype] = {**DTYPES, MEMORY.name: MEMORY}

#: The plan of all that the GPU can do.
_ALL = "all"

#: How long a phase may be, in seconds.
_SHORTEST, _LONGEST = 0.1, 3600.0


def mixed(
    ctx: WorkloadContext,
    plan: str = _ALL,
    seconds: float = 10.0,
    verify: Verify = "full",
    seeds: int = 4,
) -> None:
    """Go through the phases of a plan, again and again.

    Args:
        ctx: The GPU.
        plan: Kinds of numbers and ``memory``, with a plus between them, or ``all`` of them.
        seconds: How long each phase is.
        verify: Which results are checked: every one, one in 16, or none.
        seeds: How many seeds of the inputs take turns, one for each pass through the plan.

    Raises:
        ConfigError: An option is out of range, or the GPU cannot do a part of the plan.
    """
    if not _SHORTEST <= seconds <= _LONGEST:
        what = f"mixed: seconds={seconds:g} is out of range"
        raise ConfigError(what, f"allowed is from {_SHORTEST:g} to {_LONGEST:g}")
    check_seeds(seeds, "mixed")
    phases = _read(plan, ctx.device)
    kinds = list(dict.fromkeys(phases))
    pipelines = build(ctx, [_KINDS[name] for name in kinds], workload="mixed", verify=verify)
    by_name = dict(zip(kinds, pipelines, strict=True))
    for pipeline in pipelines:
        pipeline.product.draw_ahead(seeds)
        pipeline.prepare(seed=1)
    for seed in cycle(range(1, seeds + 1)):
        for name in phases:
            if not _phase(by_name[name], seed, seconds):
                return


def _phase(pipeline: ResultPipeline, seed: int, seconds: float) -> bool:
    """Go round in one kind for so many seconds; return whether to go on."""
    pipeline.open(seed)
    until = time.monotonic() + seconds
    while pipeline.turn():
        if time.monotonic() >= until:
            return pipeline.close()
    pipeline.settle()
    return False


def _read(plan: str, device: torch.device) -> list[str]:
    """Return the names of the phases.

    Raises:
        ConfigError: There is no such phase, or the GPU cannot do it.
    """
    if plan == _ALL:
        return [name for name, dtype in _KINDS.items() if has_capability(dtype, device)]
    names = [name.strip() for name in plan.split("+")]
    for name in names:
        if name not in _KINDS:
            known = ", ".join(_KINDS)
            what = f"mixed: there is no {name!r} in plan={plan!r}"
            raise ConfigError(what, f"Write some of {known} with a plus between them, or {_ALL}.")
        check_capability(_KINDS[name], device, "mixed")
    return names
