"""Choose matrices that fit into the memory and are multiplied within a quantum."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch

from sentinel.config.options import GRAIN, Verify
from sentinel.errors import ConfigError
from sentinel.stressor.context import WorkloadContext
from sentinel.stressor.diagnosis import SLICE, FindingReporter
from sentinel.stressor.matmul import (
    MIN_SLOTS,
    Dtype,
    Layout,
    Needs,
    Product,
    Shape,
    forbid_shortcuts,
    lay_out,
)
from sentinel.stressor.pipeline import ResultPipeline

#: The maximum duration of one multiplication, in quanta.
_MAX_QUANTA = 1.25

_REMEDY = "Hold more memory, or take it in larger chunks."


def build(
    ctx: WorkloadContext,
    dtypes: Sequence[Dtype],
    *,
    workload: str,
    size: int = 0,
    verify: Verify = "full",
) -> list[ResultPipeline]:
    """Build a pipeline for each of ``dtypes``, with matrices of ``size`` rows or chosen shapes.

    Args:
        ctx: The workload's context.
        dtypes: The dtypes to multiply in.
        workload: The name of the workload in findings and errors.
        size: Rows of square matrices; 0 chooses.
        verify: Which results are checked.

    Returns:
        The pipelines, all in the same memory: one of them may be used at a time.

    Raises:
        ConfigError: The matrices do not fit.
    """
    forbid_shortcuts()
    shapes = [cube(size)] * len(dtypes) if size else _fitting(ctx, dtypes, workload)
    layout = _layout_for(ctx, dtypes, shapes)
    if layout is None:
        what = f"{workload}: there is no room for inputs, a reference and {MIN_SLOTS} results"
        raise ConfigError(f"{what} of size={size}", f"Take a smaller size. {_REMEDY}")
    slices = torch.zeros((2, SLICE), dtype=torch.uint8, pin_memory=ctx.device.type == "cuda")
    reporter = FindingReporter(ctx, workload)
    return [
        ResultPipeline(
            ctx,
            Product(dtype, shape, layout),
            layout,
            slices=slices,
            reporter=reporter,
            verify=verify,
        )
        for dtype, shape in zip(dtypes, shapes, strict=True)
    ]


def cube(size: int) -> Shape:
    """Return the shape of a product of square matrices."""
    return Shape(rows=size, columns=size, depth=size)


def _fitting(ctx: WorkloadContext, dtypes: Sequence[Dtype], workload: str) -> list[Shape]:
    """Return the largest shapes that fit together and are fast enough."""
    simulated = ctx.device.type != "cuda"
    shapes = [cube(GRAIN) if simulated and dtype.emulated else dtype.shape for dtype in dtypes]
    while (layout := _layout_for(ctx, dtypes, shapes)) is None:
        needs = [sum(Product.needs(*pair)) for pair in zip(dtypes, shapes, strict=True)]
        largest = needs.index(max(needs))
        halves = shapes[largest].smaller()
        if halves is None:
            what = f"{workload}: there is no room for inputs, a reference and {MIN_SLOTS} results"
            raise ConfigError(f"{what} of {GRAIN} rows", _REMEDY)
        shapes[largest] = halves
    for number, dtype in enumerate(dtypes):
        while not _fast(ctx, dtype, shapes[number], layout) and (
            halves := shapes[number].smaller()
        ):
            shapes[number] = halves
    return shapes


def _layout_for(
    ctx: WorkloadContext, dtypes: Sequence[Dtype], shapes: Sequence[Shape]
) -> Layout | None:
    return lay_out(ctx.chunks, reduce(Needs.maximum, map(Product.needs, dtypes, shapes)))


def _fast(ctx: WorkloadContext, dtype: Dtype, shape: Shape, layout: Layout) -> bool:
    """Check whether one multiplication takes about a quantum at most."""
    product = Product(dtype, shape, layout)
    product.fill(seed=1)
    return ctx.measure(lambda: product.multiply(product.reference)) <= _MAX_QUANTA * ctx.quantum
