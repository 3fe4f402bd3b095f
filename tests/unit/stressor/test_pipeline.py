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
    ring = ring_of(bench, name)
    turn_until(ring, 3)
    assert bench.done().checks > len(ring.places)
    assert ring.close()
    assert bench.done().checks == ring.written
    assert (bench.done().errors, bench.findings()) == (0, [])


@given(places=st.integers(3, 12), share=st.floats(0.0, 1.0), parts=st.lists(st.integers(1, 6)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_result_is_known_to_be_right_or_wrong_before_its_place_is_queued_again(
    bench: Workbench, places: int, share: float, parts: list[int]
) -> None:
    """Whatever the quanta are: the host knows of a check when the second turn after it begins."""
    (ring,) = build(bench.ctx, (DTYPES["bf16"],), workload="gemm", size=SIZE)
    del ring.places[places:]
    ring.per_quantum = 1 + round(share * ((places - 1) // 2 - 1))
    number = {place.data_ptr(): index for index, place in enumerate(ring.places)}
    turn = 0
    holds: dict[int, int] = {}  # which result lies in a place
    checked: dict[int, int] = {}  # in which turn a result was checked

    def multiply(out: Tensor) -> None:
        place = number[out.data_ptr()]
        if place in holds:
            assert checked[holds[place]] <= turn - 2, "its check is on its way"
        holds[place] = ring.written

    def mark(result: Tensor, wrong: Tensor) -> None:
        one = holds[number[result.data_ptr()]]
        assert one not in checked, "it was checked already"
        checked[one] = turn

    vars(ring.product)["multiply"] = multiply
    vars(ring.instruments.comparison)["mark"] = mark
    for at_most in [*parts, *[ring.per_quantum] * 2 * places]:
        turn += 1
        ring.turn(at_most=at_most)
    assert list(checked) == list(range(len(checked)))
    assert ring.unchecked == places - 2 * ring.per_quantum
    vars(ring.instruments)["checksum"] = lambda _: 0
    ring.examiner.sums = [0, 0, 0]
    ring.close()
    assert list(checked) == list(range(ring.written))


def test_a_sample_checks_one_in_sixteen_and_every_place_in_turn(bench: Workbench) -> None:
    ring = ring_of(bench, verify="sample")
    turn_until(ring, 3)
    assert ring.written / 24 < bench.done().checks < ring.written / 12
    due = {n % len(ring.places) for n in range(17 * len(ring.places)) if ring._due(n)}
    assert due == set(range(len(ring.places)))
    newest(ring).view(torch.int16)[1, 2].bitwise_xor_(4)
    assert ring.close()
    assert [finding.first for finding in bench.findings()] == [(1, 2)], (
        "all of a seed is checked at its end"
    )


def test_off_checks_nothing(bench: Workbench) -> None:
    ring = ring_of(bench, verify="off")
    turn_until(ring, 2)
    flip(newest(ring), 0, 0)
    turn_until(ring, 4)
    assert ring.close()
    assert (bench.done().checks, bench.done().errors) == (0, 0)


def test_a_quantum_that_nobody_waited_for_is_judged_in_the_end(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop comes before the call that would have waited."""
    ring = ring_of(bench)
    turn_until(ring, 2)
    judged: list[int] = []
    judge = ring._judge

    def note(keep: int) -> None:
        judged.append(keep)
        judge(keep)

    monkeypatch.setattr(ring, "_judge", note)
    monkeypatch.setattr(bench.ctx, "pace", lambda **_: False)
    assert not ring.turn()
    assert judged == []
    ring.settle()
    assert judged == [0]


def test_a_hook_is_called_between_two_quanta(bench: Workbench) -> None:
    ring = ring_of(bench)
    called: list[int] = []

    def once() -> None:
        if not called:
            flip(newest(ring), 9, 2)
        called.append(ring.written)

    ring.between = once
    turn_until(ring, 2)
    assert len(set(called)) == len(called) > 2
    assert [finding.first for finding in bench.findings()] == [(0, 9)]


# --- what is found ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_every_flipped_bit_of_a_result_is_found_where_it_is(bench: Workbench, name: str) -> None:
    ring = ring_of(bench, name)
    draw = random.Random(name)
    for turn in range(12):
        turn_until(ring, ring.rounds + 1)
        matrix = newest(ring, back=draw.randrange(len(ring.places) // 2))
        element, bit = draw.randrange(matrix.numel()), draw.randrange(8 * matrix.element_size())
        flip(matrix, element, bit)
        turn_until(ring, ring.rounds + 2)
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
    ring = ring_of(bench, name)
    draw = random.Random(name)
    for turn in range(6):
        matrix = ring.product.inputs[number]
        element, bit = draw.randrange(matrix.numel()), draw.randrange(8 * matrix.element_size())
        flip(matrix, element, bit)
        turn_until(ring, ring.rounds + 1)
        assert ring.close()
        assert len(bench.findings()) == turn + 1
        finding = bench.findings()[-1]
        assert finding.place is FindingPlace.INPUT
        assert finding.first == ring.product.coordinates(matrix, element)
        assert (finding.count, finding.bits[bit], finding.repeated) == (1, 1, 0)
    turn_until(ring, ring.rounds + 2)
    assert len(bench.findings()) == 6, "the input was made anew"


@pytest.mark.parametrize("name", ["bf16", "int8"])
def test_a_corrupted_reference_is_told_from_wrong_results(bench: Workbench, name: str) -> None:
    ring = ring_of(bench, name)
    turn_until(ring, 2)
    flip(ring.product.reference, 130, 5)
    turn_until(ring, 4)
    (finding,) = bench.findings()
    assert (finding.place, finding.count, finding.first) == (FindingPlace.REFERENCE, 1, (2, 2))
    assert bench.done().errors == 1, "the results that differed from it were right"


def test_a_result_that_is_wrong_each_time_is_repeatable(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = ring_of(bench)
    turn_until(ring, 1)
    multiply = ring.product.multiply

    def wrong(out: Tensor) -> None:
        multiply(out)
        out[3, 4] = float("nan")

    monkeypatch.setattr(ring.product, "multiply", wrong)
    turn_until(ring, 2)
    assert {finding.repeated for finding in bench.findings()} == {3}
    assert {(finding.count, finding.first) for finding in bench.findings()} == {(1, (3, 4))}


def test_a_bad_load_is_told_from_a_bad_store(bench: Workbench) -> None:
    ring = ring_of(bench)
    place = ring.places[0]
    ring.product.multiply(place)
    outcome = ring.examiner.examine([place], ring.places[1])
    (finding,) = bench.findings()
    assert (outcome.errors, finding.reread, finding.count, finding.first) == (1, False, 0, ())


def test_many_findings_are_counted_and_not_all_examined(bench: Workbench) -> None:
    ring = ring_of(bench)
    turn_until(ring, 1)
    for round_ in range(2, 12):
        for back in range(10):
            flip(newest(ring, back), 0, 0)
        turn_until(ring, round_)
    assert bench.done().errors > 64
    assert len(bench.findings()) == 64


def test_evidence_is_told_before_a_rest(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever rests for hours may be killed meanwhile."""
    ring = ring_of(bench)
    examine = ring.examiner.examine

    def rescue() -> None:
        bench.stop()
        bench.leash.repaced.set()

    def resting(wrong: list[Tensor], spare: Tensor) -> Outcome:
        bench.leash.share = 0.0
        try:
            return examine(wrong, spare)
        finally:
            bench.leash.share = 1.0

    monkeypatch.setattr(ring.examiner, "examine", resting)
    timer = threading.Timer(20, rescue)
    timer.start()
    turn_until(ring, 1)
    assert bench.ctx.ready, "nobody rests before"
    flip(newest(ring), 5, 1)
    turn_until(ring, 3)
    assert not bench.leash.stopped.is_set()
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
    (ring,) = build(bench.ctx, (DTYPES["bf16"],), workload="gemm", size=SIZE)
    with pytest.raises(RuntimeError, match="computes wrongly"):
        ring.prepare(seed=1)
    assert {finding.detail for finding in bench.findings()} == {
        "the reference, computed a second time"
    }


def test_blind_checks_are_found_out(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    (ring,) = build(bench.ctx, (DTYPES["bf16"],), workload="gemm", size=SIZE)
    monkeypatch.setattr(ring.instruments.comparison, "mark", lambda result, wrong: None)
    with pytest.raises(RuntimeError, match="a flipped bit was not found"):
        ring.prepare(seed=1)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("where", ["first block", "behind it"])
def test_an_input_that_is_wrong_when_it_was_filled_is_found_and_made_anew(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, side: int, where: str
) -> None:
    """Its checksum would be that of the wrong one."""
    monkeypatch.setattr("sentinel.stressor.verification.matmul._PERIOD", 61)
    ring = ring_of(bench)
    fill = ring.product.fill
    flipped: list[int] = []

    def spoil(seed: int) -> None:
        fill(seed)
        if not flipped:
            flipped.append(7 if where == "first block" else 2000)
            flip(ring.product.inputs[side], flipped[0], 3)

    monkeypatch.setattr(ring.product, "fill", spoil)
    ring.open(seed=2)
    (finding,) = bench.findings()
    assert (finding.place, finding.seed, finding.count) == (FindingPlace.INPUT, 2, 1)
    assert finding.repeated == 0
    assert bench.done().errors == 1
    turn_until(ring, 2)
    assert ring.close()
    assert len(bench.findings()) == 1


def test_an_input_that_cannot_be_mended_ends_it(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = ring_of(bench)
    fill_one = ring.product.fill_one

    def stuck(number: int, seed: int) -> None:
        fill_one(number, seed)
        flip(ring.product.left, 0, 14)

    monkeypatch.setattr(ring.product, "fill_one", stuck)
    flip(ring.product.left, 0, 14)
    with pytest.raises(RuntimeError, match="the left input is wrong each time"):
        ring.close()
    assert [finding.repeated for finding in bench.findings()] == [3]
