"""Prove on a device that its checks find every flipped bit, and nothing where nothing is wrong.

A workload like any other, but for what it has to say: how each trial went. It is named by its
place and not registered, since nobody learns of that but who listens for it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sentinel.errors import ConfigError
from sentinel.protocol.stressor import Finding, FindingPlace, SelftestDone, SelftestResult
from sentinel.stressor.context import WorkloadContext
from sentinel.stressor.verification.comparison import flip
from sentinel.stressor.verification.matmul import DTYPES, check_capability, has_capability
from sentinel.stressor.verification.pipeline import ResultPipeline
from sentinel.stressor.verification.sizing import build

#: Rows of the matrices. Large enough for the tensor cores on a real GPU, and quickly examined.
_REAL, _PRETENDED = 2048, 64

#: The bits are drawn from this seed, the same in every run.
_SEED = 20_260_101

#: How long to sleep between two looks for the order to end, in seconds.
_REST = 0.05


def selftest(
    ctx: WorkloadContext, *, flips: int, rounds: int, dtypes: str = "", size: int = 0
) -> None:
    """Flip bits in every kind of number and every place, count those that are found, and say so.

    Args:
        ctx: The GPU.
        flips: How many bits, one after another, in each place of each kind.
        rounds: How many results of each kind are computed and checked with nothing flipped.
        dtypes: Kinds of numbers with a plus between them; none means all that the GPU can do.
        size: Rows of the matrices; 0 chooses.

    Raises:
        ConfigError: There is no such kind, or the GPU cannot do it.
    """
    names = _read(dtypes, ctx.device)
    size = size or (_REAL if ctx.device.type == "cuda" else _PRETENDED)
    pipelines = build(ctx, [DTYPES[name] for name in names], workload="selftest", size=size)
    for pipeline in pipelines:
        pipeline.prepare(seed=1)
    while not ctx.ready:
        if not ctx.pace():
            return
    for pipeline in pipelines:
        if not _prove(ctx, pipeline, flips, rounds):
            return
    ctx.tell(SelftestDone())
    while ctx.pace(_REST):  # a workload that returns has failed
        pass


def _prove(ctx: WorkloadContext, pipeline: ResultPipeline, flips: int, rounds: int) -> bool:
    """Go through all trials of one kind of number; return whether to go on."""
    pipeline.open(seed=1)
    dtype = pipeline.product.dtype.name
    trials: list[tuple[str, FindingPlace, Callable[[random.Random], Tensor]]] = [
        ("result", FindingPlace.RESULT, lambda _: _lying(pipeline, 0)),
        (
            "memory",
            FindingPlace.RESULT,
            lambda draw: _lying(pipeline, draw.randrange(pipeline.unchecked)),
        ),
        ("input", FindingPlace.INPUT, lambda draw: draw.choice(pipeline.product.inputs)),
        ("reference", FindingPlace.REFERENCE, lambda _: pipeline.product.reference),
    ]
    for name, place, choose in trials:
        draw = random.Random(f"{_SEED} {dtype} {name}")  # noqa: S311 - places, not secrets
        found = 0
        for _ in range(flips):
            found += _find_one(pipeline, place, choose, draw)
            if pipeline.instruments.stopped:
                return False
        ctx.tell(SelftestResult(dtype=dtype, place=name, tried=flips, found=found))
    with pipeline.examiner.reports.withhold() as findings:
        checked = pipeline.go_on(rounds)
        pipeline.close()
    ctx.tell(SelftestResult(dtype=dtype, place="clean", tried=checked, found=len(findings)))
    return not pipeline.instruments.stopped


def _lying(pipeline: ResultPipeline, back: int) -> Tensor:
    """Return a result that was not checked yet; 0 is the newest."""
    return pipeline.places[(pipeline.written - 1 - back) % len(pipeline.places)]


def _find_one(
    pipeline: ResultPipeline,
    place: FindingPlace,
    choose: Callable[[random.Random], Tensor],
    draw: random.Random,
) -> bool:
    """Flip one bit and go on for a round; return whether that and nothing else was found."""
    pipeline.go_on(draw.randrange(1, len(pipeline.places)))
    matrix = choose(draw)
    element, bit = draw.randrange(matrix.numel()), draw.randrange(8 * matrix.element_size())
    flip(matrix, element, bit)
    with pipeline.examiner.reports.withhold() as findings:
        pipeline.go_on(len(pipeline.places))
        pipeline.close()
    bits = tuple(int(number == bit) for number in range(8 * matrix.element_size()))
    right = (place, 1, pipeline.product.coordinates(matrix, element), bits)
    return _looks(findings) == [right]


def _looks(findings: Sequence[Finding]) -> list[tuple[object, ...]]:
    return [(finding.place, finding.count, finding.first, finding.bits) for finding in findings]


def _read(dtypes: str, device: torch.device) -> list[str]:
    """Return the kinds to prove.

    Raises:
        ConfigError: There is no such kind, or the GPU cannot do it.
    """
    if not dtypes:
        return [name for name, dtype in DTYPES.items() if has_capability(dtype, device)]
    names = list(dict.fromkeys(dtypes.split("+")))
    for name in names:
        if name not in DTYPES:
            known = ", ".join(DTYPES)
            raise ConfigError(f"selftest: there is no dtype {name!r}", f"There are {known}.")
        check_capability(DTYPES[name], device, "selftest")
    return names
