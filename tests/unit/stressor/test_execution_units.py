"""The operation of each unit: what it computes, and that no bit of an input can break it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from sentinel.stressor.comparison import flip
from sentinel.stressor.execution_units import UNITS
from sentinel.stressor.matmul import Needs, Product, Shape, lay_out
from sentinel.stressor.pipeline import key_of
from tests.harness.parameters import mostly_long
from tests.harness.workload_harness import NOT_ON_CPUS

SHAPE = Shape(rows=64, columns=128, depth=64)
NAMES = [name for name in UNITS if name not in NOT_ON_CPUS]


def product_of(name: str) -> Product:
    needs = Needs(*Product.needs(UNITS[name], SHAPE))
    chunks = [torch.empty(2 * max(needs), dtype=torch.uint8) for _ in range(12)]
    layout = lay_out(chunks, needs)
    assert layout is not None
    product = Product(UNITS[name], SHAPE, layout)
    product.fill(seed=1)
    product.multiply(product.slots[0])  # once before, as the workload does to see that it can
    product.multiply(product.reference)
    return product


def sums_in_places(left: Tensor, right: Tensor) -> Tensor:
    sums = [0] * left.numel()
    for number, place in zip(left.view(-1).tolist(), right.view(-1).tolist(), strict=True):
        sums[place % 8192] += number
    return torch.tensor(sums, dtype=torch.int64).to(torch.int32).view(left.shape)


def counts(left: Tensor, _: Tensor) -> Tensor:
    """Count the numbers of 64 equal ranges from -4 to 4."""
    within = left[left.abs() <= 4]
    places = ((within + 4) / 8 * 64).long().clamp_(max=63)
    return torch.bincount(places, minlength=64).repeat(left.numel() // 64).view(left.shape)


def attended(left: Tensor, right: Tensor) -> Tensor:
    """Each row is one query of a head of 64 keys."""
    scores = left.double() @ right.double().t() / math.sqrt(128)
    return torch.softmax(scores, dim=1) @ right.double()


def divided(left: Tensor, right: Tensor) -> Tensor:
    return torch.tensor(
        [
            int(math.copysign(abs(number) // (by % 65536 | 1), number))
            for number, by in zip(left.view(-1).tolist(), right.view(-1).tolist(), strict=True)
        ]
    ).view(left.shape)


EXPECTED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "exp": lambda left, _: left.double().exp(),
    "log": lambda left, _: left.double().abs().log(),
    "sin": lambda left, _: left.double().sin(),
    "rsqrt": lambda left, _: left.double().abs().rsqrt(),
    "divide": lambda left, right: left.double() / right.double(),
    "intmul": lambda left, right: (left.long() * right.long()).to(torch.int32),
    "intdiv": divided,
    "atomics": sums_in_places,
    "histogram": counts,
    "sort": lambda left, _: torch.tensor([sorted(row) for row in left.tolist()]),
    "scan": lambda left, _: left.long().cumsum(1).to(torch.int32),
    "sum": lambda left, _: (left.long() + left.long().sum(1, keepdim=True)).to(torch.int32),
    "softmax": lambda left, _: torch.softmax(left.double(), dim=1),
    "attention": attended,
    "small": lambda left, right: (left.double() * right.double() + left.double()) * right.double(),
    "e5m2": lambda left, right: left.double() @ right.double() / 32**2,
}


@pytest.mark.parametrize("name", NAMES)
def test_each_unit_computes_what_it_is_named_after(name: str) -> None:
    product = product_of(name)
    found = product.reference.double()
    expected = EXPECTED[name](product.left, product.right).double()
    eps = torch.finfo(product.reference.dtype).eps if product.dtype.inputs.is_floating_point else 0
    assert torch.allclose(found, expected, rtol=8 * eps, atol=32 * eps)
    assert len(set(found.view(-1).tolist())) > 16, "the results hardly differ"


@mostly_long("name", NAMES, quick=4)
def test_the_same_inputs_give_the_same_bits_and_other_seeds_others(name: str) -> None:
    product = product_of(name)
    for slot in product.slots[:3]:
        product.multiply(slot)
        assert torch.equal(slot.view(torch.uint8), product.reference.view(torch.uint8))
    product.fill(seed=2)
    product.multiply(product.slots[0])
    assert not torch.equal(product.slots[0], product.reference)


@mostly_long("name", NAMES, quick=4)
def test_no_input_fails_an_operation(name: str) -> None:
    """An index that leaves its tensor would end the whole process on a GPU."""
    product = product_of(name)
    for word in (0, -1, -(2**31), 2**31 - 1, 0x7FC00000):
        for matrix in product.inputs:
            matrix.view(-1).view(torch.int32).fill_(word)
        product.multiply(product.slots[0])
    product.fill(seed=1)
    for matrix in product.inputs:
        for bit in range(8 * matrix.element_size()):
            flip(matrix, 77, bit)
            product.multiply(product.slots[0])
            flip(matrix, 77, bit)
    product.multiply(product.slots[0])
    assert torch.equal(product.slots[0], product.reference)


def test_the_key_of_a_golden_names_what_compiles_the_kernel_here() -> None:
    product = product_of("exp")
    plain = key_of(product, seed=1)
    product.dtype = replace(product.dtype, compiler=lambda: "driver 13000")
    assert key_of(product, seed=1) == replace(plain, blas=f"{plain.blas}, driver 13000")
    assert UNITS["sfu"].compiler is not None
