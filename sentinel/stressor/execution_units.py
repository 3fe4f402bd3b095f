"""Operations that keep one unit of the GPU busy each, computed and checked as products are.

Matrix products leave most of a GPU idle: the special function units, integer multipliers and
dividers, atomics, and the shared memory of sorts, scans and reductions. Each operation is one of
torch that surely reaches its unit, or a kernel in PTX. It gives the same bits each time: sums in
an order that is not determined are sums of integers. No operation fails or leaves its memory
because an input has a wrong bit; an index is made valid before it is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from sentinel.config.options import GRAIN
from sentinel.stressor.comparison import words
from sentinel.stressor.context import WorkloadContext
from sentinel.stressor.cuda_driver import driver_version
from sentinel.stressor.kernels import compute_special_functions, exchange_in_shared
from sentinel.stressor.loader import is_out_of_memory
from sentinel.stressor.matmul import Dtype, Needs, Product, Shape, lay_out
from sentinel.stressor.sizing import cube, has_capability, no_room, rehearse_product

#: The maximum length of a reason.
_MAX_REASON_LENGTH = 200

#: torch counts up to 99 ranges in shared memory (SummaryOps.cu), and older versions more in the
#: GPU's; fp32 counts these numbers exactly, in any order.
_BINS, _COUNTED = 64, 2**20

#: The columns of a head, the rows of one, and the heads that are computed at a time.
_HEAD, _SEQUENCE, _HEADS = 128, 1024, 8

#: Parts of a matrix that are computed one after another by small kernels.
_PARTS = 128

#: A result of 128 MiB, more than the L2 cache of an H200: it is read from the memory.
_SHAPE = Shape(8192, 4096, GRAIN)
#: The most results of quick and of slow operations: some tenths of a second of work.
_QUICK, _SLOW = 256, 48
#: Integers of all bits: the standard deviation of numbers that are at most six times as large.
_INT32_SCALE = 2**28

#: The chunks of which a smallest product is made, and its matrices that fit into one of them.
_PLACES = 16


# --- operations -------------------------------------------------------------------------------


def _exp(product: Product, out: Tensor) -> None:
    torch.exp(product.left, out=out)


def _log(product: Product, out: Tensor) -> None:
    torch.abs(product.left, out=out)
    out.log_()


def _sin(product: Product, out: Tensor) -> None:
    torch.sin(product.left, out=out)


def _rsqrt(product: Product, out: Tensor) -> None:
    torch.abs(product.left, out=out)
    out.rsqrt_()


def _divide(product: Product, out: Tensor) -> None:
    torch.div(product.left, product.right, out=out)


def _multiply_integers(product: Product, out: Tensor) -> None:
    torch.mul(product.left, product.right, out=out)


def _divide_integers(product: Product, out: Tensor) -> None:
    """Divide by odd numbers of 16 bits, none of which is 0."""
    torch.bitwise_and(product.right, 2**16 - 1, out=out)
    out.bitwise_or_(1)
    torch.div(product.left, out, rounding_mode="trunc", out=out)


def _add_atomically(product: Product, out: Tensor) -> None:
    """Add each number in a random place; atomics of global memory."""
    sums, numbers, places = out.view(-1), product.left.view(-1), product.right.view(-1)
    index = words(product.scratch)
    mask = 2 ** (sums.numel().bit_length() - 1) - 1
    sums.zero_()
    for start, end in _pieces(numbers.numel(), index.numel()):
        here = index[: end - start]
        here.copy_(places[start:end])
        here.bitwise_and_(mask)
        sums.scatter_add_(0, here, numbers[start:end])


def _count(product: Product, out: Tensor) -> None:
    """Count the numbers of each range, piece by piece; atomics of shared memory."""
    numbers, counts = product.left.view(-1), out.view(-1)
    bins = math.gcd(out.shape[1], _BINS)
    for start, end in _pieces(numbers.numel(), _COUNTED):
        found = torch.histc(numbers[start:end], bins=bins, min=-4.0, max=4.0)
        counts[start:end].view(-1, bins).copy_(found)


def _sort(product: Product, out: Tensor) -> None:
    """Sort rows of up to 1024 numbers."""
    width = math.gcd(out.shape[1], 1024)
    numbers, ordered = product.left.view(-1, width), out.view(-1, width)
    index = words(product.scratch)
    for start, end in _pieces(numbers.shape[0], index.numel() // width):
        here = index[: (end - start) * width].view(-1, width)
        torch.sort(numbers[start:end], dim=1, out=(ordered[start:end], here))


def _scan(product: Product, out: Tensor) -> None:
    torch.cumsum(product.left, dim=1, dtype=torch.int32, out=out)


def _sum(product: Product, out: Tensor) -> None:
    """Add the sum of a row to each of its numbers."""
    sums: Any = torch.sum(product.left, dim=1, keepdim=True, dtype=torch.int32)
    torch.add(product.left, sums, out=out)


def _softmax(product: Product, out: Tensor) -> None:
    torch.softmax(product.left, dim=1, out=out)


def _attend(product: Product, out: Tensor) -> None:
    """Compute softmax(q k^T) v, head by head; the right input is both k and v."""
    width = math.gcd(out.shape[1], _HEAD)
    length = math.gcd(out.numel() // width, _SEQUENCE)
    queries, keys, results = (
        matrix.view(-1, length, width) for matrix in (product.left, product.right, out)
    )
    for start, end in _pieces(queries.shape[0], _HEADS):
        scores = torch.bmm(queries[start:end], keys[start:end].transpose(1, 2))
        weights = torch.softmax(scores.mul_(width**-0.5), dim=2)
        torch.bmm(weights, keys[start:end], out=results[start:end])


def _launch_often(product: Product, out: Tensor) -> None:
    """Launch three kernels for each of some rows, one after another."""
    step = -(-out.shape[0] // _PARTS)
    parts = (torch.split(matrix, step) for matrix in (product.left, product.right, out))
    for left, right, result in zip(*parts, strict=True):
        torch.mul(left, right, out=result)
        result.add_(left)
        result.mul_(right)


def _multiply_scaled(product: Product, out: Tensor) -> None:
    """Multiply e5m2 by e4m3, as gradients are multiplied by weights."""
    torch._scaled_mm(  # noqa: SLF001 - torch has no other name for fp8
        product.left,
        product.right,
        scale_a=product.scale,
        scale_b=product.scale,
        out_dtype=torch.bfloat16,
        out=out,
    )


def _multiply_fp4(product: Product, out: Tensor) -> None:
    """Multiply e2m1, two of which are in a byte; each block of 16 has the scale 1."""
    kind: Any = getattr(torch, "float4_e2m1fn_x2", None)
    if kind is None:
        raise NotImplementedError(f"torch {torch.__version__} has no fp4")
    one = torch.full((), 1.0, dtype=torch.float32, device=out.device)
    left, right = (
        one.expand(-(-side.shape[0] // 128) * 128 * -(-side.shape[1] // 32) * 4)
        .to(torch.float8_e4m3fn)
        .contiguous()
        for side in product.inputs
    )
    torch._scaled_mm(  # noqa: SLF001 - torch has no other name for fp4
        product.left.view(kind),
        product.stored_right.view(kind).t(),
        scale_a=left,
        scale_b=right,
        out_dtype=torch.bfloat16,
        out=out,
    )


def _pieces(count: int, longest: int) -> Iterator[tuple[int, int]]:
    """Divide ``count`` elements; yield the first of each piece and the first of the next."""
    step = max(1, longest)
    for start in range(0, count, step):
        yield start, min(start + step, count)


# --- units ------------------------------------------------------------------------------------


def _floats(
    name: str,
    operation: Callable[[Product, Tensor], None],
    *,
    scale: int = 1,
    shape: Shape = _SHAPE,
    slots: int = _QUICK,
    compiler: Callable[[], str] | None = None,
) -> Dtype:
    """Describe a unit of which inputs and results are float32."""
    return Dtype(
        name,
        torch.float32,
        torch.float32,
        shape,
        multiply=operation,
        scale=scale,
        elementwise=True,
        compiler=compiler,
        slots=slots,
    )


def _integers(
    name: str,
    operation: Callable[[Product, Tensor], None],
    *,
    shape: Shape = _SHAPE,
    slots: int = _QUICK,
) -> Dtype:
    """Describe a unit of which inputs and results are int32."""
    return Dtype(
        name,
        torch.int32,
        torch.int32,
        shape,
        multiply=operation,
        scale=_INT32_SCALE,
        elementwise=True,
        slots=slots,
    )


#: All units whose results are those of two inputs, by name.
UNITS: dict[str, Dtype] = {
    unit.name: unit
    for unit in (
        _floats("exp", _exp, scale=8),
        _floats("log", _log),
        _floats("sin", _sin, scale=32),
        _floats("rsqrt", _rsqrt),
        _floats("divide", _divide),
        _integers("intmul", _multiply_integers),
        _integers("intdiv", _divide_integers),
        _integers("atomics", _add_atomically, shape=Shape(4096, 4096, GRAIN), slots=_SLOW),
        _floats("histogram", _count, slots=_SLOW),
        _integers("sort", _sort, slots=_SLOW),
        _integers("scan", _scan),
        _integers("sum", _sum),
        _floats("softmax", _softmax),
        Dtype(
            "attention",
            torch.bfloat16,
            torch.bfloat16,
            _SHAPE,
            capability=(8, 0),
            multiply=_attend,
            elementwise=True,
            slots=_SLOW,
        ),
        _floats("small", _launch_often, shape=Shape(512, 16384, GRAIN), slots=_SLOW),
        Dtype(
            "e5m2",
            torch.float8_e5m2,
            torch.bfloat16,
            Shape(8192, 8192, 16384),
            capability=(8, 9),
            multiply=_multiply_scaled,
            transposed=True,
            scale=32,
            emulated=True,
            right=torch.float8_e4m3fn,
            slots=_QUICK,
        ),
        Dtype(
            "fp4",
            torch.int8,
            torch.bfloat16,
            Shape(8192, 8192, 16384),
            capability=(10, 0),
            multiply=_multiply_fp4,
            transposed=True,
            scale=32,
            emulated=True,
            slots=_QUICK,
        ),
        _floats("sfu", compute_special_functions, scale=8, compiler=driver_version),
        _integers("shared", exchange_in_shared),
    )
}


def why_not(ctx: WorkloadContext, unit: Dtype, seeds: int = 1) -> str | None:
    """Explain why a unit cannot be exercised on this GPU; return None if it can.

    In a rehearsal its kernels are launched at the shape that all of the memory allows, else at the
    smallest one. An operation that this torch, its libraries, the driver or the GPU refuses is no
    fault of the GPU.

    Args:
        ctx: The workload's context.
        unit: The unit.
        seeds: How many seeds' inputs to draw in a rehearsal.

    Raises:
        ConfigError: There is no room for the smallest product.
    """
    if not has_capability(unit, ctx.device):
        needed = ".".join(map(str, unit.capability))
        return f"not on this card: it needs compute capability {needed}"
    try:
        if ctx.rehearses:
            rehearse_product(ctx, unit, "units", seeds=seeds)
        else:
            _multiply_smallest(ctx, unit)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        if is_out_of_memory(error):
            raise
        ctx.drain()  # raises if it was an error of the GPU, after which no work is possible
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return f"not by this torch on this card: {text[:_MAX_REASON_LENGTH]}"
    return None


def _multiply_smallest(ctx: WorkloadContext, unit: Dtype) -> None:
    shape = cube(GRAIN)
    needs = Product.needs(unit, shape)
    # Of a small part of the memory: on a whole GPU, millions of such results would be listed.
    parts = [chunk[: _PLACES * max(needs)] for chunk in ctx.chunks[:_PLACES]]
    layout = lay_out(parts, Needs(*needs))
    if layout is None:
        raise no_room("units")
    product = Product(unit, shape, layout)
    product.fill(seed=1)
    ctx.measure(lambda: product.multiply(product.reference))


def usable_units(
    ctx: WorkloadContext, names: Sequence[str], seeds: int = 1
) -> tuple[list[Dtype], dict[str, str]]:
    """Return those of the named units that this GPU can do, and why it cannot do the others."""
    reasons = {name: why_not(ctx, UNITS[name], seeds) for name in names if name in UNITS}
    able = [UNITS[name] for name, reason in reasons.items() if reason is None]
    return able, {name: reason for name, reason in reasons.items() if reason is not None}
