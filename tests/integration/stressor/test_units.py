"""The workload units, with small memories in this process: clean, and with a fault in each unit."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sentinel.config.options import UNITS as NAMES
from sentinel.errors import ConfigError
from sentinel.host.golden_store import Goldens
from sentinel.protocol.stressor import FindingPlace, ReferenceChecksum, UnitExercised
from sentinel.stressor import execution_units
from sentinel.stressor.comparison import flip
from sentinel.stressor.diagnosis import FindingReporter
from sentinel.stressor.execution_units import UNITS, why_not
from sentinel.stressor.injection import FaultKind
from sentinel.stressor.matmul import Layout, Needs, lay_out
from sentinel.stressor.pointer_chase import GATHER, PointerChase
from sentinel.stressor.workloads import units
from tests.harness.parameters import mostly_long
from tests.harness.workload_harness import GIB, NOT_ON_CPUS, Workbench, workbench

#: e5m2 is emulated at 60 ns per multiplication.
ABLE = [name for name in NAMES if name not in NOT_ON_CPUS]
COMPUTED = [name for name in ABLE if name != GATHER]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with workbench(tmp_path, chunks=12, chunk=GIB // 8) as bench:
        yield bench


def exercise(bench: Workbench, plan: str, rounds: int, seconds: float = 0.1) -> None:
    """Run the workload until each unit of the plan was exercised ``rounds`` times."""

    def stop_when_done() -> None:
        done = [one for one in bench.sent(UnitExercised) if one.not_exercised is None]
        if len(done) >= rounds * len(plan.split("+")):
            bench.stop()

    bench.device.on_wait = stop_when_done
    units(bench.ctx, plan=plan, seconds=seconds)


class Fault:
    """Makes a unit compute one wrong bit, once the workload is ready."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, bench: Workbench, name: str) -> None:
        unit = UNITS[name]
        self.results = 0
        draw = random.Random(name)

        def compute(product: Any, out: torch.Tensor) -> None:
            unit.multiply(product, out)
            if bench.ctx.ready and out is not product.reference:
                self.results += 1
                if self.results == 1:  # a busy machine computes few in a tenth of a second
                    bit = draw.randrange(8 * out.element_size())
                    self.place = draw.randrange(out.numel())
                    self.first = product.coordinates(out, self.place)
                    flip(out, self.place, bit)
                    self.bits = tuple(int(n == bit) for n in range(8 * out.element_size()))

        monkeypatch.setitem(UNITS, name, replace(unit, multiply=compute))


def test_all_units_are_exercised_and_counted(bench: Workbench) -> None:
    exercise(bench, "+".join(NAMES), rounds=1)
    sent = bench.sent(UnitExercised)
    checks: dict[str, int] = {}
    for one in sent:
        checks[one.unit] = checks.get(one.unit, 0) + one.checks
        assert one.wrong == 0
    assert checks.keys() == set(NAMES)
    assert {name for name, count in checks.items() if not count} == NOT_ON_CPUS
    refused = {one.unit: one.not_exercised for one in sent if one.not_exercised is not None}
    assert refused.keys() == NOT_ON_CPUS
    for name in ("sfu", "shared"):
        assert str(refused[name]).endswith("PTX runs on a real GPU alone")
    assert bench.findings() == []
    done = bench.done()
    assert (done.errors, done.checks) == (0, sum(checks.values()))


@mostly_long("name", COMPUTED, quick=3)
def test_a_wrong_result_of_a_unit_is_found_and_names_it(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    fault = Fault(monkeypatch, bench, name)
    exercise(bench, name, rounds=1)
    (finding,) = bench.findings()
    assert (finding.workload, finding.dtype, finding.place) == ("units", name, FindingPlace.RESULT)
    assert (finding.count, finding.first, finding.bits) == (1, fault.first, fault.bits)
    assert (finding.reread, finding.repeated) == (True, 0)
    assert sum(one.wrong for one in bench.sent(UnitExercised)) == bench.done().errors == 1


def test_a_unit_that_is_always_wrong_differs_from_the_golden_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "goldens.jsonl"
    sin = UNITS["sin"]
    for good in (True, False):
        with workbench(tmp_path / str(good), chunks=12, chunk=GIB // 8) as bench:
            bench.ctx.goldens = Goldens(path)
            exercise(bench, "exp+sin", rounds=1)
            findings = bench.findings()
            assert bench.sent(ReferenceChecksum)
            assert [(one.dtype, one.place) for one in findings] == (
                [] if good else [("sin", FindingPlace.GOLDEN)]
            )

        def wrong(product: Any, out: torch.Tensor) -> None:
            sin.multiply(product, out)
            flip(out, 3, 0)

        monkeypatch.setitem(UNITS, "sin", replace(sin, multiply=wrong))


# --- what cannot be exercised ------------------------------------------------------------------


def test_an_operation_that_torch_refuses_is_not_exercised_and_no_alarm(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise NotImplementedError("not for this device")

    monkeypatch.setitem(UNITS, "sort", replace(UNITS["sort"], multiply=refuse))
    exercise(bench, "exp+sort", rounds=1)
    refused = [one for one in bench.sent(UnitExercised) if one.not_exercised]
    assert [(one.unit, one.checks) for one in refused] == [("sort", 0)]
    assert "NotImplementedError: not for this device" in str(refused[0].not_exercised)
    assert bench.findings() == []
    with pytest.raises(ConfigError, match=r"nothing can be exercised: .*not for this device"):
        units(bench.ctx, plan="sort")


def test_the_gather_is_exercised_alone(bench: Workbench) -> None:
    exercise(bench, GATHER, rounds=1)
    assert bench.sent(UnitExercised)[0].checks > 0
    assert bench.findings() == []


def test_a_unit_is_tried_on_a_small_part_of_a_large_memory(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To list every place for such a small result took minutes on a whole GPU."""
    places: list[int] = []

    def count(chunks: Sequence[torch.Tensor], needs: Needs) -> Layout | None:
        layout = lay_out(chunks, needs)
        assert layout is not None
        places.append(len(layout.slots(needs.result)))
        return layout

    monkeypatch.setattr(execution_units, "lay_out", count)
    bench.ctx.chunks = [torch.empty(16 * 2**20, dtype=torch.uint8)] * 8
    assert why_not(bench.ctx, UNITS["exp"]) is None
    assert 0 < max(places) < 300


def test_a_card_without_the_capability_says_so(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution_units, "has_capability", lambda *_: False)
    reason = why_not(bench.ctx, UNITS["fp4"])
    assert reason == "not on this card: it needs compute capability 10.0"


def test_an_error_of_the_memory_is_not_taken_for_a_missing_unit(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.cuda.OutOfMemoryError):
        why_not(bench.ctx, replace(UNITS["exp"], multiply=fail))


# --- the gather --------------------------------------------------------------------------------


def chase_of(bench: Workbench) -> PointerChase:
    return PointerChase(bench.ctx, FindingReporter(bench.ctx, "units"))


@pytest.mark.parametrize("chunks", [1, 3, 12])
def test_a_pass_reads_every_word_of_the_memory_but_the_working_memory_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunks: int
) -> None:
    with workbench(tmp_path, chunks=chunks, chunk=GIB // 64) as bench:
        chase = chase_of(bench)
        read: list[tuple[int, torch.Tensor]] = []
        gather: Callable[..., torch.Tensor] = torch.gather

        def record(block: torch.Tensor, dim: int, index: torch.Tensor, **more: Any) -> None:
            read.append((block.data_ptr(), index.clone()))
            gather(block, dim, index, **more)

        monkeypatch.setattr(torch, "gather", record)
        covered: set[int] = set()
        for _ in range(len(chase.blocks)):
            read.clear()
            assert chase._run_pass(seed=1)
            for block in chase.order:
                address = chase.blocks[block].data_ptr()
                words = torch.cat([index for where, index in read if where == address])
                assert torch.equal(words.sort().values, torch.arange(chase.size))
            covered |= set(chase.order)
        assert covered == set(range(len(chase.blocks)))
        assert chase.size * 8 * len(chase.blocks) == sum(c.numel() for c in bench.ctx.chunks)
        assert chase.checks == len(chase.blocks) * len(chase._starts) > 0
        assert bench.findings() == []


@mostly_long("kind", [FaultKind.SINGLE, FaultKind.MULTIPLE])
def test_every_fault_of_a_word_is_found_where_it_is(bench: Workbench, kind: FaultKind) -> None:
    chase, draw = chase_of(bench), random.Random(7)
    chase.prove()
    assert all(chase.finds_exactly(kind, draw) for _ in range(100))
    assert all(chase.finds_exactly(None, draw) for _ in range(3))
    assert (bench.findings(), bench.done().errors) == ([], 0), "trials are no findings"


def test_a_number_beyond_its_block_is_found_even_if_the_nearest_word_is_the_right_one(
    bench: Workbench,
) -> None:
    chase = chase_of(bench)
    for right, wrong in ((chase.size - 1, 2**40), (0, -1)):
        chase._begin_pass(1)
        for block in chase.order:
            chase._fill(block)
        words = chase.blocks[chase.order[3]]
        words[words == right] = wrong
        for number in range(len(chase._starts)):
            chase._chase_all(number)
        chase._report_faults()
    assert [one.count for one in bench.findings()] == [1, 1]


@pytest.mark.parametrize("transient", [False, True])
def test_a_wrong_read_is_a_finding_that_names_the_gather(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, *, transient: bool
) -> None:
    chase = chase_of(bench)
    gather: Callable[..., torch.Tensor] = torch.gather
    left = [1] if transient else [10**6]
    target = chase.blocks[5].data_ptr()

    def misread(block: torch.Tensor, dim: int, index: torch.Tensor, *, out: torch.Tensor) -> None:
        gather(block, dim, index, out=out)
        if block.data_ptr() == target and left[0]:
            wrong = (index == 77).nonzero().view(-1)
            left[0] -= len(wrong)
            out[wrong] ^= 1 << 40

    monkeypatch.setattr(torch, "gather", misread)
    assert chase.run(seed=1, seconds=0.0)
    (finding,) = bench.findings()
    assert (finding.workload, finding.dtype, finding.count) == ("units", GATHER, 1)
    if transient:
        assert (finding.place, finding.reread) == (FindingPlace.RESULT, False)
    else:
        assert (finding.place, finding.reread, finding.repeated) == (FindingPlace.MEMORY, True, 3)
        assert (finding.first, finding.bits[40], sum(finding.bits)) == ((5, 77), 1, 1)
    assert chase.errors == bench.done().errors == 1


def test_a_fault_before_a_rest_is_reported_and_the_pass_begins_again(bench: Workbench) -> None:
    chase = chase_of(bench)
    chase.prove()
    while not bench.ctx.ready:
        bench.ctx.pace()
    chase._begin_pass(1)
    for block in chase.order:
        chase._fill(block)
    block = chase.order[2]
    flip(chase.blocks[block], 9, 3)
    for number in range(len(chase._starts)):
        chase._chase_all(number)
    chase._begin_chases(0)
    chase._report_faults()  # as before a rest, within a chase
    assert chase._void
    assert chase.run(seed=2, seconds=0.0)
    (finding,) = bench.findings()
    assert (finding.first, finding.bits[3]) == ((block, 9), 1)
    assert bench.done().errors == 1


def test_a_memory_that_is_too_small_is_refused(tmp_path: Path) -> None:
    with workbench(tmp_path, chunks=1, chunk=2**22) as bench, pytest.raises(ConfigError):
        chase_of(bench)
