"""Choose how large the matrices are: they fit into the memory and take at most a quantum."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from sentinel.errors import ConfigError
from sentinel.stressor.context import WorkloadContext
from sentinel.stressor.verification.diagnosis import Reports
from sentinel.stressor.verification.inspector import StagingBuffers
from sentinel.stressor.verification.layout import FEWEST_PLACES, Layout, Needs, lay_out
from sentinel.stressor.verification.matmul import GRAIN, Dtype, Product, Shape, forbid_shortcuts
from sentinel.stressor.verification.pipeline import ResultPipeline, Verify

#: How many quanta one multiplication may take.
_LONGEST = 1.25

#: More seeds than one could go through in a day.
_MOST_SEEDS = 1000

_REMEDY = "Hold more memory, or take it in larger chunks."


def check_seeds(seeds: int, workload: str) -> None:
    """Make sure that so many seeds can take turns.

    Raises:
        ConfigError: There must be from 1 to 1000.
    """
    if not 1 <= seeds <= _MOST_SEEDS:
        raise ConfigError(
            f"{workload}: seeds={seeds} is out of range", f"allowed is from 1 to {_MOST_SEEDS}"
        )


def build(
    ctx: WorkloadContext,
    dtypes: Sequence[Dtype],
    *,
    workload: str,
    size: int = 0,
    verify: Verify = "full",
) -> list[ResultPipeline]:
    """Return a ring for each of ``dtypes``, all in the same memory, of which one is used at a time.

    Args:
        ctx: The GPU.
        dtypes: What to multiply in.
        workload: Whose rings they are, for people.
        size: Rows of square matrices; 0 chooses.
        verify: Which results are checked.

    Raises:
        ConfigError: They do not fit, or the size is not allowed.
    """
    forbid_shortcuts()
    shapes = [_square(size, workload)] * len(dtypes) if size else _fitting(ctx, dtypes, workload)
    needs = reduce(Needs.most, map(Product.needs, dtypes, shapes))
    layout = lay_out(ctx.chunks, needs)
    if layout is None:
        what = f"{workload}: there is no room for inputs, a reference and {FEWEST_PLACES} results"
        raise ConfigError(f"{what} of size={size}", f"Take a smaller size. {_REMEDY}")
    staging_buffers, reports = StagingBuffers(ctx.device), Reports(ctx, workload)
    return [
        ResultPipeline(
            ctx,
            Product(dtype, shape, layout),
            layout,
            staging_buffers=staging_buffers,
            reports=reports,
            verify=verify,
        )
        for dtype, shape in zip(dtypes, shapes, strict=True)
    ]


def _square(size: int, workload: str) -> Shape:
    if size < GRAIN or size % GRAIN:
        raise ConfigError(f"{workload}: size={size} is not a positive multiple of {GRAIN}")
    return Shape(rows=size, columns=size, depth=size)


def _fitting(ctx: WorkloadContext, dtypes: Sequence[Dtype], workload: str) -> list[Shape]:
    """Return the largest shapes that fit together, each fast enough."""
    shapes = [dtype.shape for dtype in dtypes]
    while (layout := _together(ctx, dtypes, shapes)) is None:
        largest = max(range(len(shapes)), key=lambda n: _size(dtypes[n], shapes[n]))
        shapes[largest] = _smaller(shapes[largest], workload)
    for number, dtype in enumerate(dtypes):
        while not _fast(ctx, dtype, shapes[number], layout):
            halves = shapes[number].smaller()
            if halves is None:
                break
            shapes[number] = halves
    return shapes


def _together(
    ctx: WorkloadContext, dtypes: Sequence[Dtype], shapes: Sequence[Shape]
) -> Layout | None:
    return lay_out(ctx.chunks, reduce(Needs.most, map(Product.needs, dtypes, shapes)))


def _size(dtype: Dtype, shape: Shape) -> int:
    needs = Product.needs(dtype, shape)
    return needs.left + needs.right + needs.result


def _smaller(shape: Shape, workload: str) -> Shape:
    halves = shape.smaller()
    if halves is None:
        what = f"{workload}: there is no room for inputs, a reference and {FEWEST_PLACES} results"
        raise ConfigError(f"{what} of {GRAIN} rows", _REMEDY)
    return halves


def _fast(ctx: WorkloadContext, dtype: Dtype, shape: Shape, layout: Layout) -> bool:
    """Return whether a product is computed within a quantum."""
    product = Product(dtype, shape, layout)
    product.fill(seed=1)
    return ctx.measure(lambda: product.multiply(product.reference)) <= _LONGEST * ctx.quantum
