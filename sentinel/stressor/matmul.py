"""Products of random matrices for every dtype: how inputs are drawn and multiplied.

Inputs are integers drawn on the CPU with exact arithmetic, so every GPU and every host processor
gets the same bits. Functions of a mathematical library do not guarantee that. All matrices of a
product are views of the stressor's chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sentinel.config.options import GRAIN

#: With fewer slots, no result can be checked some quanta before it is overwritten.
MIN_SLOTS = 3

#: Bytes that a checksum processes at a time. On an H200, with a quarter of it, the host needed
#: longer to queue the kernels than the device to run them.
PIECE_BYTES = 32 * 2**20

#: The same where there is no room for that.
SMALL_PIECE_BYTES = 8 * 2**20

#: The alignment of matrices in bytes; kernels are slower with less.
_ALIGNMENT = 512

#: Distinct random values in an input. A prime, so that rows of a power of two start at different
#: offsets, and far from a power of two, so that no row is a slightly shifted copy of its neighbour.
_BLOCK_LENGTH = 123_457

#: Cached blocks of values, 1 MiB each: drawing one takes 50 ms.
_MAX_CACHED_BLOCKS = 16

#: The standard deviation in narrow dtypes, whose maximum is 127 (int8) or 448 (fp8).
_NARROW_SCALE = 32

#: The weight of the right input in the interpolation of the memory phase.
_WEIGHT = 0.3

#: torch declares no types for these switches; the older ones are deprecated where these exist.
_MATMUL: Any = torch.backends.cuda.matmul
_NAMED_PRECISION = hasattr(_MATMUL, "fp32_precision")


class Needs(NamedTuple):
    """The bytes that a product requires: for its inputs and for each result."""

    left: int
    right: int
    result: int

    def maximum(self, other: Needs) -> Needs:
        """Compute the needs that suffice for either of two products, used one at a time."""
        return Needs(*map(max, self, other))


@dataclass(frozen=True)
class Layout:
    """Tensors of bytes, the memory of products."""

    left: Tensor
    right: Tensor
    reference: Tensor
    #: One byte for every eight of a result.
    differs: Tensor
    #: The factors of a checksum.
    weights: Tensor
    #: The products of a checksum.
    weighted: Tensor
    #: The memory of the slots.
    rest: tuple[Tensor, ...]

    def slots(self, size: int, most: int | None = None) -> list[Tensor]:
        """Return all slots of ``size`` bytes, or the first ``most``."""
        places = (
            piece[start : start + size]
            for piece in self.rest
            for start in range(0, piece.numel() - size + 1, _round_up(size))
        )
        return list(islice(places, most))


def lay_out(chunks: Sequence[Tensor], needs: Needs, slots: int = MIN_SLOTS) -> Layout | None:
    """Divide ``chunks`` by ``needs``; return None if there is no room for so many slots.

    No piece spans two chunks, as they are not adjacent.
    """
    layouts = (_lay_out(chunks, needs, piece, slots) for piece in (PIECE_BYTES, SMALL_PIECE_BYTES))
    return next((layout for layout in layouts if layout is not None), None)


def lay_over(memory: Tensor, needs: Needs) -> Layout | None:
    """Let all parts of a product begin at the same place; return None if the largest is too large.

    The results are worthless, and the kernels are those of a product of this shape.
    """
    if memory.numel() < max(needs):
        return None
    left, right, result, differs = (memory[:size] for size in (*needs, max(1, needs.result // 8)))
    piece = memory[: min(PIECE_BYTES, max(needs))]
    return Layout(left, right, result, differs, piece, piece, (result,))


def _lay_out(chunks: Sequence[Tensor], needs: Needs, piece: int, slots: int) -> Layout | None:
    """Divide ``chunks`` with this size of a checksum's piece, or return None."""
    largest = min(piece, max(needs))
    sizes = [*needs, needs.result // 8, largest, largest]
    rests = list(chunks)
    parts = [rests[0]] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        size = sizes[number]
        fitting = [index for index, rest in enumerate(rests) if rest.numel() >= size]
        if not fitting:
            return None
        # The one with the least room, so that whole chunks stay whole.
        index = min(fitting, key=lambda index: rests[index].numel())
        parts[number] = rests[index][:size]
        rests[index] = rests[index][_round_up(size) :]
    left, right, reference, differs, weights, weighted = parts
    rest = tuple(rest for rest in rests if rest.numel())
    layout = Layout(left, right, reference, differs, weights, weighted, rest)
    return layout if len(layout.slots(needs.result, slots)) >= slots else None


def _round_up(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


@dataclass(frozen=True)
class Shape:
    """A product of ``rows`` x ``depth`` and ``depth`` x ``columns``."""

    rows: int
    columns: int
    depth: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}x{self.depth}"

    def smaller(self) -> Shape | None:
        """Return the shape with halved sides, at least GRAIN, or None if all sides are GRAIN."""
        halves = Shape(*(max(GRAIN, n // 2) for n in (self.rows, self.columns, self.depth)))
        return None if halves == self else halves


# --- multiplication by dtype -----------------------------------------------------------------


def _multiply_plain(product: Product, out: Tensor) -> None:
    torch.mm(product.left, product.right, out=out)


def _multiply_float32(product: Product, out: Tensor, *, precision: str) -> None:
    """Multiply in the precision ``ieee`` or ``tf32``, which is a switch of the process."""
    if _NAMED_PRECISION:
        _MATMUL.fp32_precision = precision
    else:
        _MATMUL.allow_tf32 = precision == "tf32"
    torch.mm(product.left, product.right, out=out)


_tf32 = partial(_multiply_float32, precision="tf32")
_ieee = partial(_multiply_float32, precision="ieee")


def _multiply_fp8(product: Product, out: Tensor) -> None:
    scale = product.scale
    torch._scaled_mm(  # noqa: SLF001 - torch has no other name for fp8
        product.left,
        product.right,
        scale_a=scale,
        scale_b=scale,
        out_dtype=torch.bfloat16,
        use_fast_accum=True,  # what training uses, and the hotter
        out=out,
    )


def _multiply_int8(product: Product, out: Tensor) -> None:
    multiply: Any = torch._int_mm  # noqa: SLF001 - torch has no other name for int8
    multiply(product.left, product.right, out=out)


def _interpolate(product: Product, out: Tensor) -> None:
    torch.lerp(product.left, product.right, _WEIGHT, out=out)


def forbid_shortcuts() -> None:
    """Forbid cuBLAS to accumulate bf16 and fp16 products in less than float32."""
    for name in (
        "allow_bf16_reduced_precision_reduction",
        "allow_fp16_reduced_precision_reduction",
        "allow_fp16_accumulation",
    ):
        if hasattr(_MATMUL, name):
            setattr(_MATMUL, name, False)


# --- dtypes -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dtype:
    """A dtype to multiply in, with the largest shape that suits it."""

    name: str
    inputs: torch.dtype
    result: torch.dtype
    #: The largest shape: deep enough for the check of a result to take less than a thirtieth of
    #: its computation on an H200, and fast enough for one quantum there.
    shape: Shape
    #: The first compute capability that supports it.
    capability: tuple[int, int] = (0, 0)
    multiply: Callable[[Product, Tensor], object] = _multiply_plain
    #: Whether the right input is stored by columns: fp8 requires it, int8 is seven times as fast.
    transposed: bool = False
    scale: int = 1
    #: Each element of the result depends on those of the inputs in its place, or in its row.
    elementwise: bool = False
    #: The dtype of the right input, if it is another.
    right: torch.dtype | None = None
    #: The version of what compiles its kernel here, if its bits may depend on that.
    compiler: Callable[[], str] | None = None
    #: The most results that are kept at a time, or None for all that fit. A result is checked once
    #: it is about to be overwritten.
    slots: int | None = None
    #: Whether CPUs only emulate it, at 60 ns per multiplication. Simulated GPUs then multiply the
    #: smallest matrices.
    emulated: bool = False


#: All dtypes by name. A result of bf16, fp16, fp8, fp32 or fp64 is one chunk of 512 MiB, one of
#: tf32 or int8 half a chunk.
DTYPES: dict[str, Dtype] = {
    dtype.name: dtype
    for dtype in (
        Dtype("bf16", torch.bfloat16, torch.bfloat16, Shape(16384, 16384, 16384), (8, 0)),
        Dtype("fp16", torch.float16, torch.float16, Shape(16384, 16384, 16384), (7, 5)),
        Dtype("tf32", torch.float32, torch.float32, Shape(8192, 8192, 16384), (8, 0), _tf32),
        Dtype("fp32", torch.float32, torch.float32, Shape(16384, 8192, 4096), (0, 0), _ieee),
        Dtype("fp64", torch.float64, torch.float64, Shape(8192, 8192, 8192)),
        Dtype(
            "fp8",
            torch.float8_e4m3fn,
            torch.bfloat16,
            Shape(16384, 16384, 32768),
            capability=(8, 9),
            multiply=_multiply_fp8,
            transposed=True,
            scale=_NARROW_SCALE,
            emulated=True,
        ),
        Dtype(
            "int8",
            torch.int8,
            torch.int32,
            Shape(8192, 8192, 65536),
            capability=(7, 5),
            multiply=_multiply_int8,
            transposed=True,
            scale=_NARROW_SCALE,
        ),
    )
}

#: Memory traffic instead of a product: each result is interpolated between two inputs.
MEMORY = Dtype(
    "memory",
    torch.float32,
    torch.float32,
    Shape(16384, 8192, GRAIN),
    multiply=_interpolate,
    elementwise=True,
)

#: All phases of ``mixed``.
PHASES: dict[str, Dtype] = {**DTYPES, MEMORY.name: MEMORY}


# --- one product -----------------------------------------------------------------------------


class Product:
    """Two inputs, a reference product and slots for results, all views of one layout.

    Several products may share a layout if they are used one at a time.

    Args:
        dtype: The dtype to multiply in.
        shape: The shape, at most the dtype's own.
        layout: Memory as large as :meth:`needs` returns.
    """

    def __init__(self, dtype: Dtype, shape: Shape, layout: Layout) -> None:
        self.dtype = dtype
        self.shape = shape
        left, right = _sides(dtype, shape)
        self.left = _cut(layout.left, dtype.inputs, left)
        self.stored_right = _cut(layout.right, dtype.right or dtype.inputs, right)
        self.right = self.stored_right.t() if dtype.transposed else self.stored_right
        result = (shape.rows, shape.columns)
        self.reference = _cut(layout.reference, dtype.result, result)
        nbytes = self.reference.nbytes
        pieces = layout.slots(nbytes, dtype.slots)
        self.slots = [_cut(piece, dtype.result, result) for piece in pieces]
        #: Memory that has no content between two products.
        self.scratch = layout.weighted
        device = self.left.device
        self.scale = torch.full((), 1 / dtype.scale, dtype=torch.float32, device=device)
        volume = float(shape.rows) * shape.columns * shape.depth
        self.flops = 0.0 if dtype.elementwise else 2.0 * volume
        self.traffic = 3.0 * nbytes if dtype.elementwise else 0.0

    @staticmethod
    def needs(dtype: Dtype, shape: Shape) -> Needs:
        """Return the memory that a product requires of a layout."""
        sides = zip(_sides(dtype, shape), (dtype.inputs, dtype.right or dtype.inputs), strict=True)
        left, right = (rows * columns * kind.itemsize for (rows, columns), kind in sides)
        result = shape.rows * shape.columns * dtype.result.itemsize
        return Needs(left=left, right=right, result=result)

    def multiply(self, out: Tensor) -> None:
        """Queue the product into ``out``; allocates nothing after the first run."""
        self.dtype.multiply(self, out)

    def fill(self, seed: int) -> None:
        """Fill both inputs with the values of ``seed``, identical on every GPU."""
        for number in range(len(self.inputs)):
            self.fill_one(number, seed)

    @property
    def inputs(self) -> tuple[Tensor, Tensor]:
        """Return both inputs in their memory layout."""
        return self.left, self.stored_right

    @property
    def matrices(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the inputs and the reference, on which the results depend."""
        return self.left, self.stored_right, self.reference

    def fill_one(self, number: int, seed: int) -> None:
        """Fill input 0 (left) or 1 (right): copy one block, then double it on the device."""
        flat = self.inputs[number].view(-1)
        block = self.block(number, seed)
        done = block.numel()
        flat[:done].copy_(block)
        while done < flat.numel():
            step = min(done, flat.numel() - done)
            flat[done : done + step].copy_(flat[:step])
            done += step

    def block(self, number: int, seed: int) -> Tensor:
        """Return, on the host, the block of values that an input repeats."""
        count = min(_BLOCK_LENGTH, self.inputs[number].numel())
        kind = self.inputs[number].dtype
        return random_block(self.dtype, _seed_of(number, seed), count, kind)

    def coordinates(self, matrix: Tensor, element: int) -> tuple[int, int]:
        """Return row and column of an element of ``matrix``, given its index in memory."""
        outer, inner = divmod(element, matrix.shape[1])
        return (
            (inner, outer)
            if matrix is self.stored_right and self.dtype.transposed
            else (outer, inner)
        )


def draw_usual(seeds: int) -> None:
    """Draw the values of the first seeds of products on a GPU, whatever their shape."""
    draw_ahead(DTYPES["bf16"], DTYPES["bf16"].shape, seeds)


def draw_ahead(dtype: Dtype, shape: Shape, seeds: int) -> None:
    """Draw the values of the first seeds of a product, before they are needed."""
    sides = _sides(dtype, shape)
    for seed in range(1, min(seeds, _MAX_CACHED_BLOCKS // len(sides)) + 1):
        for number, (rows, columns) in enumerate(sides):
            _normal(_seed_of(number, seed), min(_BLOCK_LENGTH, rows * columns))


def _seed_of(number: int, seed: int) -> int:
    """Return the seed of one input."""
    return 2 * seed + number - 1


def random_block(dtype: Dtype, seed: int, count: int, kind: torch.dtype | None = None) -> Tensor:
    """Draw ``count`` nearly normal values of mean 0 and the standard deviation of ``dtype``.

    They are of the dtype ``kind``, by default that of the left input.
    """
    values = _normal(seed, count) * dtype.scale
    if dtype.inputs is torch.int8:
        values.round_().clamp_(-127, 127)
    return values.to(kind or dtype.inputs)


@lru_cache(maxsize=_MAX_CACHED_BLOCKS)
def _normal(seed: int, count: int) -> Tensor:
    """Draw nearly normal float64 values of mean 0 and standard deviation 1.

    Each is the sum of twelve uniform integers plus a 32-bit fraction, over a power of two. That is
    52 bits, so it is exact, and it is rounded once in the conversion to a narrower dtype.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.empty((count, 4), dtype=torch.int64)
    drawn.random_(-(2**63), None, generator=generator)
    sums = drawn.view(torch.int16)[:, :12].sum(dim=1, dtype=torch.int64)
    fine = drawn[:, 3] & (2**32 - 1)
    return sums.add_(6).mul_(2**32).add_(fine).double().mul_(2.0**-48)


def _sides(dtype: Dtype, shape: Shape) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return rows and columns of both inputs in their memory layout."""
    if dtype.elementwise:
        return (shape.rows, shape.columns), (shape.rows, shape.columns)
    right = (shape.columns, shape.depth) if dtype.transposed else (shape.depth, shape.columns)
    return (shape.rows, shape.depth), right


def _cut(piece: Tensor, dtype: torch.dtype, sides: Sequence[int]) -> Tensor:
    """Return the beginning of ``piece``, a tensor of bytes, as a matrix."""
    rows, columns = sides
    return piece[: rows * columns * dtype.itemsize].view(dtype).view(rows, columns)
