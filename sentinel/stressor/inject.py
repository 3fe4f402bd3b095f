"""Flip single bits on the device, in place, to prove that the checks would find them."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["flip"]


def flip(matrix: Tensor, element: int, bit: int) -> None:
    """Queue the flip of one bit of one element of ``matrix``, which is contiguous; takes no memory.

    Args:
        matrix: What to corrupt.
        element: Which of its elements, counted as they lie in memory.
        bit: Which of its bits, from the lowest.
    """
    place = element * matrix.element_size() + bit // 8
    matrix.view(-1).view(torch.uint8)[place].bitwise_xor_(1 << bit % 8)
