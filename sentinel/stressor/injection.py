"""Faults as silicon makes them, to prove that a comparison finds them.

A gate-level study of GPUs (arXiv 2605.04213) found that fewer than 40 % of wrong results have a
single wrong bit, that their addresses repeat with the warp, and that 1.01 % are NaN or infinite.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from sentinel.protocol.stressor import SelftestResult
from sentinel.stressor.comparison import corrupt, integers
from sentinel.stressor.matmul import Product

#: Faults that are injected into stored numbers before Ready, and as many into partial sums.
FAULTS = 100

#: Terms of a modelled sum: more change no share, and take memory of the host.
_TERMS = 4096

#: The threads of a warp: a fault of one lane is in every element with this distance.
WARP = 32


class FaultKind(StrEnum):
    """What a fault changes."""

    SINGLE = "single bit"
    MULTIPLE = "several bits"
    WARP = "every 32nd element"
    """The same bits of several elements."""
    NONFINITE = "NaN or infinite"
    PARTIAL = "partial sum"
    """One bit of one of the two sums that a number of the product is added from."""


#: The share of each kind that is injected into stored numbers.
SHARES: Mapping[FaultKind, float] = {
    FaultKind.SINGLE: 0.37,
    FaultKind.MULTIPLE: 0.31,
    FaultKind.WARP: 0.31,
    FaultKind.NONFINITE: 0.01,
}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """The bits to change in one or more elements of a matrix."""

    kind: FaultKind
    #: Indices in memory.
    elements: range
    #: The bits that change in each of them; none if rounding removes the fault.
    mask: int

    def inject(self, matrix: Tensor) -> None:
        """Change the bits; a second time restores them."""
        corrupt(matrix, self.elements, self.mask)

    def counts(self, width: int) -> tuple[int, ...]:
        """Count how often each of ``width`` bits differs."""
        return tuple((self.mask >> bit & 1) * len(self.elements) for bit in range(width))


def draw_kinds(count: int, draw: random.Random) -> list[FaultKind]:
    """Draw ``count`` kinds in a random order, as exactly by their shares as possible."""
    kinds = [kind for kind, share in SHARES.items() for _ in range(round(share * count))]
    kinds += [FaultKind.MULTIPLE] * (count - len(kinds))
    draw.shuffle(kinds)
    return kinds[:count]


def draw_fault(kind: FaultKind, matrix: Tensor, draw: random.Random) -> Fault:
    """Draw a fault of a stored number of ``matrix``; integers have no NaN, and get several bits."""
    width = 8 * matrix.element_size()
    if kind is FaultKind.NONFINITE and not matrix.is_floating_point():
        kind = FaultKind.MULTIPLE
    length = draw.randint(2, min(WARP, matrix.numel() // WARP)) if kind is FaultKind.WARP else 1
    first = draw.randrange(matrix.numel() - WARP * (length - 1))
    elements = range(first, first + WARP * (length - 1) + 1, WARP)
    if kind is FaultKind.NONFINITE:
        mask = _bits(matrix.view(-1)[first : first + 1].cpu()) ^ _nonfinite(matrix.dtype, draw)
    else:
        several = 1 if kind is FaultKind.SINGLE else draw.randint(2, width)
        mask = sum(1 << bit for bit in draw.sample(range(width), several))
    return Fault(kind=kind, elements=elements, mask=mask)


def _nonfinite(dtype: torch.dtype, draw: random.Random) -> int:
    """Return the bits of a NaN or of an infinity, which fp8 (e4m3) does not have."""
    infinities = (float("inf"), float("-inf")) if dtype.itemsize > 1 else ()
    value = draw.choice((float("nan"), *infinities))
    return _bits(torch.tensor([value]).to(dtype))


def _bits(number: Tensor) -> int:
    """Return the bits of one number on the host as an unsigned integer."""
    return int(integers(number)) % (1 << 8 * number.element_size())


# --- partial sums ----------------------------------------------------------------------------


def draw_partial_faults(
    product: Product, seed: int, count: int, draw: random.Random
) -> list[Fault]:
    """Draw faults of partial sums, before the sum is rounded to the format of the result.

    A model of a product that is split along its depth: the host adds both halves of the sums for
    ``count`` numbers of the product from its own inputs, in the type that the GPU adds in, and
    flips one bit of the first half. The fault is what differs after the rounding.
    """
    elements = [draw.randrange(product.reference.numel()) for _ in range(count)]
    first, second = _halves(product, seed, elements)
    flipped = first.clone()
    width = 8 * first.element_size()
    for number in range(count):
        corrupt(flipped, range(number, number + 1), 1 << draw.randrange(width))
    right, wrong = (integers((one + second).to(product.dtype.result)) for one in (first, flipped))
    unsigned = 1 << 8 * product.reference.element_size()
    return [
        Fault(kind=FaultKind.PARTIAL, elements=range(element, element + 1), mask=mask % unsigned)
        for element, mask in zip(elements, (right ^ wrong).tolist(), strict=True)
    ]


def _halves(product: Product, seed: int, elements: list[int]) -> tuple[Tensor, Tensor]:
    """Compute, on the host, the sums over the first and the second half of the depth."""
    depth, columns = product.shape.depth, product.shape.columns
    places = torch.tensor(elements).unsqueeze(1)
    terms = min(depth, _TERMS)
    rows, column, inner = places // columns, places % columns, torch.arange(terms)
    right_at = column * depth + inner if product.dtype.transposed else inner * columns + column
    left, right = (
        block[at % block.numel()].to(_sums_of(product.dtype.result))
        for block, at in (
            (product.block(0, seed), rows * depth + inner),
            (product.block(1, seed), right_at),
        )
    )
    products = left * right
    first, second = products[:, : terms // 2], products[:, terms // 2 :]
    return first.sum(1, dtype=left.dtype), second.sum(1, dtype=left.dtype)


def _sums_of(result: torch.dtype) -> torch.dtype:
    """Return the type in which products with this type of result are added."""
    return result if result in {torch.float64, torch.int32} else torch.float32


# --- the proof -------------------------------------------------------------------------------


def prove(
    product: Product,
    result: Tensor,
    seed: int,
    differs: Callable[[Tensor], bool],
    send: Callable[[SelftestResult], None],
) -> None:
    """Inject faults into a correct ``result``, send how many ``differs`` finds, and require all.

    Raises:
        RuntimeError: A fault was missed, or the correct result differs.
    """
    # Others in each stressor, so that the trials of a run add up.
    draw = random.Random()  # noqa: S311 - places, not secrets
    faults = [draw_fault(kind, result, draw) for kind in draw_kinds(FAULTS, draw)]
    if not product.dtype.elementwise:
        faults += draw_partial_faults(product, seed, FAULTS, draw)
    found = [fault for fault in faults if fault.mask and _is_found(fault, result, differs)]
    send(
        SelftestResult(
            dtype=product.dtype.name,
            place="comparison",
            tried=len(faults),
            found=len(found),
            rounded=sum(not fault.mask for fault in faults),
            tried_by_kind=Counter(fault.kind.value for fault in faults),
            found_by_kind=Counter(fault.kind.value for fault in found),
        )
    )
    missed = [fault for fault in faults if fault.mask and fault not in found]
    if missed or differs(result):
        what = f"{missed[0]} was not found" if missed else "a correct result was found to differ"
        message = f"{what}; the comparison cannot be trusted"
        raise RuntimeError(message)


def _is_found(fault: Fault, result: Tensor, differs: Callable[[Tensor], bool]) -> bool:
    """Inject a fault, compare, and restore the result."""
    fault.inject(result)
    found = differs(result)
    fault.inject(result)
    return found
