"""The result pipeline finds every fault, attributes it to a matrix and examines it."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from sentinel.protocol.stressor import FindingPlace
from sentinel.stressor.comparison import PieceSums, corrupt, flip, integers
from sentinel.stressor.diagnosis import Outcome
from tests.harness.parameters import mostly_long
from tests.harness.workload_harness import (
    ALL,
    SIZE,
    Workbench,
    pipeline_bench,
    pipeline_of,
    step_until,
    unprepared_pipeline,
)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with pipeline_bench(tmp_path) as bench:
        yield bench


# --- every result once ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_every_result_is_checked_once_and_none_is_wrong(bench: Workbench, name: str) -> None:
    pipeline = pipeline_of(bench, name)
    step_until(pipeline, 3)
    assert bench.done().checks > len(pipeline.slots)
    assert pipeline.finish_seed()
    assert bench.done().checks == pipeline.written
    assert (bench.done().errors, bench.findings()) == (0, [])


@given(slots=st.integers(3, 12), share=st.floats(0.0, 1.0), parts=st.lists(st.integers(1, 6)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_every_check_is_collected_before_its_slot_is_overwritten(
    bench: Workbench, slots: int, share: float, parts: list[int]
) -> None:
    """For any size of quanta, the host has the result of a check two steps later."""
    bench.ctx.quantum = math.inf
    pipeline = unprepared_pipeline(bench)
    del pipeline.slots[slots:]
    pipeline.per_quantum = 1 + round(share * ((slots - 1) // 2 - 1))
    number = {slot.data_ptr(): index for index, slot in enumerate(pipeline.slots)}
    step = 0
    holds: dict[int, int] = {}  # by slot: its result
    checked: dict[int, int] = {}  # by result: the step of its check

    def multiply(out: Tensor) -> None:
        slot = number[out.data_ptr()]
        if slot in holds:
            assert checked[holds[slot]] <= step - 2, "its check is in flight"
        holds[slot] = pipeline.written

    def mark(result: Tensor, wrong: Tensor) -> None:
        checked_result = holds[number[result.data_ptr()]]
        assert checked_result not in checked, "it was checked already"
        checked[checked_result] = step

    vars(pipeline.product)["multiply"] = multiply
    vars(pipeline.inspector.comparison)["mark"] = mark
    for at_most in [*parts, *[pipeline.per_quantum] * 2 * slots]:
        step += 1
        pipeline.step(at_most=at_most)
    assert list(checked) == list(range(len(checked)))
    assert pipeline.unchecked == slots - 2 * pipeline.per_quantum
    right = PieceSums(pieces=(), piece_bytes=4)
    vars(pipeline.inspector)["checksum"] = lambda _: right
    pipeline.examiner.sums = [right] * 3
    pipeline.finish_seed()
    assert list(checked) == list(range(pipeline.written))


def test_results_that_the_host_is_slow_to_launch_are_left_to_the_next_quantum(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = pipeline_of(bench)
    pipeline.per_quantum = (len(pipeline.slots) - 1) // 2
    now, each, multiply = 0.0, 0.4, pipeline.product.multiply

    def multiply_slowly(out: Tensor) -> None:
        nonlocal now
        now += each * bench.ctx.quantum
        multiply(out)

    vars(pipeline.product)["multiply"] = multiply_slowly
    monkeypatch.setattr("sentinel.stressor.pipeline.time", SimpleNamespace(monotonic=lambda: now))
    assert pipeline.per_quantum > 3
    assert pipeline.step()
    assert pipeline.written == bench.done().iterations == 3
    assert pipeline.compute_unpaced(7) == 7
    each = 2.0  # not even one fits
    assert pipeline.step()
    assert pipeline.written == 3 + 7 + 1


@pytest.mark.parametrize("place", ["left", "reference"])
def test_a_repair_changes_no_number_of_results(bench: Workbench, place: str) -> None:
    """A wrong input empties the ring, whose cursors start again."""
    pipeline = pipeline_of(bench)
    step_until(pipeline, 3)
    computed: list[Tensor] = []
    multiply = pipeline.product.multiply

    def count_and_multiply(out: Tensor) -> None:
        computed.append(out)
        multiply(out)

    vars(pipeline.product)["multiply"] = count_and_multiply
    flip(getattr(pipeline.product, place), 0, 3)
    count = len(pipeline.slots)
    assert pipeline.compute_unpaced(count) == count
    assert len(bench.findings()) == 1
    assert count <= len(computed) < count + 10, "some more are computed for the diagnosis"


def test_a_sample_checks_one_in_sixteen_and_covers_every_slot(bench: Workbench) -> None:
    pipeline = pipeline_of(bench, verify="sample")
    step_until(pipeline, 3)
    assert pipeline.written / 24 < bench.done().checks < pipeline.written / 12
    due = {n % len(pipeline.slots) for n in range(17 * len(pipeline.slots)) if pipeline._due(n)}
    assert due == set(range(len(pipeline.slots)))
    pipeline.newest().view(torch.int16)[1, 2].bitwise_xor_(4)
    assert pipeline.finish_seed()
    assert [finding.first for finding in bench.findings()] == [(1, 2)], (
        "the end of a seed checks every result"
    )


def test_off_checks_nothing(bench: Workbench) -> None:
    pipeline = pipeline_of(bench, verify="off")
    step_until(pipeline, 2)
    flip(pipeline.newest(), 0, 0)
    step_until(pipeline, 4)
    assert pipeline.finish_seed()
    assert (bench.done().checks, bench.done().errors) == (0, 0)


def test_a_quantum_in_flight_at_the_stop_is_collected_by_settle(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop precedes the call that would wait."""
    pipeline = pipeline_of(bench)
    step_until(pipeline, 2)
    collected: list[int] = []
    collect = pipeline._collect_checks

    def record(keep: int) -> None:
        collected.append(keep)
        collect(keep)

    monkeypatch.setattr(pipeline, "_collect_checks", record)
    monkeypatch.setattr(bench.ctx, "pace", lambda **_: False)
    assert not pipeline.step()
    assert collected == []
    pipeline.settle()
    assert collected == [0]


def test_the_hook_is_called_between_quanta(bench: Workbench) -> None:
    pipeline = pipeline_of(bench)
    called: list[int] = []

    def once() -> None:
        if not called:
            flip(pipeline.newest(), 9, 2)
        called.append(pipeline.written)

    pipeline.between = once
    step_until(pipeline, 2)
    assert len(set(called)) == len(called) > 2
    assert [finding.first for finding in bench.findings()] == [(0, 9)]


# --- findings -------------------------------------------------------------------------------


@mostly_long("name", ALL, quick=3)
def test_every_flipped_bit_of_a_result_is_found_where_it_is(bench: Workbench, name: str) -> None:
    pipeline = pipeline_of(bench, name)
    draw = random.Random(name)
    for number in range(12):
        step_until(pipeline, pipeline.rounds + 1)
        matrix = pipeline.newest(draw.randrange(pipeline.unchecked))
        element, bit = draw.randrange(matrix.numel()), draw.randrange(8 * matrix.element_size())
        flip(matrix, element, bit)
        step_until(pipeline, pipeline.rounds + 2)
        assert len(bench.findings()) == number + 1
        finding = bench.findings()[-1]
        assert finding.place is FindingPlace.RESULT
        assert (finding.count, finding.first) == (1, divmod(element, SIZE))
        assert [n for n, times in enumerate(finding.bits) if times] == [bit]
        assert (finding.reread, finding.repeated, finding.repeats) == (True, 0, 3)
        assert (finding.workload, finding.dtype, finding.seed) == ("gemm", name, 1)
    assert bench.done().errors == 12


@pytest.mark.parametrize("number", [0, 1])
@mostly_long("name", ALL, quick=2)
def test_every_flipped_bit_of_an_input_is_attributed_to_the_input(
    bench: Workbench, name: str, number: int
) -> None:
    pipeline = pipeline_of(bench, name)
    draw = random.Random(name)
    for flips in range(1, 7):
        matrix = pipeline.product.inputs[number]
        element, bit = draw.randrange(matrix.numel()), draw.randrange(8 * matrix.element_size())
        flip(matrix, element, bit)
        step_until(pipeline, pipeline.rounds + 1)
        assert pipeline.finish_seed()
        assert len(bench.findings()) == flips
        finding = bench.findings()[-1]
        assert finding.place is FindingPlace.INPUT
        assert finding.first == pipeline.product.coordinates(matrix, element)
        assert (finding.count, finding.bits[bit], finding.repeated) == (1, 1, 0)
    step_until(pipeline, pipeline.rounds + 2)
    assert len(bench.findings()) == 6, "the input was repaired"


@pytest.mark.parametrize("name", ["bf16", "int8"])
def test_a_corrupted_reference_is_not_taken_for_wrong_results(bench: Workbench, name: str) -> None:
    pipeline = pipeline_of(bench, name)
    step_until(pipeline, 2)
    flip(pipeline.product.reference, 130, 5)
    step_until(pipeline, 4)
    (finding,) = bench.findings()
    assert (finding.place, finding.count, finding.first) == (FindingPlace.REFERENCE, 1, (8, 2))
    assert bench.done().errors == 1, "the results that differed from it were right"


def test_a_result_that_is_wrong_each_time_is_repeatable(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = pipeline_of(bench)
    step_until(pipeline, 1)
    multiply = pipeline.product.multiply

    def wrong(out: Tensor) -> None:
        multiply(out)
        out[3, 4] = float("nan")

    monkeypatch.setattr(pipeline.product, "multiply", wrong)
    step_until(pipeline, 2)
    assert {finding.repeated for finding in bench.findings()} == {3}
    assert {(finding.count, finding.first) for finding in bench.findings()} == {(1, (3, 4))}


def test_a_result_that_is_right_when_reread_is_a_bad_load(bench: Workbench) -> None:
    pipeline = pipeline_of(bench)
    slot = pipeline.slots[0]
    pipeline.product.multiply(slot)
    outcome = pipeline.examiner.examine([slot], pipeline.slots[1])
    (finding,) = bench.findings()
    assert (outcome.errors, finding.reread, finding.count, finding.first) == (1, False, 0, ())


def test_of_many_wrong_results_64_are_examined_and_all_counted(bench: Workbench) -> None:
    pipeline = pipeline_of(bench)
    step_until(pipeline, 1)
    for round_ in range(2, 12):
        for back in range(10):
            flip(pipeline.newest(back), 0, 0)
        step_until(pipeline, round_)
    assert bench.done().errors > 64
    assert len(bench.findings()) == 64


def test_evidence_is_reported_before_a_rest(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stressor may be killed during a long rest."""
    pipeline = pipeline_of(bench)
    examine = pipeline.examiner.examine

    def end_rest() -> None:
        bench.stop()
        bench.lease_keeper.pace_changed.set()

    def resting(wrong: list[Tensor], spare: Tensor) -> Outcome:
        bench.lease_keeper.share = 0.0
        try:
            return examine(wrong, spare)
        finally:
            bench.lease_keeper.share = 1.0

    monkeypatch.setattr(pipeline.examiner, "examine", resting)
    timer = threading.Timer(60, end_rest)
    timer.start()
    step_until(pipeline, 1)
    assert bench.ctx.ready, "there are no rests before Ready"
    flip(pipeline.newest(), 5, 1)
    step_until(pipeline, 3)
    assert not bench.lease_keeper.stopped.is_set()
    timer.cancel()
    assert [finding.place for finding in bench.findings()] == [FindingPlace.RESULT]


# --- GPUs and checks that fail---------------------------------------------------------------


def test_a_gpu_that_computes_differently_each_time_is_refused(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    mm, drift = torch.mm, iter(range(1000))

    def drifting(left: Tensor, right: Tensor, *, out: Tensor) -> Tensor:
        return mm(left, right, out=out).add_(next(drift))

    monkeypatch.setattr(torch, "mm", drifting)
    pipeline = unprepared_pipeline(bench)
    with pytest.raises(RuntimeError, match="computes wrongly"):
        pipeline.prepare(seed=1)
    assert {finding.detail for finding in bench.findings()} == {
        "the reference, computed a second time"
    }


def test_checks_that_miss_a_flipped_bit_are_refused(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = unprepared_pipeline(bench)
    monkeypatch.setattr(pipeline.inspector.comparison, "mark", lambda result, wrong: None)
    with pytest.raises(RuntimeError, match="a flipped bit was not found"):
        pipeline.prepare(seed=1)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("where", ["first block", "later block"])
def test_a_wrongly_filled_input_is_found_and_repaired(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, side: int, where: str
) -> None:
    """Otherwise its checksum would be that of the wrong content."""
    monkeypatch.setattr("sentinel.stressor.matmul._BLOCK_LENGTH", 61)
    pipeline = pipeline_of(bench)
    fill = pipeline.product.fill
    flipped: list[int] = []

    def corrupt(seed: int) -> None:
        fill(seed)
        if not flipped:
            flipped.append(7 if where == "first block" else 200)
            flip(pipeline.product.inputs[side], flipped[0], 3)

    monkeypatch.setattr(pipeline.product, "fill", corrupt)
    pipeline.begin_seed(seed=2)
    (finding,) = bench.findings()
    assert (finding.place, finding.seed, finding.count) == (FindingPlace.INPUT, 2, 1)
    assert finding.repeated == 0
    assert bench.done().errors == 1
    step_until(pipeline, 2)
    assert pipeline.finish_seed()
    assert len(bench.findings()) == 1


def test_an_input_that_cannot_be_repaired_ends_the_workload(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = pipeline_of(bench)
    fill_one = pipeline.product.fill_one

    def stuck(number: int, seed: int) -> None:
        fill_one(number, seed)
        flip(pipeline.product.left, 0, 14)

    monkeypatch.setattr(pipeline.product, "fill_one", stuck)
    flip(pipeline.product.left, 0, 14)
    with pytest.raises(RuntimeError, match="the left input is wrong after every repair"):
        pipeline.finish_seed()
    assert [finding.repeated for finding in bench.findings()] == [3]


def test_wrong_bits_that_cancel_out_in_the_sums_are_all_found(bench: Workbench) -> None:
    """Some changes of eight equally distant elements, by +x and -x, leave all sums."""
    pipeline = pipeline_of(bench, "fp32")
    step_until(pipeline, 1)
    matrix = pipeline.newest()
    before = pipeline.inspector.checksum(matrix)
    lowest = (integers(matrix) & 1).tolist()
    element_sets = (range(n, n + 8 * step, step) for step in range(1, 15) for n in range(128))
    elements = next(
        found
        for found in element_sets
        if [lowest[n] for n in found] == [0, 1, 1, 0, 1, 0, 0, 1]
        and len({4 * n // before.piece_bytes for n in found}) == 1
    )
    corrupt(matrix, elements, 1)
    assert pipeline.inspector.checksum(matrix) == before
    assert pipeline.finish_seed()
    (finding,) = bench.findings()
    assert (finding.place, finding.count) == (FindingPlace.RESULT, 8)
