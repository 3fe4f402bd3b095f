"""The ring of products: everything that goes wrong in it is found, told apart and examined."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from sentinel.protocol.stressor import FindingPlace
from sentinel.stressor.verification.comparison import flip
from sentinel.stressor.verification.diagnosis import Outcome
from sentinel.stressor.verification.matmul import DTYPES
from sentinel.stressor.verification.sizing import build
from tests.harness.pipeline_harness import ALL, SIZE, newest, ring_of, turn_until
from tests.harness.workload_harness import GIB, Workbench, workbench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with workbench(tmp_path, chunks=8, chunk=GIB // 2) as bench:
        yield bench


# --- every result, once ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_every_result_is_checked_once_and_none_is_wrong(bench: Workbench, name: str) -> None:
    pipeline = ring_of(bench, name)
    turn_until(pipeline, 3)
    assert bench.done().checks > len(pipeline.places)
    assert pipeline.close()
    assert bench.done().checks == pipeline.written
    assert (bench.done().errors, bench.findings()) == (0, [])


@given(places=st.integers(3, 12), share=st.floats(0.0, 1.0), parts=st.lists(st.integers(1, 6)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_result_is_known_to_be_right_or_wrong_before_its_place_is_queued_again(
    bench: Workbench, places: int, share: float, parts: list[int]
) -> None:
    """Whatever the quanta are: the host knows of a check when the second turn after it begins."""
    (pipeline,) = build(bench.ctx, (DTYPES["bf16"],), workload="gemm", size=SIZE)
    del pipeline.places[places:]
    pipeline.per_quantum = 1 + round(share * ((places - 1) // 2 - 1))
    number = {place.data_ptr(): index for index, place in enumerate(pipeline.places)}
    turn = 0
    holds: dict[int, int] = {}  # which result lies in a place
    checked: dict[int, int] = {}  # in which turn a result was checked

    def multiply(out: Tensor) -> None:
        place = number[out.data_ptr()]
        if place in holds:
            assert checked[holds[place]] <= turn - 2, "its check is on its way"
        holds[place] = pipeline.written

    def mark(result: Tensor, wrong: Tensor) -> None:
        one = holds[number[result.data_ptr()]]
        assert one not in checked, "it was checked already"
        checked[one] = turn

    vars(pipeline.product)["multiply"] = multiply
    vars(pipeline.instruments.comparison)["mark"] = mark
    for at_most in [*parts, *[pipeline.per_quantum] * 2 * places]:
        turn += 1
        pipeline.turn(at_most=at_most)
    assert list(checked) == list(range(len(checked)))
    assert pipeline.unchecked == places - 2 * pipeline.per_quantum
    vars(pipeline.instruments)["checksum"] = lambda _: 0
    pipeline.examiner.sums = [0, 0, 0]
    pipeline.close()
    assert list(checked) == list(range(pipeline.written))


def test_a_sample_checks_one_in_sixteen_and_every_place_in_turn(bench: Workbench) -> None:
    pipeline = ring_of(bench, verify="sample")
    turn_until(pipeline, 3)
    assert pipeline.written / 24 < bench.done().checks < pipeline.written / 12
    due = {n % len(pipeline.places) for n in range(17 * len(pipeline.places)) if pipeline._due(n)}
    assert due == set(range(len(pipeline.places)))
    newest(pipeline).view(torch.int16)[1, 2].bitwise_xor_(4)
    assert pipeline.close()
    assert [finding.first for finding in bench.findings()] == [(1, 2)], (
        "all of a seed is checked at its end"
    )


def test_off_checks_nothing(bench: Workbench) -> None:
    pipeline = ring_of(bench, verify="off")
    turn_until(pipeline, 2)
    flip(newest(pipeline), 0, 0)
    turn_until(pipeline, 4)
    assert pipeline.close()
    assert (bench.done().checks, bench.done().errors) == (0, 0)


def test_a_quantum_that_nobody_waited_for_is_judged_in_the_end(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop comes before the call that would have waited."""
    pipeline = ring_of(bench)
    turn_until(pipeline, 2)
    judged: list[int] = []
    judge = pipeline._judge

    def note(keep: int) -> None:
        judged.append(keep)
        judge(keep)

    monkeypatch.setattr(pipeline, "_judge", note)
    monkeypatch.setattr(bench.ctx, "pace", lambda **_: False)
    assert not pipeline.turn()
    assert judged == []
    pipeline.settle()
    assert judged == [0]


def test_a_hook_is_called_between_two_quanta(bench: Workbench) -> None:
    pipeline = ring_of(bench)
    called: list[int] = []

    def once() -> None:
        if not called:
            flip(newest(pipeline), 9, 2)
        called.append(pipeline.written)

    pipeline.between = once
    turn_until(pipeline, 2)
    assert len(set(called)) == len(called) > 2
    assert [finding.first for finding in bench.findings()] == [(0, 9)]


# --- what is found ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_every_flipped_bit_of_a_result_is_found_where_it_is(bench: Workbench, name: str) -> None:
    pipeline = ring_of(bench, name)
    draw = random.Random(name)
    for turn in range(12):
        turn_until(pipeline, pipeline.rounds + 1)
        matrix = newest(pipeline, back=draw.randrange(len(pipeline.places) // 2))
        element, bit = draw.randrange(matrix.numel()), draw.randrange(8 * matrix.element_size())
        flip(matrix, element, bit)
        turn_until(pipeline, pipeline.rounds + 2)
        assert len(bench.findings()) == turn + 1
        finding = bench.findings()[-1]
        assert finding.place is FindingPlace.RESULT
        assert (finding.count, finding.first) == (1, divmod(element, SIZE))
        assert [n for n, times in enumerate(finding.bits) if times] == [bit]
        assert (finding.reread, finding.repeated, finding.repeats) == (True, 0, 3)
        assert (finding.workload, finding.dtype, finding.seed) == ("gemm", name, 1)
    assert bench.done().errors == 12


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("name", ALL)
def test_every_flipped_bit_of_an_input_is_told_from_a_wrong_result(
    bench: Workbench, name: str, number: int
) -> None:
    pipeline = ring_of(bench, name)
    draw = random.Random(name)
    for turn in range(6):
        matrix = pipeline.product.inputs[number]
        element, bit = draw.randrange(matrix.numel()), draw.randrange(8 * matrix.element_size())
        flip(matrix, element, bit)
        turn_until(pipeline, pipeline.rounds + 1)
        assert pipeline.close()
        assert len(bench.findings()) == turn + 1
        finding = bench.findings()[-1]
        assert finding.place is FindingPlace.INPUT
        assert finding.first == pipeline.product.coordinates(matrix, element)
        assert (finding.count, finding.bits[bit], finding.repeated) == (1, 1, 0)
    turn_until(pipeline, pipeline.rounds + 2)
    assert len(bench.findings()) == 6, "the input was made anew"


@pytest.mark.parametrize("name", ["bf16", "int8"])
def test_a_corrupted_reference_is_told_from_wrong_results(bench: Workbench, name: str) -> None:
    pipeline = ring_of(bench, name)
    turn_until(pipeline, 2)
    flip(pipeline.product.reference, 130, 5)
    turn_until(pipeline, 4)
    (finding,) = bench.findings()
    assert (finding.place, finding.count, finding.first) == (FindingPlace.REFERENCE, 1, (2, 2))
    assert bench.done().errors == 1, "the results that differed from it were right"


def test_a_result_that_is_wrong_each_time_is_repeatable(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = ring_of(bench)
    turn_until(pipeline, 1)
    multiply = pipeline.product.multiply

    def wrong(out: Tensor) -> None:
        multiply(out)
        out[3, 4] = float("nan")

    monkeypatch.setattr(pipeline.product, "multiply", wrong)
    turn_until(pipeline, 2)
    assert {finding.repeated for finding in bench.findings()} == {3}
    assert {(finding.count, finding.first) for finding in bench.findings()} == {(1, (3, 4))}


def test_a_bad_load_is_told_from_a_bad_store(bench: Workbench) -> None:
    pipeline = ring_of(bench)
    place = pipeline.places[0]
    pipeline.product.multiply(place)
    outcome = pipeline.examiner.examine([place], pipeline.places[1])
    (finding,) = bench.findings()
    assert (outcome.errors, finding.reread, finding.count, finding.first) == (1, False, 0, ())


def test_many_findings_are_counted_and_not_all_examined(bench: Workbench) -> None:
    pipeline = ring_of(bench)
    turn_until(pipeline, 1)
    for round_ in range(2, 12):
        for back in range(10):
            flip(newest(pipeline, back), 0, 0)
        turn_until(pipeline, round_)
    assert bench.done().errors > 64
    assert len(bench.findings()) == 64


def test_evidence_is_told_before_a_rest(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever rests for hours may be killed meanwhile."""
    pipeline = ring_of(bench)
    examine = pipeline.examiner.examine

    def rescue() -> None:
        bench.stop()
        bench.lease_keeper.repaced.set()

    def resting(wrong: list[Tensor], spare: Tensor) -> Outcome:
        bench.lease_keeper.share = 0.0
        try:
            return examine(wrong, spare)
        finally:
            bench.lease_keeper.share = 1.0

    monkeypatch.setattr(pipeline.examiner, "examine", resting)
    timer = threading.Timer(20, rescue)
    timer.start()
    turn_until(pipeline, 1)
    assert bench.ctx.ready, "nobody rests before"
    flip(newest(pipeline), 5, 1)
    turn_until(pipeline, 3)
    assert not bench.lease_keeper.stopped.is_set()
    timer.cancel()
    assert [finding.place for finding in bench.findings()] == [FindingPlace.RESULT]


# --- what cannot be trusted ------------------------------------------------------------------


def test_a_gpu_that_computes_differently_each_time_is_refused(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    mm, drift = torch.mm, iter(range(1000))

    def drifting(left: Tensor, right: Tensor, *, out: Tensor) -> Tensor:
        return mm(left, right, out=out).add_(next(drift))

    monkeypatch.setattr(torch, "mm", drifting)
    (pipeline,) = build(bench.ctx, (DTYPES["bf16"],), workload="gemm", size=SIZE)
    with pytest.raises(RuntimeError, match="computes wrongly"):
        pipeline.prepare(seed=1)
    assert {finding.detail for finding in bench.findings()} == {
        "the reference, computed a second time"
    }


def test_blind_checks_are_found_out(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    (pipeline,) = build(bench.ctx, (DTYPES["bf16"],), workload="gemm", size=SIZE)
    monkeypatch.setattr(pipeline.instruments.comparison, "mark", lambda result, wrong: None)
    with pytest.raises(RuntimeError, match="a flipped bit was not found"):
        pipeline.prepare(seed=1)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("where", ["first block", "behind it"])
def test_an_input_that_is_wrong_when_it_was_filled_is_found_and_made_anew(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, side: int, where: str
) -> None:
    """Its checksum would be that of the wrong one."""
    monkeypatch.setattr("sentinel.stressor.verification.matmul._PERIOD", 61)
    pipeline = ring_of(bench)
    fill = pipeline.product.fill
    flipped: list[int] = []

    def spoil(seed: int) -> None:
        fill(seed)
        if not flipped:
            flipped.append(7 if where == "first block" else 2000)
            flip(pipeline.product.inputs[side], flipped[0], 3)

    monkeypatch.setattr(pipeline.product, "fill", spoil)
    pipeline.open(seed=2)
    (finding,) = bench.findings()
    assert (finding.place, finding.seed, finding.count) == (FindingPlace.INPUT, 2, 1)
    assert finding.repeated == 0
    assert bench.done().errors == 1
    turn_until(pipeline, 2)
    assert pipeline.close()
    assert len(bench.findings()) == 1


def test_an_input_that_cannot_be_mended_ends_it(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = ring_of(bench)
    fill_one = pipeline.product.fill_one

    def stuck(number: int, seed: int) -> None:
        fill_one(number, seed)
        flip(pipeline.product.left, 0, 14)

    monkeypatch.setattr(pipeline.product, "fill_one", stuck)
    flip(pipeline.product.left, 0, 14)
    with pytest.raises(RuntimeError, match="the left input is wrong each time"):
        pipeline.close()
    assert [finding.repeated for finding in bench.findings()] == [3]
