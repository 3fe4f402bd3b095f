"""Kills in starts on simulated GPUs, and what is seen of the killed process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.results import Results
from tests.harness.gpu_environment import ROOT
from tests.harness.programs import run_program
from tests.harness.timing import TIMEOUT_S

COMMAND = (sys.executable, "-m", "benchmarks.start_teardown", "--simulate", "1")


@pytest.mark.long
def test_a_start_is_killed_beside_a_newcomer_and_its_last_moments_are_recorded(
    tmp_path: Path,
) -> None:
    path = tmp_path / "results.jsonl"
    flags = ("--rounds", "2", "--only", "hold", "--newcomers", "--results", str(path))
    done = run_program(*COMMAND, *flags, cwd=ROOT, timeout=4 * TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    results = Results(path)
    (ready,), (start,) = results.of("ready hold"), results.of("start hold")
    names = [name for _, name in ready["stages"]]
    assert (names[0], names[-1]) == ("CreatingContext", "Ready")
    assert any("main." in position for position in ready["profile"])
    assert ready["held_mib"] > 8 * 2**10
    assert start["moment_s"] > 0
    assert start["newcomer"]["go"] <= start["killed_at"]
    assert start["positions"]
    assert start["threads_before"]
    for record in (ready, start):
        assert 0 < record["exit_s"] < TIMEOUT_S
    assert "| start hold |" in done.stdout


@pytest.mark.long
def test_running_stressors_are_killed_with_each_number_of_queues(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    flags = ("--rounds", "2", "--only", "hold", "--running", "0.1", "--queues", "8", "1")
    done = run_program(*COMMAND, *flags, "--results", str(path), cwd=ROOT, timeout=4 * TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    results = Results(path)
    (usual,), (few,) = (results.of(f"running hold, queues {queues}") for queues in (8, 1))
    for record in (usual, few):
        assert record["held_mib"] > 8 * 2**10
        assert 0 <= record["moment_s"] <= 0.1


def test_kinds_of_call_need_a_real_gpu() -> None:
    done = run_program(*COMMAND, "--calls", cwd=ROOT)
    assert (done.returncode, done.stderr) == (1, "--calls needs a real GPU\n")
