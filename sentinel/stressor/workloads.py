"""The built-in workloads that hold memory, read and write it, or multiply matrices.

They are registered as entry points in ``sentinel.workloads``, as are ``links`` and ``memtest``.
"""

from __future__ import annotations

import math
import time
from itertools import cycle, islice

import torch

from sentinel.config.options import (
    ALL,
    Burst,
    Duty,
    GemmDtype,
    Hz,
    PhaseSeconds,
    Plan,
    Seeds,
    Size,
    Sync,
    UnitPlan,
    Verify,
    split_names,
)
from sentinel.config.options import UNITS as UNIT_NAMES
from sentinel.errors import ConfigError
from sentinel.protocol.stressor import UnitExercised
from sentinel.stressor.context import WorkloadContext
from sentinel.stressor.diagnosis import FindingReporter
from sentinel.stressor.execution_units import usable_units
from sentinel.stressor.matmul import PHASES, Dtype
from sentinel.stressor.pipeline import ResultPipeline
from sentinel.stressor.pointer_chase import GATHER, PointerChase
from sentinel.stressor.rehearsal import rehearsed
from sentinel.stressor.sizing import (
    AUTO,
    build,
    choose_dtype,
    choose_dtypes,
    rehearse_checks,
    rehearse_product,
    size_for,
)

#: The weight of the noise in one operation. GPU Sentinel's jitter, ``x - x * 1e-4 + x * 1e-4 * r``,
#: has the same weight and needs three temporaries.
_WEIGHT = 1e-4

#: Bytes of one float32, times two for the halves of a single chunk.
_GRAIN = 8

#: The minimum duration of a seed, which ends with a full round of the ring.
_SEED_DURATION_S = 60.0

#: The seeds of the inputs of ``units``.
UNIT_SEEDS = 4

#: How many products a short load has or more: with half a product, it ends at the right time.
_PRODUCTS = 2

#: How many products in a row are measured for a burst.
_CALIBRATED = 8

#: The share of a period by which a time may be wrong: rounding is far below, jitter far above.
_ROUNDING = 1e-3


@rehearsed(lambda _ctx: None)
def hold(ctx: WorkloadContext) -> None:
    """Keep the memory occupied; the GPU stays cool."""
    while ctx.pace(rest=0.05):
        ctx.report()


def _rehearse_elementwise(ctx: WorkloadContext) -> None:
    noise, held = (chunk.view(torch.float32) for chunk in ctx.chunks[:2])
    held.normal_()
    held.lerp_(noise, _WEIGHT)


@rehearsed(_rehearse_elementwise)
def elementwise(ctx: WorkloadContext) -> None:
    """Mix fixed normal noise into one chunk after another, in place.

    A value between its previous value and its noise stays bounded. Each operation reads a chunk and
    the noise and writes the chunk: three times its size in traffic.
    """
    pieces = ctx.chunks
    if len(pieces) == 1:
        half = pieces[0].numel() // _GRAIN * _GRAIN // 2
        pieces = [pieces[0][:half], pieces[0][half : 2 * half]]
    noise, *held = (piece.view(torch.float32) for piece in pieces)
    for values in (noise, *held):
        values.normal_()
    seconds = ctx.measure(lambda: held[0].lerp_(noise, _WEIGHT))
    repeats = max(1, int(ctx.quantum / max(seconds, 1e-6)))
    endless = cycle(held)
    while ctx.pace():
        for values in islice(endless, repeats):
            values.lerp_(noise, _WEIGHT)
        ctx.report(iterations=repeats, bytes=3.0 * noise.nbytes * repeats)


def _rehearse_gemm(
    ctx: WorkloadContext, dtype: GemmDtype, size: Size, verify: Verify, seeds: Seeds
) -> None:
    del verify
    kind = choose_dtype(dtype, ctx.device, "gemm")
    rehearse_product(ctx, kind, "gemm", size=size, seeds=seeds)
    rehearse_checks(ctx, [kind], "gemm")


@rehearsed(_rehearse_gemm)
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
        ConfigError: The GPU does not support the dtype.
    """
    kind = choose_dtype(dtype, ctx.device, "gemm")
    (pipeline,) = build(ctx, (kind,), workload="gemm", size=size, verify=verify)
    pipeline.open(seed=1)
    if not ctx.become_ready():
        return
    pipeline.prove()
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


def _rehearse_mixed(
    ctx: WorkloadContext, plan: Plan, seconds: PhaseSeconds, verify: Verify, seeds: Seeds
) -> None:
    del seconds, verify
    kinds = list(dict.fromkeys(choose_dtypes(plan, ctx.device, "mixed", PHASES)))
    for kind in kinds:
        rehearse_product(ctx, kind, "mixed", seeds=seeds)
    rehearse_checks(ctx, kinds, "mixed")


@rehearsed(_rehearse_mixed)
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
        ConfigError: The GPU does not support a part of the plan.
    """
    phases = choose_dtypes(plan, ctx.device, "mixed", PHASES)
    kinds = list(dict.fromkeys(phases))
    pipelines = dict(zip(kinds, build(ctx, kinds, workload="mixed", verify=verify), strict=True))
    pipelines[phases[0]].open(seed=1)
    if not ctx.become_ready():
        return
    for seed in cycle(range(1, seeds + 1)):
        for phase in phases:
            if not _run_phase(pipelines[phase], seed, seconds):
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


def _rehearse_units(
    ctx: WorkloadContext, plan: UnitPlan, seconds: PhaseSeconds
) -> tuple[list[Dtype], dict[str, str]]:
    del seconds
    names = _unit_names(plan)
    kinds, reasons = usable_units(ctx, names, seeds=UNIT_SEEDS)
    rehearse_checks(ctx, kinds, "units")
    if GATHER in names:
        PointerChase(ctx, FindingReporter(ctx, "units")).prove()
    return kinds, reasons


def _unit_names(plan: str) -> tuple[str, ...]:
    return UNIT_NAMES if plan == ALL else tuple(dict.fromkeys(split_names(plan)))


@rehearsed(_rehearse_units)
def units(ctx: WorkloadContext, plan: UnitPlan = ALL, seconds: PhaseSeconds = 2.0) -> None:
    """Exercise one unit of the GPU after another, and check each result bit for bit.

    Args:
        ctx: The workload's context.
        plan: Names of units with a plus between them, or ``all`` that the GPU has.
        seconds: The duration of each unit.

    Raises:
        ConfigError: The GPU has none of these units.
    """
    names = _unit_names(plan)
    if ctx.rehearsal is not None:
        kinds, reasons = ctx.rehearsal.result
    else:
        kinds, reasons = usable_units(ctx, names)
    if len(reasons) == len(names):
        raise ConfigError(f"units: nothing can be exercised: {'; '.join(reasons.values())}")
    pipelines = build(ctx, kinds, workload="units")
    chases = [PointerChase(ctx, FindingReporter(ctx, "units"))] if GATHER in names else []
    for pipeline in pipelines[:1]:
        pipeline.open(seed=1)
    if not ctx.become_ready():
        return
    for name, reason in reasons.items():  # what is sent before Ready is of the phase before
        ctx.send(UnitExercised(unit=name, not_exercised=reason))
    exercised: list[ResultPipeline | PointerChase] = [*pipelines, *chases]
    for seed in cycle(range(1, UNIT_SEEDS + 1)):
        for unit in exercised:
            if not _exercise(ctx, unit, seed, seconds):
                return


def _exercise(
    ctx: WorkloadContext, unit: ResultPipeline | PointerChase, seed: int, seconds: float
) -> bool:
    """Exercise one unit, and send what was checked; return False if the workload is to return."""
    checks, errors = unit.checks, unit.errors
    name = GATHER if isinstance(unit, PointerChase) else unit.product.dtype.name
    ctx.note(f"unit {name}")
    if isinstance(unit, PointerChase):
        going = (unit.proved or unit.prove()) and unit.run(seed, seconds)
    else:
        going = _run_phase(unit, seed, seconds)
    ctx.send(UnitExercised(unit=name, checks=unit.checks - checks, wrong=unit.errors - errors))
    return going


def _rehearse_pulse(
    ctx: WorkloadContext, *, hz: Hz, duty: Duty, burst: Burst, size: Size, sync: Sync
) -> int:
    del sync
    kind = choose_dtype(AUTO, ctx.device, "pulse")
    load_s = burst / 1000 or duty / hz
    if not size and load_s < _PRODUCTS * 2 * ctx.quantum:
        size = size_for(ctx, kind, load_s / _PRODUCTS)
    rehearse_product(ctx, kind, "pulse", size=size)
    rehearse_checks(ctx, [kind], "pulse")
    return size


@rehearsed(_rehearse_pulse)
def pulse(
    ctx: WorkloadContext,
    *,
    hz: Hz = 1.0,
    duty: Duty = 0.5,
    burst: Burst = 0.0,
    size: Size = 0,
    sync: Sync = "off",
) -> None:
    """Multiply matrices for a part of each period, and rest for the other.

    Args:
        ctx: The workload's context.
        hz: Periods per second, from 0.2 to 100.
        duty: The share of a period under load, from 0.1 to 0.9.
        burst: Milliseconds of load in each period, from 0.1 to 5, instead of the duty; 0 goes by
            the duty.
        size: Rows of the square matrices; 0 takes the largest of which two fit into the load.
        sync: ``in-phase`` has all GPUs of the host pulse at once, ``out-of-phase`` those of an odd
            index half a period later than the others.
    """
    kind = choose_dtype(AUTO, ctx.device, "pulse")
    load_s = burst / 1000 or duty / hz
    if ctx.rehearsal is not None:
        size = ctx.rehearsal.result
    elif not size and load_s < _PRODUCTS * 2 * ctx.quantum:
        size = size_for(ctx, kind, load_s / _PRODUCTS)
    (pipeline,) = build(ctx, (kind,), workload="pulse", size=size)
    pipeline.open(seed=1)
    products = products_of(ctx, pipeline, load_s) if burst else 0
    if not ctx.become_ready():  # until then pace waits for all queued work
        return
    pipeline.prove()
    if sync == "off":
        begin = origin = time.monotonic()
    else:
        origin = shift_s(sync, ctx.index, hz)
        begin = next_begin(origin, hz, time.monotonic())
        ctx.pace(rest=max(0.0, begin - time.monotonic()))
    while run_burst(pipeline, products) if burst else run_load_phase(pipeline, begin + load_s):
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


def products_of(ctx: WorkloadContext, pipeline: ResultPipeline, seconds: float) -> int:
    """Measure how many products in a row take this time, and describe the burst in a note."""
    product = pipeline.product

    def run() -> None:
        for _ in range(_CALIBRATED):
            product.multiply(pipeline.slots[0])

    each = max(ctx.measure(run) / _CALIBRATED, 1e-6)
    products = max(1, min(pipeline.per_quantum, round(seconds / each)))
    took = products * each * 1000
    ctx.note(f"bursts of {took:.2f} ms: {products} products of {product.shape.rows} rows")
    return products


def run_burst(pipeline: ResultPipeline, products: int) -> bool:
    """Queue products on an idle device, wait until it is idle again, and check them.

    In the pipeline's order the checks would interrupt a burst, and the first of a slow pulse would
    come after minutes, once the memory is full of results.

    Returns:
        False if the workload is to return.
    """
    if not pipeline.step(at_most=products):
        pipeline.settle()
        return False
    pipeline.settle()
    return pipeline.check_written()


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
        first = pipeline.computed
        if not pipeline.step(at_most=products):
            return False
        queued = (pipeline.computed - first) * pipeline.seconds
    pipeline.settle()
    return not pipeline.inspector.stopped
