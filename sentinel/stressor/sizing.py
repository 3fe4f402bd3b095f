"""Choose dtypes that the GPU supports, and matrices that fit and take a quantum at most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import torch
from torch import Tensor

from sentinel.config.options import ALL, GRAIN, Verify, split_names
from sentinel.errors import ConfigError
from sentinel.stressor.context import WorkloadContext
from sentinel.stressor.diagnosis import SLICE, FindingReporter
from sentinel.stressor.matmul import (
    DTYPES,
    MIN_SLOTS,
    Dtype,
    Layout,
    Needs,
    Product,
    Shape,
    draw_ahead,
    forbid_shortcuts,
    lay_out,
    lay_over,
)
from sentinel.stressor.pipeline import ResultPipeline

#: The maximum duration of one multiplication, in quanta.
_MAX_QUANTA = 1.25

#: The smallest matrices on a GPU that a short load is made of: smaller ones last as long as the
#: host needs to queue them.
_LEAST_ROWS = 1024

#: What kernels may take that no rehearsal could launch at their own shape.
_LATE_BYTES = 256 * 2**20

_REMEDY = "Hold more memory, or take it in larger chunks."


#: Selects the first of these that the GPU supports. Of the dtypes used for training, bf16 draws the
#: most power on an H200 (docs/internals/benchmarks.md); fp32 runs on every GPU.
AUTO = "auto"
_PREFERRED = ("bf16", "fp16", "fp32")

#: The rows of the products whose checks are rehearsed: more numbers than a block of random values.
_REHEARSED_ROWS = 1024


def has_capability(dtype: Dtype, device: torch.device) -> bool:
    """Check whether ``device`` supports ``dtype``; a simulated GPU supports all of them."""
    if device.type != "cuda":
        return True
    return torch.cuda.get_device_capability(device) >= dtype.capability


def choose_dtype(name: str, device: torch.device, workload: str) -> Dtype:
    """Return the dtype called ``name``, or the hottest that ``device`` supports for ``auto``.

    Raises:
        ConfigError: The device does not support it.
    """
    if name == AUTO:
        name = next(kind for kind in _PREFERRED if has_capability(DTYPES[kind], device))
    check_capability(DTYPES[name], device, workload)
    return DTYPES[name]


def choose_dtypes(
    text: str, device: torch.device, workload: str, known: Mapping[str, Dtype] = DTYPES
) -> list[Dtype]:
    """Return the dtypes of ``text``, names with plus signs; all that ``device`` supports for all.

    Raises:
        ConfigError: A name is unknown, or the device does not support it.
    """
    if text == ALL:
        return [dtype for dtype in known.values() if has_capability(dtype, device)]
    names = split_names(text)
    for name in names:
        if name not in known:
            there_are = f"There are {', '.join(known)}."
            raise ConfigError(f"{workload}: there is no dtype {name!r}", there_are)
        check_capability(known[name], device, workload)
    return [known[name] for name in names]


def check_capability(dtype: Dtype, device: torch.device, workload: str) -> None:
    """Check that ``device`` supports ``dtype``.

    Raises:
        ConfigError: It does not; the remedy lists the supported dtypes.
    """
    if has_capability(dtype, device):
        return
    has = torch.cuda.get_device_capability(device)
    able = ", ".join(name for name, other in DTYPES.items() if has_capability(other, device))
    card = torch.cuda.get_device_name(device)
    raise ConfigError(
        f"{workload}: {dtype.name} needs compute capability {_dotted(dtype.capability)}; "
        f"this GPU, {card}, has {_dotted(has)}",
        f"It can do {able}.",
    )


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


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
    if not dtypes:
        return []
    forbid_shortcuts()
    shapes = [cube(size)] * len(dtypes) if size else _fitting(ctx, dtypes, workload)
    layout = _layout_for(ctx.chunks, dtypes, shapes)
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
    """Return the largest shapes that fit together and are fast enough.

    Those that a rehearsal has chosen are kept where they fit: their kernels are loaded.
    """
    known = ctx.rehearsal.shapes if ctx.rehearsal is not None else {}
    shapes = _in_memory(ctx.chunks, dtypes, [_first_shape(ctx, one, known) for one in dtypes])
    if shapes is None:
        raise no_room(workload)
    layout = _layout_for(ctx.chunks, dtypes, shapes)
    for number, dtype in enumerate(dtypes):
        if shapes[number] != known.get(dtype.name) and layout is not None:
            shapes[number] = _fast_enough(ctx, dtype, shapes[number], layout)
    return shapes


def no_room(workload: str) -> ConfigError:
    """Build the error for memory that is too small for the smallest products."""
    what = f"{workload}: there is no room for inputs, a reference and {MIN_SLOTS} results"
    return ConfigError(f"{what} of {GRAIN} rows", _REMEDY)


def _first_shape(ctx: WorkloadContext, dtype: Dtype, known: Mapping[str, Shape]) -> Shape:
    if ctx.device.type != "cuda" and dtype.emulated:
        return cube(GRAIN)
    return known.get(dtype.name, dtype.shape)


def _in_memory(
    chunks: Sequence[Tensor], dtypes: Sequence[Dtype], shapes: list[Shape]
) -> list[Shape] | None:
    """Halve the largest shapes until all fit; return None if the smallest do not."""
    while _layout_for(chunks, dtypes, shapes) is None:
        needs = [sum(Product.needs(*pair)) for pair in zip(dtypes, shapes, strict=True)]
        largest = needs.index(max(needs))
        halves = shapes[largest].smaller()
        if halves is None:
            return None
        shapes[largest] = halves
    return shapes


def _fast_enough(ctx: WorkloadContext, dtype: Dtype, shape: Shape, layout: Layout) -> Shape:
    """Halve a shape until its product takes little more than a quantum."""
    while _seconds(ctx, dtype, shape, layout) > _MAX_QUANTA * ctx.quantum and (
        halves := shape.smaller()
    ):
        shape = halves
    return shape


def size_for(ctx: WorkloadContext, dtype: Dtype, seconds: float) -> int:
    """Choose the rows of the largest square matrices that are multiplied within some time."""
    forbid_shortcuts()
    size = GRAIN if ctx.device.type != "cuda" else _LEAST_ROWS
    most = GRAIN if size == GRAIN and dtype.emulated else dtype.shape.rows
    chunks = ctx.chunks if not ctx.rehearses or ctx.rehearsal is None else ctx.rehearsal.planned
    while 2 * size <= most and _layout_for(chunks, [dtype], [cube(2 * size)]) is not None:
        layout = _layout_to_measure(ctx, dtype, cube(2 * size))
        if layout is None or _seconds(ctx, dtype, cube(2 * size), layout) > seconds:
            break
        size *= 2
    return size


def _layout_for(
    chunks: Sequence[Tensor], dtypes: Sequence[Dtype], shapes: Sequence[Shape]
) -> Layout | None:
    return lay_out(chunks, reduce(Needs.maximum, map(Product.needs, dtypes, shapes)))


def _layout_to_measure(ctx: WorkloadContext, dtype: Dtype, shape: Shape) -> Layout | None:
    """Lay out one product; in a rehearsal that is short of memory, its matrices overlap."""
    needs = Product.needs(dtype, shape)
    if ctx.rehearsal is None or ctx.rehearsal.memory is None:
        return lay_out(ctx.chunks, needs)
    memory = ctx.rehearsal.memory
    return lay_out([memory], needs, slots=1) or (
        None if dtype.elementwise else lay_over(memory, needs)
    )


def _seconds(ctx: WorkloadContext, dtype: Dtype, shape: Shape, layout: Layout) -> float:
    """Measure how long one multiplication takes."""
    product = Product(dtype, shape, layout)
    product.fill(seed=1)
    return ctx.measure(lambda: product.multiply(product.reference))


# --- rehearsals -------------------------------------------------------------------------------


def rehearse_product(
    ctx: WorkloadContext, dtype: Dtype, workload: str, *, size: int = 0, seeds: int = 1
) -> None:
    """Choose the shape of a product for all of the memory, and launch its kernels once.

    Args:
        ctx: The context of the rehearsal.
        dtype: The dtype to multiply in.
        workload: The name of the workload in errors.
        size: Rows of square matrices; 0 chooses.
        seeds: How many seeds' inputs to draw.

    Raises:
        ConfigError: The memory is too small for it.
    """
    rehearsal = ctx.rehearsal
    if rehearsal is None:
        return
    forbid_shortcuts()
    first = cube(size) if size else _first_shape(ctx, dtype, {})
    shapes = _in_memory(rehearsal.planned, [dtype], [first])
    if shapes is None:
        raise no_room(workload)
    (shape,) = shapes
    layout = _layout_to_measure(ctx, dtype, shape)
    if layout is None:  # its kernels are loaded once the memory is taken
        ctx.allow_growth(_LATE_BYTES)
    elif size:
        _seconds(ctx, dtype, shape, layout)
    else:
        rehearsal.shapes[dtype.name] = shape = _fast_enough(ctx, dtype, shape, layout)
    draw_ahead(dtype, shape, seeds)


def rehearse_checks(ctx: WorkloadContext, dtypes: Sequence[Dtype], workload: str) -> None:
    """Run every check, and the diagnosis of a fault, once for each kind of numbers."""
    kinds = {(kind.inputs, kind.right, kind.result, kind.transposed): kind for kind in dtypes}
    for kind in kinds.values():
        rows = GRAIN if ctx.device.type != "cuda" else _REHEARSED_ROWS
        (pipeline,) = build(ctx, [kind], workload=workload, size=rows)
        pipeline.prepare(seed=1)
