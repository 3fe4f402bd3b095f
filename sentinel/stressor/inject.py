"""Flip single bits on the device, in place, to prove that the checks would find them."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["flip"]


def flip(matrix: Tensor, element: int, bit: int) -> None:
    """Flip one bit of one element of ``matrix``, which is contiguous; takes no device memory.

    Waits for the device. The host flips it: the kernels for it would take 17 MiB of its memory.

    Args:
        matrix: What to corrupt.
        element: Which of its elements, counted as they lie in memory.
        bit: Which of its bits, from the lowest.
    """
    place = element * matrix.element_size() + bit // 8
    there = matrix.view(-1).view(torch.uint8)[place : place + 1]
    here = there.cpu() if there.is_cuda else there.clone()
    there.copy_(here.bitwise_xor_(1 << bit % 8))
