"""The products of every dtype: correct, reproducible, and laid out within the chunks."""

from __future__ import annotations

import math

import pytest
import torch

from sentinel.errors import ConfigError
from sentinel.stressor.matmul import (
    DTYPES,
    MEMORY,
    Dtype,
    Needs,
    Product,
    Shape,
    lay_out,
    random_block,
)
from sentinel.stressor.sizing import check_capability
from tests.harness.narrowing import not_none

SHAPE = Shape(rows=64, columns=128, depth=192)

#: The first inputs of the first seed, in fp64.
FIRST_VALUES = ["0x1.6b87fe08f4280p-3", "0x1.405fab7479fc0p+0", "0x1.efbc32464ea00p-3"]

KINDS = pytest.mark.parametrize("dtype", [*DTYPES.values(), MEMORY], ids=lambda dtype: dtype.name)


def product_of(dtype: Dtype, shape: Shape = SHAPE) -> Product:
    needs = Product.needs(dtype, shape)
    size = max(needs.left, needs.right, needs.result) + 4096
    layout = not_none(lay_out([torch.empty(size, dtype=torch.uint8) for _ in range(12)], needs))
    product = Product(dtype, shape, layout)
    product.fill(seed=1)
    product.multiply(product.reference)
    return product


@KINDS
def test_the_product_is_correct(dtype: Dtype) -> None:
    product = product_of(dtype)
    if dtype.elementwise:
        exact = torch.lerp(product.left, product.right, 0.3).double()
    else:
        exact = product.left.double() @ product.right.double()
    exact *= (1.0 if dtype.name == "int8" else 1 / dtype.scale) ** 2
    coarse = torch.finfo(dtype.result).eps if dtype.result.is_floating_point else 0.0
    depth = math.sqrt(SHAPE.depth)
    # torch.testing would take a second to import.
    assert torch.allclose(
        product.reference.double(), exact, rtol=2 * coarse, atol=40 * coarse * depth
    )
    assert float(product.reference.double().std()) > 0.5


@KINDS
def test_inputs_are_normal_and_depend_only_on_the_seed(dtype: Dtype) -> None:
    block = random_block(dtype, 7, 100_000)
    values = block.double() / dtype.scale
    assert abs(float(values.mean())) < 0.02
    assert 0.97 < float(values.std()) < 1.03
    kurtosis = float(((values - values.mean()) / values.std()).pow(4).mean())
    assert 2.7 < kurtosis < 3.1, "a uniform distribution has 1.8"
    assert torch.equal(block.view(torch.uint8), random_block(dtype, 7, 100_000).view(torch.uint8))
    other = random_block(dtype, 8, 100_000)
    assert float((block.view(torch.uint8) == other.view(torch.uint8)).double().mean()) < 0.5


def test_the_drawn_values_never_change() -> None:
    """A change invalidates all recorded golden checksums."""
    block = random_block(DTYPES["fp64"], 1, 3)
    assert [value.hex() for value in block.tolist()] == FIRST_VALUES


def test_no_two_rows_are_alike() -> None:
    product = product_of(DTYPES["int8"], Shape(rows=1024, columns=64, depth=1024))
    assert len(torch.unique(product.left[:, :32], dim=0)) == 1024


@KINDS
def test_every_shape_shrinks_to_the_smallest(dtype: Dtype) -> None:
    shape, steps = dtype.shape, 0
    while (smaller := shape.smaller()) is not None:
        shape, steps = smaller, steps + 1
    assert str(shape) == "64x64x64"
    assert steps <= 10


@KINDS
def test_no_piece_of_the_largest_is_larger_than_a_chunk(dtype: Dtype) -> None:
    needs = Product.needs(dtype, dtype.shape)
    chunk = 512 * 2**20
    assert max(needs.left, needs.right, needs.result) == chunk
    assert needs.result in {chunk, chunk // 2}


def test_coordinates_refer_to_the_matrix_even_if_it_is_stored_by_columns() -> None:
    product = product_of(DTYPES["int8"])
    element = 5 * SHAPE.depth + 9
    product.stored_right.view(-1)[element] = 99
    row, column = product.coordinates(product.stored_right, element)
    assert (row, column) == (9, 5)
    assert product.right[row, column] == 99


def test_an_unsupported_dtype_is_refused_with_the_supported_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100")
    card = torch.device("cuda:0")
    with pytest.raises(
        ConfigError, match=r"fp8 needs .* 8\.9; this GPU, NVIDIA A100, has 8\.0"
    ) as e:
        check_capability(DTYPES["fp8"], card, "gemm")
    assert e.value.remedy == "It can do bf16, fp16, tf32, fp32, fp64, int8."
    check_capability(DTYPES["bf16"], card, "gemm")


# --- layout ----------------------------------------------------------------------------------


def test_pieces_do_not_overlap_and_slots_fill_the_rest() -> None:
    needs = Needs(left=1024, right=512, result=4096)
    chunks = [torch.zeros(16384, dtype=torch.uint8) for _ in range(3)]
    layout = not_none(lay_out(chunks, needs))
    parts = (layout.left, layout.right, layout.reference, layout.differs)
    for piece in (*parts, layout.weights, layout.weighted, *layout.slots(4096)):
        assert not piece.any(), "the piece overlaps with an earlier one"
        piece.fill_(1)
    assert len(layout.slots(4096)) == 8
    assert len(layout.slots(1024)) >= 4 * 8


def test_too_little_memory_has_no_layout() -> None:
    needs = Needs(left=1024, right=1024, result=1024)
    assert lay_out([torch.zeros(5 * 1024, dtype=torch.uint8)], needs) is None
    assert lay_out([torch.zeros(1000, dtype=torch.uint8) for _ in range(99)], needs) is None
