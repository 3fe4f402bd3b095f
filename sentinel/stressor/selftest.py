"""Prove on a device that the checks find every injected fault, and nothing else.

It does so for every number format and every unit that the device can do.

It runs as a workload, but it is not registered: ``sentinel workloads selftest`` receives
its results.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from torch import Tensor

from sentinel.config.options import ALL, UNITS, split_names
from sentinel.errors import ConfigError
from sentinel.protocol.stressor import FindingPlace, SelftestDone, SelftestResult
from sentinel.stressor.context import WorkloadContext
from sentinel.stressor.diagnosis import FindingReporter
from sentinel.stressor.execution_units import usable_units
from sentinel.stressor.injection import Fault, FaultKind, draw_fault, draw_kinds
from sentinel.stressor.matmul import Dtype
from sentinel.stressor.pipeline import ResultPipeline
from sentinel.stressor.pointer_chase import GATHER, PointerChase
from sentinel.stressor.sizing import build, choose_dtypes

#: Rows of the matrices: large enough for tensor cores, and small enough for quick diagnoses.
_SIZE = 2048

#: The same on a simulated GPU, which emulates fp8 at 60 ns per multiplication.
_SIMULATED_SIZE = 16

#: The seed that faults are drawn from, the same in every run.
_SEED = 20_260_101

#: The most passes of the gather without a fault: each reads all of the memory, in a second or two.
_CLEAN_PASSES = 10

#: The interval at which a finished selftest checks for a stop.
_REST_S = 0.05


def selftest(
    ctx: WorkloadContext, *, flips: int, rounds: int, dtypes: str = ALL, size: int = 0
) -> None:
    """Inject faults in every dtype and every kind of matrix, and send how many were found.

    Args:
        ctx: The workload's context.
        flips: Faults to inject, one after another, in each kind of matrix of each dtype.
        rounds: Results of each dtype to compute and check without a fault.
        dtypes: Dtypes and units with plus signs between them, or all that the GPU supports.
        size: Rows of the matrices; 0 chooses.

    Raises:
        ConfigError: A dtype or a unit is unknown, or the GPU does not support it.
    """
    size = size or (_SIZE if ctx.device.type == "cuda" else _SIMULATED_SIZE)
    kinds, chased = _chosen(ctx, dtypes)
    ctx.inject_faults = True
    pipelines = build(ctx, kinds, workload="selftest", size=size)
    for pipeline in pipelines:
        pipeline.prepare(seed=1)
    chase = PointerChase(ctx, FindingReporter(ctx, "selftest")) if chased else None
    if chase is not None:
        chase.prove()
    while not ctx.ready:
        if not ctx.pace():
            return
    for pipeline in pipelines:
        if not _prove(ctx, pipeline, flips, rounds):
            return
    if chase is not None and not _prove_chase(ctx, chase, flips, rounds):
        return
    ctx.send(SelftestDone())
    while ctx.pace(_REST_S):  # a workload that returns has failed
        pass


def _chosen(ctx: WorkloadContext, text: str) -> tuple[list[Dtype], bool]:
    """Return the dtypes and units of ``text``, and whether the gather is one of them."""
    if text == ALL:
        return [*choose_dtypes(ALL, ctx.device, "selftest"), *usable_units(ctx, UNITS)[0]], True
    names = list(dict.fromkeys(split_names(text)))
    units, reasons = usable_units(ctx, names)
    for name, reason in reasons.items():
        raise ConfigError(f"selftest: {name}: {reason}")
    dtypes = [name for name in names if name not in UNITS]
    kinds = choose_dtypes("+".join(dtypes), ctx.device, "selftest") if dtypes else []
    return [*kinds, *units], GATHER in names


def _prove_chase(ctx: WorkloadContext, chase: PointerChase, flips: int, rounds: int) -> bool:
    """Run all trials of the gather; return False if the workload is to return."""
    draw = random.Random(f"{_SEED} {GATHER}")  # noqa: S311 - places, not secrets
    tried, found = Counter[str](), Counter[str]()
    for number in range(flips):
        kind = (FaultKind.SINGLE, FaultKind.MULTIPLE)[number % 2]
        tried[kind] += 1
        found[kind] += chase.finds_exactly(kind, draw)
        if not ctx.drain():
            return False
    ctx.send(
        SelftestResult(
            dtype=GATHER,
            place="memory",
            tried=flips,
            found=found.total(),
            tried_by_kind=tried,
            found_by_kind=found,
        )
    )
    passes = min(rounds, _CLEAN_PASSES)
    wrong = sum(not chase.finds_exactly(None, draw) for _ in range(passes) if ctx.drain())
    ctx.send(SelftestResult(dtype=GATHER, place="clean", tried=passes, found=wrong))
    return ctx.drain()


def _prove(ctx: WorkloadContext, pipeline: ResultPipeline, flips: int, rounds: int) -> bool:
    """Run all trials of one dtype; return False if the workload is to return."""
    pipeline.begin_seed(seed=1)
    dtype = pipeline.product.dtype.name
    trials: list[tuple[str, FindingPlace, Callable[[random.Random], Tensor]]] = [
        ("result", FindingPlace.RESULT, lambda _: pipeline.newest()),
        (
            "memory",
            FindingPlace.RESULT,
            lambda draw: pipeline.newest(draw.randrange(pipeline.unchecked)),
        ),
        ("input", FindingPlace.INPUT, lambda draw: draw.choice(pipeline.product.inputs)),
        ("reference", FindingPlace.REFERENCE, lambda _: pipeline.product.reference),
    ]
    for name, place, choose in trials:
        draw = random.Random(f"{_SEED} {dtype} {name}")  # noqa: S311 - places, not secrets
        tried, found = Counter[str](), Counter[str]()
        for kind in draw_kinds(flips, draw):
            fault, is_found = _find_one(pipeline, place, choose, kind, draw)
            tried[fault.kind] += 1
            found[fault.kind] += is_found
            if pipeline.inspector.stopped:
                return False
        ctx.send(
            SelftestResult(
                dtype=dtype,
                place=name,
                tried=flips,
                found=found.total(),
                tried_by_kind=tried,
                found_by_kind=found,
            )
        )
    with pipeline.examiner.reporter.withhold() as findings:
        checked = pipeline.compute_unpaced(rounds)
        pipeline.finish_seed()
    ctx.send(SelftestResult(dtype=dtype, place="clean", tried=checked, found=len(findings)))
    return not pipeline.inspector.stopped


def _find_one(
    pipeline: ResultPipeline,
    place: FindingPlace,
    choose: Callable[[random.Random], Tensor],
    kind: FaultKind,
    draw: random.Random,
) -> tuple[Fault, bool]:
    """Inject a fault and compute a round; return it, and whether exactly this was found."""
    pipeline.compute_unpaced(draw.randrange(1, len(pipeline.slots)))
    matrix = choose(draw)
    fault = draw_fault(kind, matrix, draw)
    fault.inject(matrix)
    with pipeline.examiner.reporter.withhold() as findings:
        pipeline.compute_unpaced(len(pipeline.slots))
        pipeline.finish_seed()
    first = pipeline.product.coordinates(matrix, fault.elements[0])
    right = (place, len(fault.elements), first, fault.counts(8 * matrix.element_size()))
    found = [(found.place, found.count, found.first, found.bits) for found in findings]
    return fault, found == [right]
