"""Faults are of the kinds and shares of silicon, and a comparison that misses one is refused."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sentinel.protocol.stressor import SelftestResult
from sentinel.stressor.comparison import integers
from sentinel.stressor.injection import (
    FAULTS,
    FaultKind,
    draw_fault,
    draw_kinds,
    draw_partial_faults,
)
from tests.harness.parameters import mostly_long
from tests.harness.workload_harness import ALL, Workbench, pipeline_bench, unprepared_pipeline

FORMATS = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "fp8": torch.float8_e4m3fn,
    "int8": torch.int8,
    "int32": torch.int32,
}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with pipeline_bench(tmp_path) as bench:
        yield bench


@pytest.mark.parametrize("count", [1, 2, 3, 50, 100, 1000])
def test_the_shares_of_the_kinds_are_those_of_silicon(count: int) -> None:
    draw = random.Random(1)
    kinds = Counter(draw_kinds(count, draw))
    assert kinds.total() == count
    if count >= 100:
        assert kinds[FaultKind.SINGLE] < 0.4 * count
        assert kinds[FaultKind.MULTIPLE] + kinds[FaultKind.WARP] > 0.6 * count
        assert kinds[FaultKind.NONFINITE] == count // 100


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", [kind for kind in FaultKind if kind is not FaultKind.PARTIAL])
def test_a_fault_changes_its_bits_and_nothing_else(kind: FaultKind, name: str) -> None:
    draw = random.Random(f"{kind} {name}")
    for _ in range(20):
        matrix = torch.randint(-9, 9, (16, 32)).to(FORMATS[name])
        before = integers(matrix).clone()
        fault = draw_fault(kind, matrix, draw)
        fault.inject(matrix)
        differs = (integers(matrix) ^ before).tolist()
        width = 8 * matrix.element_size()
        changed = [n for n, value in enumerate(differs) if value]
        assert changed == list(fault.elements)
        assert {differs[n] % (1 << width) for n in changed} == {fault.mask}
        bits = fault.mask.bit_count()
        assert sum(fault.counts(width)) == bits * len(changed)
        if fault.kind is FaultKind.WARP:
            assert len(changed) > 1
            assert fault.elements.step == 32
            assert bits > 1
        elif fault.kind is FaultKind.NONFINITE:
            assert not torch.isfinite(matrix.float().view(-1)[changed[0]])
        else:
            assert (bits == 1) == (fault.kind is FaultKind.SINGLE)
        assert fault.kind is kind or not matrix.is_floating_point()
        fault.inject(matrix)
        assert torch.equal(integers(matrix), before)


@mostly_long(
    "name, lowest, highest",
    [
        ("bf16", 0.45, 0.60),
        ("fp16", 0.55, 0.72),
        ("fp8", 0.45, 0.60),
        ("tf32", 0.9, 1.0),
        ("fp32", 0.9, 1.0),
        ("fp64", 0.9, 1.0),
        ("int8", 1.0, 1.0),
    ],
    quick=2,
)
def test_rounding_removes_half_of_the_faults_of_partial_sums_in_bf16(
    bench: Workbench, name: str, lowest: float, highest: float
) -> None:
    pipeline = unprepared_pipeline(bench, name)
    faults = draw_partial_faults(pipeline.product, 1, 2000, random.Random(1))
    assert lowest <= sum(bool(fault.mask) for fault in faults) / 2000 <= highest


@pytest.mark.parametrize("name", ALL)
def test_a_modelled_sum_is_the_product_of_the_gpu(bench: Workbench, name: str) -> None:
    """Without a fault, the model rounds to what was multiplied, but for the order of the sum."""
    from sentinel.stressor.injection import _halves

    product = unprepared_pipeline(bench, name).product
    if product.dtype.elementwise:
        return
    product.fill(seed=1)
    product.multiply(product.reference)
    elements = [0, 1, product.reference.numel() - 1]
    first, second = _halves(product, 1, elements)
    found = (first + second).double() / (product.dtype.scale**2 if name == "fp8" else 1)
    right = product.reference.view(-1)[elements].double()
    assert torch.allclose(found, right, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("name", ALL)
def test_all_faults_are_found_before_ready_and_reported(bench: Workbench, name: str) -> None:
    bench.ctx.inject_faults = True
    pipeline = unprepared_pipeline(bench, name)
    pipeline.prepare(seed=1)
    (proof,) = bench.sent(SelftestResult)
    partial = 0 if name == "memory" else FAULTS
    assert (proof.dtype, proof.place, proof.tried) == (name, "comparison", FAULTS + partial)
    assert proof.found == proof.tried - proof.rounded
    assert sum(proof.tried_by_kind.values()) == proof.tried
    assert sum(proof.found_by_kind.values()) == proof.found
    assert proof.rounded == proof.tried_by_kind.get("partial sum", 0) - proof.found_by_kind.get(
        "partial sum", 0
    )


def test_a_stressor_without_a_plan_injects_nothing_and_is_ready_sooner(bench: Workbench) -> None:
    unprepared_pipeline(bench).prepare(seed=1)
    assert not bench.sent(SelftestResult)


def test_a_comparison_that_misses_a_kind_of_fault_is_refused_and_reported(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that sees single bits alone, as one that took the XOR of all words would not."""
    bench.ctx.inject_faults = True
    pipeline = unprepared_pipeline(bench)
    differs = pipeline.inspector.differs

    def sees_single_elements(result: Tensor) -> bool:
        wrong = (integers(result) != integers(pipeline.product.reference)).sum()
        return differs(result) and int(wrong) < 2

    monkeypatch.setattr(pipeline.inspector, "differs", sees_single_elements)
    with pytest.raises(RuntimeError, match=r"every 32nd element.* was not found"):
        pipeline.prepare(seed=1)
    (proof,) = bench.sent(SelftestResult)
    assert proof.found_by_kind.get("every 32nd element", 0) == 0
    assert proof.found_by_kind["single bit"] == proof.tried_by_kind["single bit"]
