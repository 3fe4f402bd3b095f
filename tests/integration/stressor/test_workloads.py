"""The workloads gemm and mixed: seeds, phases, goldens, and a check of each result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from sentinel.errors import ChildExitCode, ConfigError
from sentinel.host.golden_store import Goldens
from sentinel.protocol.stressor import FindingPlace, Ready, ReferenceChecksum
from sentinel.stressor.comparison import flip
from sentinel.stressor.matmul import PHASES
from sentinel.stressor.pipeline import ResultPipeline, key_of
from sentinel.stressor.sizing import choose_dtypes
from sentinel.stressor.workloads import gemm, mixed, run_seeds
from tests.harness.stressor_harness import Child
from tests.harness.workload_harness import (
    ALL_DTYPES,
    GIB,
    Workbench,
    pipeline_bench,
    pipeline_of,
    step_until,
    unprepared_pipeline,
    workbench,
)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with pipeline_bench(tmp_path) as bench:
        yield bench


@pytest.fixture
def large_bench(tmp_path: Path) -> Iterator[Workbench]:
    with workbench(tmp_path, chunks=12, chunk=GIB // 8) as bench:
        yield bench


# --- seeds -----------------------------------------------------------------------------------


def test_seeds_alternate_and_each_is_checked_before_the_next(bench: Workbench) -> None:
    pipeline = pipeline_of(bench)
    seen: list[int] = []
    references: dict[int, list[int]] = {}

    def record() -> None:
        if not seen or seen[-1] != pipeline.seed:
            seen.append(pipeline.seed)
            references.setdefault(pipeline.seed, []).append(pipeline.examiner.sums[2].total)
        if len(seen) == 5:
            bench.stop()

    pipeline.between = record
    run_seeds(pipeline, seeds=3, seconds=0.0)
    assert seen == [1, 2, 3, 1, 2]
    assert len({sums[0] for sums in references.values()}) == 3
    assert references[1][0] == references[1][1]
    assert (bench.findings(), bench.done().errors) == ([], 0)


def test_a_wrong_bit_in_the_last_round_of_a_seed_is_found(bench: Workbench) -> None:
    pipeline = pipeline_of(bench)
    step_until(pipeline, 2)
    flip(pipeline.newest(), 1, 1)
    assert pipeline.finish_seed()
    pipeline.begin_seed(seed=2)
    assert [(finding.first, finding.seed) for finding in bench.findings()] == [((0, 1), 1)]


# --- golden checksums ------------------------------------------------------------------------


def checksums(bench: Workbench) -> list[ReferenceChecksum]:
    """Select the checksums that were reported."""
    return bench.sent(ReferenceChecksum)


def run_count(bench: Workbench, pipeline: ResultPipeline, seeds: int, count: int) -> None:
    """Run ``count`` seeds."""
    seen: list[int] = []

    def record() -> None:
        if not seen or seen[-1] != pipeline.seed:
            seen.append(pipeline.seed)
        if len(seen) == count:
            bench.stop()

    pipeline.between = record
    run_seeds(pipeline, seeds, seconds=0.0)
    assert len(seen) == count
    bench.lease_keeper.stopped.clear()


def test_the_first_run_records_checksums_and_the_second_agrees(
    bench: Workbench, tmp_path: Path
) -> None:
    bench.ctx.goldens = Goldens(tmp_path / "goldens.jsonl")
    first = pipeline_of(bench)
    run_count(bench, first, seeds=3, count=5)
    assert [golden.key.seed for golden in bench.ctx.goldens.records()] == [1, 2, 3]
    pipeline_of(bench, "fp32")
    run_count(bench, pipeline_of(bench), seeds=3, count=5)
    assert len(bench.ctx.goldens.records()) == 4
    keys = {golden.key for golden in bench.ctx.goldens.records()}
    assert {key.dtype for key in keys} == {"bf16", "fp32"}
    assert {key.shape for key in keys} == {"16x16x16 v2"}
    sent = checksums(bench)
    assert {message.key for message in sent} == {str(key) for key in keys}
    assert [message.stored is None for message in sent[:5]] == [True, True, True, False, False]
    assert all(message.stored in {None, message.checksum} for message in sent)
    assert (bench.findings(), bench.done().errors) == ([], 0)


def test_a_deviation_from_a_golden_is_reported_once_per_seed(
    bench: Workbench, tmp_path: Path
) -> None:
    bench.ctx.goldens = Goldens(tmp_path / "goldens.jsonl")
    pipeline = pipeline_of(bench)
    bench.ctx.goldens.add({key_of(pipeline.product, 2): 0x123})
    run_count(bench, pipeline, seeds=2, count=6)
    (finding,) = bench.findings()
    assert (finding.place, finding.seed) == (FindingPlace.GOLDEN, 2)
    assert "0x0000000000000123 is on record" in finding.detail
    assert (finding.repeated, bench.done().errors) == (1, 1)
    assert {checksum.stored for checksum in checksums(bench) if "seed 2" in checksum.key} == {
        "0x123"
    }


def test_a_checksum_is_reported_where_no_records_are_kept(bench: Workbench) -> None:
    pipeline_of(bench)
    (sent,) = checksums(bench)
    assert (sent.stored, sent.checksum[:2]) == (None, "0x")


def test_no_checksum_is_recorded_before_the_checks_are_proved(
    bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.ctx.goldens = Goldens(tmp_path / "goldens.jsonl")
    pipeline = unprepared_pipeline(bench)
    monkeypatch.setattr("sentinel.stressor.pipeline.flip", lambda *_: None)
    with pytest.raises(RuntimeError, match="was not found"):
        pipeline.prepare(seed=1)
    assert bench.ctx.goldens.records() == ()


# --- the workload ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL_DTYPES)
def test_the_workload_runs_until_it_is_stopped(large_bench: Workbench, name: str) -> None:
    bench = large_bench
    bench.device.on_wait = lambda: bench.stop() if bench.ctx.iterations else None
    gemm(bench.ctx, dtype=name)  # type: ignore[arg-type]
    assert bench.ctx.iterations > 0
    assert bench.done().errors == 0


def test_matrices_without_room_are_refused_by_name(bench: Workbench) -> None:
    what = "gemm: there is no room for inputs, a reference and 3 results of size=4096"
    with pytest.raises(ConfigError, match=what):
        gemm(bench.ctx, size=4096)


def phases(bench: Workbench, monkeypatch: pytest.MonkeyPatch, count: int) -> list[tuple[str, int]]:
    """Record each finished phase, and stop after ``count`` phases."""
    seen: list[tuple[str, int]] = []
    finish = ResultPipeline.finish_seed

    def record(pipeline: ResultPipeline) -> bool:
        assert pipeline.written > 0
        seen.append((pipeline.product.dtype.name, pipeline.seed))
        if len(seen) == count:
            bench.stop()
        return finish(pipeline)

    monkeypatch.setattr(ResultPipeline, "finish_seed", record)
    return seen


@pytest.mark.long
def test_all_phases_run_in_order_and_each_pass_has_another_seed(
    large_bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = phases(large_bench, monkeypatch, 17)
    mixed(large_bench.ctx, seconds=0.0, seeds=2)
    kinds = ["bf16", "fp16", "tf32", "fp32", "fp64", "fp8", "int8", "memory"]
    passes = [(kind, seed) for seed in (1, 2) for kind in kinds]
    assert seen == [*passes, ("bf16", 1)]
    assert (large_bench.done().errors, large_bench.findings()) == (0, [])
    assert large_bench.done().checks >= 16


def test_a_plan_runs_in_its_written_order(
    large_bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = phases(large_bench, monkeypatch, 5)
    mixed(large_bench.ctx, plan="memory+int8+memory", seconds=0.0, seeds=1)
    assert [name for name, _ in seen] == ["memory", "int8", "memory", "memory", "int8"]


def test_a_wrong_bit_is_found_before_the_next_phase(
    large_bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = phases(large_bench, monkeypatch, 9)
    step = ResultPipeline.step

    def step_and_flip(pipeline: ResultPipeline) -> bool:
        running = step(pipeline)
        if len(seen) < 8 and not any(
            f.dtype == pipeline.product.dtype.name for f in large_bench.findings()
        ):
            flip(pipeline.newest(), 5, 3)
        return running

    monkeypatch.setattr(ResultPipeline, "step", step_and_flip)
    mixed(large_bench.ctx, seconds=0.0)
    assert [finding.dtype for finding in large_bench.findings()] == [name for name, _ in seen[:8]]
    assert {finding.place for finding in large_bench.findings()} == {FindingPlace.RESULT}
    assert {finding.workload for finding in large_bench.findings()} == {"mixed"}


@pytest.mark.long
def test_a_stressor_runs_the_phases_and_ends_on_request(start: Callable[..., Child]) -> None:
    child = start("mixed:plan=bf16+int8+memory,seconds=0.1")
    held = child.wait_for(Ready).held
    assert child.wait_for_work("checks", "flops", "bytes").errors == 0
    beside = child.used() - held - 300 * 2**20
    assert 0 < beside <= 64 * 2**20, "its own tensors, in segments as torch takes them"
    assert child.stop() == ChildExitCode.DONE


def test_a_gpu_runs_the_phases_that_it_supports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100")
    card = torch.device("cuda:0")
    assert [dtype.name for dtype in choose_dtypes("all", card, "mixed", PHASES)] == [
        *("bf16", "fp16", "tf32", "fp32", "fp64", "int8"),
        "memory",
    ]
    with pytest.raises(ConfigError, match="fp8 needs compute capability"):
        choose_dtypes("bf16+fp8", card, "mixed", PHASES)
    with pytest.raises(ConfigError, match="selftest: there is no dtype 'memory'"):
        choose_dtypes("bf16+memory", card, "selftest")
