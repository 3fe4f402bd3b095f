"""Bitwise comparison and checksums detect every bit; a comparison that misses one is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sentinel.stressor.comparison import BitComparison, Checksum, flip
from tests.harness.workload_harness import SIZE


def test_a_checksum_changes_with_every_bit_and_with_the_order() -> None:
    integers = torch.arange(-500, 500, dtype=torch.int32)
    weights, weighted = (torch.zeros(512, dtype=torch.uint8) for _ in range(2))
    checksum = Checksum(weights, weighted, longest=4000)

    def take_checksum() -> int:
        checksum.queue(integers)
        return checksum.value().total

    total = sum((2 * n + 1) ** 2 * value for n, value in enumerate(integers.tolist())) % 2**64
    assert take_checksum() == total
    full_weights, scratch = (torch.zeros(8000, dtype=torch.uint8) for _ in range(2))
    unsplit = Checksum(full_weights, scratch, longest=4000)
    unsplit.queue(integers)
    assert unsplit.value().total == total
    seen = {total}
    for element, bit in [(0, 0), (0, 31), (63, 1), (63, 31), (64, 31), (500, 20), (999, 31)]:
        flip(integers, element, bit)
        seen.add(take_checksum())
    assert len(seen) == 8
    for left, right in [(0, 1), (3, 67), (900, 5)]:
        integers[[left, right]] = integers[[right, left]]
        seen.add(take_checksum())
    assert len(seen) == 11


def test_the_same_bit_of_every_32nd_integer_does_not_cancel_out() -> None:
    """Of four at equal distances, changes of +, -, - and + cancel out if factors grow evenly."""
    integers = torch.zeros(1000, dtype=torch.int32)
    integers[[132, 164]] = 1
    weights, weighted = (torch.zeros(8000, dtype=torch.uint8) for _ in range(2))
    checksum = Checksum(weights, weighted, longest=4000)
    checksum.queue(integers)
    right = checksum.value()
    integers[[100, 132, 164, 196]] ^= 1
    checksum.queue(integers)
    assert checksum.value().total != right.total
    assert checksum.value().differing(right) != []


def test_sums_locate_the_pieces_that_differ() -> None:
    integers = torch.arange(-500, 500, dtype=torch.int32)
    weights, weighted = (torch.zeros(512, dtype=torch.uint8) for _ in range(2))
    checksum = Checksum(weights, weighted, longest=4000)
    checksum.queue(integers)
    right = checksum.value()
    flip(integers, 3, 7)
    flip(integers, 999, 0)
    checksum.queue(integers)
    assert checksum.value().differing(right) == [(0, 256), (3840, 4096)]
    assert right.differing(right) == []


def test_a_comparison_without_findings_for_a_flipped_bit_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reference = torch.ones(SIZE, SIZE, dtype=torch.bfloat16)
    comparison = BitComparison(reference, torch.empty_like(reference))

    def find_nothing(left: Tensor, right: Tensor, *, out: Tensor) -> Tensor:
        return out.fill_(False)

    comparison.prove(torch.empty_like(reference))
    monkeypatch.setattr(torch, "ne", find_nothing)
    with pytest.raises(RuntimeError, match="a flipped bit was not found"):
        comparison.prove(torch.empty_like(reference))
