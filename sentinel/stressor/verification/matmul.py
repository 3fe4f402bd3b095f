"""Products of random matrices in every kind of number: their inputs, and how each is multiplied.

The inputs are made of integers drawn on the CPU by exact arithmetic, so they are the same bits on
every GPU, behind every kind of processor. A library of mathematical functions would not be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from sentinel.errors import ConfigError
from sentinel.stressor.verification.layout import Layout, Needs

#: Matrices have a multiple of so many rows and columns; cuBLAS wants 16 for fp8 and 8 for int8.
GRAIN = 64

#: How many random values an input is made of: a prime, so that rows of a power of two begin at
#: different places in it, and far from one, so that no row is a neighbour's by some steps aside.
_PERIOD = 123_457

#: How many blocks of values are kept, at 1 MiB each: to draw one takes a twentieth of a second.
_KEPT = 16

#: One standard deviation in what is narrow: int8 up to 127, fp8 up to 448.
_WIDE = 32

#: How far each value of the memory phase goes from the left input to the right one.
_WEIGHT = 0.3

#: torch declares no types for these switches; the older ones are deprecated where these exist.
_MATMUL: Any = torch.backends.cuda.matmul
_NAMED_PRECISION = hasattr(_MATMUL, "fp32_precision")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A product of ``rows`` x ``depth`` and ``depth`` x ``columns``."""

    rows: int
    columns: int
    depth: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}x{self.depth}"

    def smaller(self) -> Shape | None:
        """Return half of each side, none below the grain; None where nothing is left to halve."""
        halves = Shape(
            rows=max(GRAIN, self.rows // 2),
            columns=max(GRAIN, self.columns // 2),
            depth=max(GRAIN, self.depth // 2),
        )
        return None if halves == self else halves


Multiply = Callable[["Product", Tensor], object]


@dataclass(frozen=True, kw_only=True)
class Dtype:
    """A kind of number to multiply in.

    ``shape`` is the largest: as deep as it takes for the check of a result to cost less than a
    thirtieth of its computation on an H200, and fast enough for one quantum there. ``capability``
    is the first compute capability with the units for it. ``transposed``: the right input lies in
    memory column by column, which fp8 demands and int8 is seven times as fast with.
    """

    name: str
    inputs: torch.dtype
    result: torch.dtype
    shape: Shape
    capability: tuple[int, int]
    multiply: Multiply
    transposed: bool = False
    scale: int = 1
    elementwise: bool = False


# --- how each is multiplied ------------------------------------------------------------------


def _plain(product: Product, out: Tensor) -> None:
    torch.mm(product.left, product.right, out=out)


def _exact(product: Product, out: Tensor) -> None:
    _set_tf32(on=False)
    torch.mm(product.left, product.right, out=out)


def _rounded(product: Product, out: Tensor) -> None:
    _set_tf32(on=True)
    torch.mm(product.left, product.right, out=out)


def _scaled(product: Product, out: Tensor) -> None:
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


def _whole(product: Product, out: Tensor) -> None:
    multiply: Any = torch._int_mm  # noqa: SLF001 - torch has no other name for int8
    multiply(product.left, product.right, out=out)


def _mixed(product: Product, out: Tensor) -> None:
    torch.lerp(product.left, product.right, _WEIGHT, out=out)


def forbid_shortcuts() -> None:
    """Forbid cuBLAS to sum up in less than float32 what is multiplied in bf16 or fp16."""
    _MATMUL.allow_bf16_reduced_precision_reduction = False
    _MATMUL.allow_fp16_reduced_precision_reduction = False
    if hasattr(_MATMUL, "allow_fp16_accumulation"):
        _MATMUL.allow_fp16_accumulation = False


def _set_tf32(*, on: bool) -> None:
    """Say in what float32 matrices are multiplied from now on."""
    if _NAMED_PRECISION:
        _MATMUL.fp32_precision = "tf32" if on else "ieee"
    else:
        _MATMUL.allow_tf32 = on


def _shape(rows: int, columns: int, depth: int) -> Shape:
    return Shape(rows=rows, columns=columns, depth=depth)


#: All kinds, by name. A result of bf16, fp16, fp8, fp32 or fp64 is one chunk of 512 MiB, one of
#: tf32 or int8 is half of one.
DTYPES: dict[str, Dtype] = {
    dtype.name: dtype
    for dtype in (
        Dtype(
            name="bf16",
            inputs=torch.bfloat16,
            result=torch.bfloat16,
            shape=_shape(16384, 16384, 16384),
            capability=(8, 0),
            multiply=_plain,
        ),
        Dtype(
            name="fp16",
            inputs=torch.float16,
            result=torch.float16,
            shape=_shape(16384, 16384, 16384),
            capability=(7, 5),
            multiply=_plain,
        ),
        Dtype(
            name="tf32",
            inputs=torch.float32,
            result=torch.float32,
            shape=_shape(8192, 8192, 16384),
            capability=(8, 0),
            multiply=_rounded,
        ),
        Dtype(
            name="fp32",
            inputs=torch.float32,
            result=torch.float32,
            shape=_shape(16384, 8192, 4096),
            capability=(0, 0),
            multiply=_exact,
        ),
        Dtype(
            name="fp64",
            inputs=torch.float64,
            result=torch.float64,
            shape=_shape(8192, 8192, 8192),
            capability=(0, 0),
            multiply=_plain,
        ),
        Dtype(
            name="fp8",
            inputs=torch.float8_e4m3fn,
            result=torch.bfloat16,
            shape=_shape(16384, 16384, 32768),
            capability=(8, 9),
            multiply=_scaled,
            transposed=True,
            scale=_WIDE,
        ),
        Dtype(
            name="int8",
            inputs=torch.int8,
            result=torch.int32,
            shape=_shape(8192, 8192, 65536),
            capability=(7, 5),
            multiply=_whole,
            transposed=True,
            scale=_WIDE,
        ),
    )
}

#: What stands for the first of these that a GPU has units for. Of those that people train in, bf16
#: draws the most power on an H200 (docs/benchmarks.md); fp32 runs anywhere.
AUTO = "auto"
_PREFERRED = ("bf16", "fp16", "fp32")

#: No product, but traffic: each value of the result lies between those of two inputs.
MEMORY = Dtype(
    name="memory",
    inputs=torch.float32,
    result=torch.float32,
    shape=_shape(16384, 8192, GRAIN),
    capability=(0, 0),
    multiply=_mixed,
    elementwise=True,
)


def has_capability(dtype: Dtype, device: torch.device) -> bool:
    """Return whether ``device`` has units for ``dtype``; a pretended GPU can do all of them."""
    if device.type != "cuda":
        return True
    return torch.cuda.get_device_capability(device) >= dtype.capability


def choose(name: str, device: torch.device, workload: str) -> Dtype:
    """Return the kind called ``name``; ``auto`` is the hottest that runs on ``device``.

    Raises:
        ConfigError: The device has no units for it. Says what it can do.
    """
    if name == AUTO:
        name = next(kind for kind in _PREFERRED if has_capability(DTYPES[kind], device))
    check_capability(DTYPES[name], device, workload)
    return DTYPES[name]


def check_capability(dtype: Dtype, device: torch.device, workload: str) -> None:
    """Make sure that ``device`` has units for ``dtype``.

    Raises:
        ConfigError: It has not. Says what it can do.
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


# --- one product -----------------------------------------------------------------------------


class Product:
    """Two inputs, the reference product and the places for more of it, all views of one layout.

    Several products may share a layout; one at a time then has its matrices in it.

    Args:
        dtype: The kind of number.
        shape: At most the largest of that kind.
        layout: Memory with room for what :meth:`needs` says.
    """

    def __init__(self, dtype: Dtype, shape: Shape, layout: Layout) -> None:
        self.dtype = dtype
        self.shape = shape
        left, right = _sides(dtype, shape)
        self.left = _cut(layout.left, dtype.inputs, left)
        self.stored_right = _cut(layout.right, dtype.inputs, right)
        self.right = self.stored_right.t() if dtype.transposed else self.stored_right
        result = (shape.rows, shape.columns)
        self.reference = _cut(layout.reference, dtype.result, result)
        nbytes = self.reference.nbytes
        self.places = [_cut(piece, dtype.result, result) for piece in layout.places(nbytes)]
        device = self.left.device
        self.scale = torch.full((), 1 / dtype.scale, dtype=torch.float32, device=device)
        volume = float(shape.rows) * shape.columns * shape.depth
        self.flops = 0.0 if dtype.elementwise else 2.0 * volume
        self.traffic = 3.0 * nbytes if dtype.elementwise else 0.0

    @staticmethod
    def needs(dtype: Dtype, shape: Shape) -> Needs:
        """Return how many bytes a product takes of a layout."""
        left, right = (
            rows * columns * dtype.inputs.itemsize for rows, columns in _sides(dtype, shape)
        )
        result = shape.rows * shape.columns * dtype.result.itemsize
        return Needs(left=left, right=right, result=result)

    def multiply(self, out: Tensor) -> None:
        """Queue the product into ``out``; takes no memory once it has run."""
        self.dtype.multiply(self, out)

    def fill(self, seed: int) -> None:
        """Fill both inputs with the values of ``seed``, the same on every GPU."""
        for number in range(len(self.inputs)):
            self.fill_one(number, seed)

    @property
    def inputs(self) -> tuple[Tensor, Tensor]:
        """Return both inputs as they lie in memory."""
        return self.left, self.stored_right

    def fill_one(self, number: int, seed: int) -> None:
        """Fill one input, the left one being 0; the rest is repeated on the device, doubling."""
        flat = self.inputs[number].view(-1)
        block = self.block(number, seed)
        done = block.numel()
        flat[:done].copy_(block)
        while done < flat.numel():
            step = min(done, flat.numel() - done)
            flat[done : done + step].copy_(flat[:step])
            done += step

    def block(self, number: int, seed: int) -> Tensor:
        """Return, on the host, the values that one input repeats without end."""
        count = min(_PERIOD, self.inputs[number].numel())
        return random_block(self.dtype, 2 * seed + number - 1, count)

    def draw_ahead(self, seeds: int) -> None:
        """Draw the values of the first seeds, as far as they are kept: later they are at hand."""
        for seed in range(1, min(seeds, _KEPT // len(self.inputs)) + 1):
            for number in range(len(self.inputs)):
                self.block(number, seed)

    def coordinates(self, matrix: Tensor, element: int) -> tuple[int, int]:
        """Return the row and column of an element of ``matrix``, counted as it lies in memory."""
        outer, inner = divmod(element, matrix.shape[1])
        return (
            (inner, outer)
            if matrix is self.stored_right and self.dtype.transposed
            else (outer, inner)
        )


def random_block(dtype: Dtype, seed: int, count: int) -> Tensor:
    """Return ``count`` nearly normal values of mean 0, of the standard deviation of ``dtype``."""
    values = _normal(seed, count) * dtype.scale
    if dtype.inputs is torch.int8:
        values.round_().clamp_(-127, 127)
    return values.to(dtype.inputs)


@lru_cache(maxsize=_KEPT)
def _normal(seed: int, count: int) -> Tensor:
    """Return nearly normal values of mean 0 and standard deviation 1, in float64.

    Each is the sum of twelve uniform integers, with 32 more bits behind the point, over a power of
    two: 52 bits, so it is exact, and is rounded once to anything narrower.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.empty((count, 4), dtype=torch.int64)
    drawn.random_(-(2**63), None, generator=generator)
    sums = drawn.view(torch.int16)[:, :12].sum(dim=1, dtype=torch.int64)
    fine = drawn[:, 3] & (2**32 - 1)
    return sums.add_(6).mul_(2**32).add_(fine).double().mul_(2.0**-48)


def _sides(dtype: Dtype, shape: Shape) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the rows and columns of both inputs as they lie in memory."""
    if dtype.elementwise:
        return (shape.rows, shape.columns), (shape.rows, shape.columns)
    right = (shape.columns, shape.depth) if dtype.transposed else (shape.depth, shape.columns)
    return (shape.rows, shape.depth), right


def _cut(piece: Tensor, dtype: torch.dtype, sides: Sequence[int]) -> Tensor:
    """Return the beginning of ``piece``, bytes, as a matrix."""
    rows, columns = sides
    return piece[: rows * columns * dtype.itemsize].view(dtype).view(rows, columns)
