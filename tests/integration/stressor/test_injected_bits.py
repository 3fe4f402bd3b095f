"""100 of 100 faults in a result, an input or the reference are found, where they are.

The faults are of the kinds of silicon: mostly several bits, often in every 32nd element.

Those in memory are in test_memtest.py, those of scattered reads in test_units.py.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from sentinel.protocol.stressor import FindingPlace
from sentinel.stressor.execution_units import UNITS
from sentinel.stressor.injection import draw_fault, draw_kinds
from tests.harness.workload_harness import NOT_ON_CPUS, Workbench, pipeline_bench, pipeline_of

#: A stressor describes 64 findings and counts the rest, so two of them share the 100.
BATCHES, TRIALS = 2, 50


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["bf16", "fp32", "int8"])
@pytest.mark.parametrize("place", ["result", "left", "right", "reference"])
def test_every_injected_fault_is_found_with_its_place(
    tmp_path: Path, place: str, dtype: str
) -> None:
    draw = random.Random(f"{place} {dtype}")
    for batch in range(BATCHES):
        with pipeline_bench(tmp_path / str(batch)) as bench:
            inject(bench, place, dtype, draw)


@pytest.mark.long
@pytest.mark.parametrize("unit", [name for name in UNITS if name not in NOT_ON_CPUS])
def test_every_injected_fault_in_a_result_of_a_unit_is_found(tmp_path: Path, unit: str) -> None:
    draw = random.Random(unit)
    for batch in range(BATCHES):
        with pipeline_bench(tmp_path / str(batch)) as bench:
            inject(bench, "result", unit, draw)


def inject(bench: Workbench, place: str, dtype: str, draw: random.Random) -> None:
    """Inject a fault at a time, and require one finding for each."""
    pipeline = pipeline_of(bench, dtype)
    product = pipeline.product
    injected = []
    for trial, kind in enumerate(draw_kinds(TRIALS, draw)):
        pipeline.begin_seed(seed=trial % 4 + 1)
        for _ in range(draw.randrange(1, 4)):
            assert pipeline.step()
        matrix = {
            "result": pipeline.newest(),
            "left": product.inputs[0],
            "right": product.inputs[1],
            "reference": product.reference,
        }[place]
        fault = draw_fault(kind, matrix, draw)
        fault.inject(matrix)
        first = product.coordinates(matrix, fault.elements[0])
        injected.append((len(fault.elements), first, fault.counts(8 * matrix.element_size())))
        assert pipeline.finish_seed()
    found = bench.findings()
    wanted = {"result": FindingPlace.RESULT, "reference": FindingPlace.REFERENCE}
    assert [finding.place for finding in found] == [wanted.get(place, FindingPlace.INPUT)] * TRIALS
    assert [(finding.count, finding.first, finding.bits) for finding in found] == injected
    assert bench.done().errors == TRIALS
