"""The comparison of two burn-ins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sentinel.burnin.compare import compare, compare_lines
from tests.harness.example_run import STEADY, ExampleRun, report_of, uuid

QUIET = "No median differs by more than 1 %; no counter moved, and no verdict changed."


def compared(first: ExampleRun, second: ExampleRun, folder: Path) -> tuple[dict[str, Any], str]:
    """Compare two runs, and return the result and its text."""
    found = compare(report_of(first, folder / "a"), report_of(second, folder / "b"))
    return found, "\n".join(compare_lines(found))


def test_equal_runs_are_said_to_be_equal(tmp_path: Path) -> None:
    found, text = compared(ExampleRun(), ExampleRun(rates={0: 1.005}), tmp_path)
    assert not found["notable"]
    assert text.endswith(QUIET)


def test_a_slower_gpu_is_named_with_its_phase_and_difference(tmp_path: Path) -> None:
    found, text = compared(ExampleRun(), ExampleRun(rates={1: 0.96}), tmp_path)
    assert [gpu["notable"] for gpu in found["gpus"]] == [False, True]
    steady = [one for one in found["gpus"][1]["phases"] if one["phase"] == STEADY]
    differences = {one["name"]: one["difference_percent"] for one in steady}
    assert differences == {"flops_per_s": -4.0, "power_w": 0.0, "temperature_c": 0.0}
    lines = [line for line in text.splitlines() if line.endswith("!")]
    assert len(lines) == 3  # the bandwidths of both other phases, too
    assert any(line.split()[:2] == ["steady", "Rate"] and "-4.00 %" in line for line in lines)
    assert QUIET not in text


def test_counters_that_moved_are_listed_and_readings_of_the_moment_are_not(tmp_path: Path) -> None:
    moved = {"ecc_corrected_total": 7, "vbios": "97.00", "temperature_c": 80, "energy_j": 9.0}
    found, text = compared(ExampleRun(), ExampleRun(moved={0: moved}), tmp_path)
    assert found["gpus"][0]["counters"] == [
        {"name": "ecc_corrected_total", "first": 0, "second": 7},
        {"name": "vbios", "first": "96.00.00.00.01", "second": "97.00"},
    ]
    assert found["gpus"][1]["counters"] == []
    assert "ecc_corrected_total: 0, then 7" in text
    assert QUIET not in text


def test_a_change_of_the_verdict_is_named(tmp_path: Path) -> None:
    found, text = compared(ExampleRun(), ExampleRun(wrong={0: 1}), tmp_path)
    assert found["gpus"][0]["verdicts"] == ["PASS", "FAIL"]
    assert f"{uuid(0)}  PASS, then FAIL" in text
    assert f"{uuid(1)}  PASS\n" in text
    assert found["notable"]


def test_runs_without_a_common_phase_are_not_said_to_be_equal(tmp_path: Path) -> None:
    first, second = (report_of(ExampleRun(), tmp_path / name) for name in "ab")
    for gpu in second["gpus"]:
        gpu["measurements"] = []
    text = "\n".join(compare_lines(compare(first, second)))
    assert text.count("no phase was measured in both runs") == len(first["gpus"])
    assert QUIET not in text


def test_gpus_of_one_run_only_are_listed(tmp_path: Path) -> None:
    found, text = compared(ExampleRun(gpus=2), ExampleRun(gpus=3), tmp_path)
    assert (found["only_in_first"], found["only_in_second"]) == ([], [uuid(2)])
    assert f"only in B: {uuid(2)}" in text
    _, text = compared(ExampleRun(gpus=0), ExampleRun(), tmp_path / "none")
    assert "The runs have no GPU in common." in text
    assert QUIET not in text


def test_different_plans_are_pointed_out(tmp_path: Path) -> None:
    _, text = compared(ExampleRun(), ExampleRun(seconds=240.0), tmp_path)
    assert "The plans differ" in text
