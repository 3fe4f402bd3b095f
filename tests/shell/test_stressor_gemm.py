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
from workbench import GIB, Workbench, workbench

from sentinel.errors import ConfigError
from sentinel.goldens import Goldens
from sentinel.messages import FindingPlace
from sentinel.stressor.choosing import build
from sentinel.stressor.examine import Outcome
from sentinel.stressor.golden import key_of
from sentinel.stressor.inject import flip
from sentinel.stressor.products import DTYPES, MEMORY
from sentinel.stressor.ring import Ring, Verify
from sentinel.stressor.verify import BitComparison, Checksum
from sentinel.stressor.workloads.gemm import burn, gemm

ALL = [*DTYPES, "memory"]
SIZE = 64
#: So many quanta are enough for any number of rounds that is waited for here.
MOST = 10_000


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with workbench(tmp_path, chunks=8, chunk=GIB // 2) as bench:
        yield bench


def ring_of(bench: Workbench, name: str = "bf16", verify: Verify = "full") -> Ring:
    dtype = DTYPES.get(name, MEMORY)
    (ring,) = build(bench.ctx, (dtype,), workload="gemm", size=SIZE, verify=verify)
    ring.prepare(seed=1)
    assert bench.findings() == []
    return ring


def newest(ring: Ring, back: int = 0) -> Tensor:
    """Return a place whose result was not checked yet."""
    return ring.places[(ring.written - 1 - back) % len(ring.places)]


def turn_until(ring: Ring, round_: int) -> None:
    """Go round until the ring was written so often, and everything is judged."""
    for _ in range(MOST):
        if ring.rounds >= round_:
            return
        assert ring.turn()
    raise AssertionError(f"no round {round_}")


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


# --- seeds -----------------------------------------------------------------------------------


def test_seeds_take_turns_and_all_of_one_is_checked_before_the_next(bench: Workbench) -> None:
    ring = ring_of(bench)
    seen: list[int] = []
    references: dict[int, list[int]] = {}

    def look() -> None:
        if not seen or seen[-1] != ring.seed:
            seen.append(ring.seed)
            references.setdefault(ring.seed, []).append(ring.examiner.sums[2])
        if len(seen) == 5:
            bench.stop()

    ring.between = look
    burn(ring, seeds=3, seconds=0.0)
    assert seen == [1, 2, 3, 1, 2]
    assert len({sums[0] for sums in references.values()}) == 3
    assert references[1][0] == references[1][1]
    assert (bench.findings(), bench.done().errors) == ([], 0)


def test_what_went_wrong_in_the_last_round_of_a_seed_is_found(bench: Workbench) -> None:
    ring = ring_of(bench)
    turn_until(ring, 2)
    flip(newest(ring), 1, 1)
    assert ring.close()
    ring.open(seed=2)
    assert [(finding.first, finding.seed) for finding in bench.findings()] == [((0, 1), 1)]


# --- what other GPUs compute -----------------------------------------------------------------


def go_through(bench: Workbench, ring: Ring, seeds: int, count: int) -> None:
    """Go through so many seeds, one after another."""
    seen: list[int] = []

    def look() -> None:
        if not seen or seen[-1] != ring.seed:
            seen.append(ring.seed)
        if len(seen) == count:
            bench.stop()

    ring.between = look
    burn(ring, seeds, seconds=0.0)
    assert len(seen) == count
    bench.leash.stopped.clear()


def test_the_first_records_what_it_computes_and_the_second_agrees(
    bench: Workbench, tmp_path: Path
) -> None:
    bench.ctx.goldens = Goldens(tmp_path / "goldens.jsonl")
    first = ring_of(bench)
    go_through(bench, first, seeds=3, count=5)
    assert [golden.key.seed for golden in bench.ctx.goldens.records()] == [1, 2, 3]
    ring_of(bench, "fp32")
    go_through(bench, ring_of(bench), seeds=3, count=5)
    assert len(bench.ctx.goldens.records()) == 4
    keys = {golden.key for golden in bench.ctx.goldens.records()}
    assert {key.dtype for key in keys} == {"bf16", "fp32"}
    assert {key.shape for key in keys} == {"64x64x64 v1"}
    assert (bench.findings(), bench.done().errors) == ([], 0)


def test_a_gpu_that_is_always_wrong_in_the_same_way_is_told_once_for_each_seed(
    bench: Workbench, tmp_path: Path
) -> None:
    bench.ctx.goldens = Goldens(tmp_path / "goldens.jsonl")
    ring = ring_of(bench)
    bench.ctx.goldens.add({key_of(ring.product, 2): 0x123})
    go_through(bench, ring, seeds=2, count=6)
    (finding,) = bench.findings()
    assert (finding.place, finding.seed) == (FindingPlace.GOLDEN, 2)
    assert "0x0000000000000123 is on record" in finding.detail
    assert (finding.repeated, bench.done().errors) == (1, 1)


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
    monkeypatch.setattr("sentinel.stressor.products._PERIOD", 61)
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


def test_what_was_not_proved_yet_is_no_golden(
    bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.ctx.goldens = Goldens(tmp_path / "goldens.jsonl")
    (ring,) = build(bench.ctx, (DTYPES["bf16"],), workload="gemm", size=SIZE, verify="full")
    monkeypatch.setattr("sentinel.stressor.ring.flip", lambda *_: None)
    with pytest.raises(RuntimeError, match="was not found"):
        ring.prepare(seed=1)
    assert bench.ctx.goldens.records() == ()


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
    monkeypatch.setattr(bench.ctx, "pace", lambda _: False)
    assert not ring.turn()
    assert judged == []
    ring.settle()
    assert judged == [0]


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


# --- the workload ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", DTYPES)
def test_the_workload_goes_round_until_it_is_stopped(bench: Workbench, name: str) -> None:
    threading.Timer(0.1, bench.stop).start()
    gemm(bench.ctx, dtype=name)  # type: ignore[arg-type]
    assert bench.ctx.iterations > 0
    assert bench.done().errors == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": 100}, "size=100 is not a positive multiple of 64"),
        ({"size": 4096}, "no room for inputs, a reference and 3 results of size=4096"),
        ({"seeds": 0}, "seeds=0 is out of range"),
    ],
)
def test_an_option_out_of_range_is_named(
    bench: Workbench, options: dict[str, int], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        gemm(bench.ctx, **options)  # type: ignore[arg-type]


# --- the tools -------------------------------------------------------------------------------


def test_a_checksum_changes_with_every_bit_and_with_the_order() -> None:
    integers = torch.arange(-500, 500, dtype=torch.int32)
    weights, weighted = (torch.zeros(512, dtype=torch.uint8) for _ in range(2))
    checksum = Checksum(weights, weighted, longest=4000)

    def taken() -> int:
        checksum.queue(integers)
        return checksum.value()

    total = sum((2 * n + 1) * value for n, value in enumerate(integers.tolist())) % 2**64
    assert taken() == total
    whole, scratch = (torch.zeros(8000, dtype=torch.uint8) for _ in range(2))
    in_one_piece = Checksum(whole, scratch, longest=4000)
    in_one_piece.queue(integers)
    assert in_one_piece.value() == total
    seen = {total}
    for element, bit in [(0, 0), (0, 31), (63, 1), (63, 31), (64, 31), (500, 20), (999, 31)]:
        flip(integers, element, bit)
        seen.add(taken())
    assert len(seen) == 8
    for left, right in [(0, 1), (3, 67), (900, 5)]:
        integers[[left, right]] = integers[[right, left]]
        seen.add(taken())
    assert len(seen) == 11


def test_a_blind_comparison_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = torch.ones(SIZE, SIZE, dtype=torch.bfloat16)
    comparison = BitComparison(reference, torch.empty_like(reference))

    def blind(left: Tensor, right: Tensor, *, out: Tensor) -> Tensor:
        return out.fill_(False)

    comparison.prove(torch.empty_like(reference))
    monkeypatch.setattr(torch, "ne", blind)
    with pytest.raises(RuntimeError, match="a flipped bit was not found"):
        comparison.prove(torch.empty_like(reference))
