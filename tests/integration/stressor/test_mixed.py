"""The mixed workload runs its phases in order, checks each result and allocates nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sentinel.errors import ChildExitCode, ConfigError
from sentinel.protocol.stressor import FindingPlace, Progress, Ready
from sentinel.stressor.comparison import flip
from sentinel.stressor.matmul import PHASES, choose_dtypes
from sentinel.stressor.pipeline import ResultPipeline
from sentinel.stressor.workloads import mixed
from tests.harness.stressor_harness import stressors
from tests.harness.workload_harness import GIB, Workbench, workbench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with workbench(tmp_path, chunks=12, chunk=GIB // 8) as bench:
        yield bench


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
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = phases(bench, monkeypatch, 17)
    mixed(bench.ctx, seconds=0.0, seeds=2)
    kinds = ["bf16", "fp16", "tf32", "fp32", "fp64", "fp8", "int8", "memory"]
    passes = [(kind, seed) for seed in (1, 2) for kind in kinds]
    assert seen == [*passes, ("bf16", 1)]
    assert (bench.done().errors, bench.findings()) == (0, [])
    assert bench.done().checks >= 16


def test_a_plan_runs_in_its_written_order(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = phases(bench, monkeypatch, 5)
    mixed(bench.ctx, plan="memory+int8+memory", seconds=0.0, seeds=1)
    assert [name for name, _ in seen] == ["memory", "int8", "memory", "memory", "int8"]


def test_a_wrong_bit_is_found_before_the_next_phase(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = phases(bench, monkeypatch, 9)
    step = ResultPipeline.step

    def step_and_flip(pipeline: ResultPipeline) -> bool:
        running = step(pipeline)
        if len(seen) < 8 and not any(
            f.dtype == pipeline.product.dtype.name for f in bench.findings()
        ):
            flip(pipeline.slots[(pipeline.written - 1) % len(pipeline.slots)], 5, 3)
        return running

    monkeypatch.setattr(ResultPipeline, "step", step_and_flip)
    mixed(bench.ctx, seconds=0.0)
    assert [finding.dtype for finding in bench.findings()] == [name for name, _ in seen[:8]]
    assert {finding.place for finding in bench.findings()} == {FindingPlace.RESULT}
    assert {finding.workload for finding in bench.findings()} == {"mixed"}


@pytest.mark.long
def test_a_stressor_runs_the_phases_and_ends_on_request(tmp_path: Path) -> None:
    with stressors(tmp_path) as start:
        child = start("mixed:plan=bf16+int8+memory,seconds=0.1")
        held = child.wait_for(Ready).held
        progress = [child.wait_for(Progress) for _ in range(2)]
        assert all(
            message.checks > 0 and message.flops > 0 and message.bytes > 0 for message in progress
        )
        assert sum(message.errors for message in progress) == 0
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
