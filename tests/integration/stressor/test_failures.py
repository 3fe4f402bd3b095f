"""The messages and exit codes of real stressor processes that fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sentinel.errors import ChildExitCode
from sentinel.protocol.stressor import Failed, FailureKind, Finding, MemoryTarget, Progress
from tests.harness.stressor_harness import Child, stressors

Start = Callable[..., Child]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with stressors(tmp_path) as start:
        yield start


@pytest.mark.parametrize(
    ("workload", "kind", "expected_texts"),
    [
        (
            "bad_workloads:raises",
            FailureKind.WORKLOAD,
            ["workload bad_workloads:raises raised ValueError: boom and more", "(__init__.py:"],
        ),
        (
            "bad_workloads:returns",
            FailureKind.RETURNED,
            [
                "bad_workloads:returns returned after 42 iterations",
                "until ctx.pace() returns False",
            ],
        ),
        ("bad_workloads:exits", FailureKind.WORKLOAD, ["bad_workloads:exits raised SystemExit"]),
        (
            "bad_workloads:reports_nan",
            FailureKind.WORKLOAD,
            ["report(flops=nan): it must be finite"],
        ),
        (
            "bad_workloads:takes_memory_late",
            FailureKind.OUT_OF_MEMORY,
            ["Tried to allocate 1.00 MiB", "the workload allocated after Ready"],
        ),
        (
            "nonesuch",
            FailureKind.UNUSABLE,
            ["there is no workload 'nonesuch'", "known are elementwise, "],
        ),
        (
            "bad_workloads.failing_import:anything",
            FailureKind.MALFORMED,
            ["RuntimeError: this module never worked (failing_import.py:3 in <module>)"],
        ),
        (
            "bad_workloads:WithoutRun",
            FailureKind.MALFORMED,
            ["workload WithoutRun is a class without a method `run`", "`run(self, ctx)`"],
        ),
        (
            "bad_workloads:WellBehaved:rest=warm",
            FailureKind.UNUSABLE,
            ["workload WellBehaved: option rest='warm' is not a number", "default 0.02"],
        ),
        (
            "gemm:size=big",
            FailureKind.UNUSABLE,
            ["workload gemm: option size='big' is not a whole number", "default 0"],
        ),
        (
            "gemm:size=4096",
            FailureKind.UNUSABLE,
            ["no room for inputs, a reference and 3 results of size=4096", "larger chunks"],
        ),
    ],
)
def test_the_failure_message_names_what_went_wrong(
    start: Start, workload: str, kind: FailureKind, expected_texts: list[str]
) -> None:
    child = start(workload)
    failed = child.wait_for(Failed)
    assert failed.kind is kind
    for expected_text in expected_texts:
        assert expected_text in failed.reason
    assert "\n" not in failed.reason
    assert len(failed.reason) < 1500
    assert child.wait_for_end() == ChildExitCode.FAILED
    assert child.used() == 0


def test_less_memory_than_one_chunk_is_out_of_memory(start: Start) -> None:
    child = start("hold", memory=MemoryTarget(share=0.01))
    failed = child.wait_for(Failed)
    assert failed.kind is FailureKind.OUT_OF_MEMORY
    assert "not one chunk of 512 MiB is available" in failed.reason


def test_less_memory_than_a_context_is_out_of_memory(start: Start, tmp_path: Path) -> None:
    child = start("hold")
    other_process = child.registry.attach(child.uuid)
    assert other_process.allocate(16 * 2**30 - 2**20)
    try:
        failed = child.wait_for(Failed)
    finally:
        other_process.close()
    assert failed.kind is FailureKind.OUT_OF_MEMORY
    assert f"the context on {child.uuid} raised" in failed.reason


def test_a_torch_without_cuda_is_unusable(start: Start) -> None:
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None:
        pytest.skip("this torch has CUDA")
    child = start("hold", simulated=False)
    failed = child.wait_for(Failed)
    assert failed.kind is FailureKind.UNUSABLE
    assert "was built without CUDA. sentinel doctor has the command" in failed.reason


@pytest.mark.long
def test_a_flipped_bit_is_reported_once(start: Start) -> None:
    child = start("bad_workloads:flips_a_bit")
    finding = child.wait_for(Finding)
    assert (finding.first, finding.count, finding.repeated) == ((3, 4), 1, 0)
    while not (progress := child.wait_for(Progress)).errors:
        assert progress.checks > 0
    assert progress.errors == 1
    assert child.wait_for(Progress).errors == 0
    assert child.stop() == ChildExitCode.DONE
