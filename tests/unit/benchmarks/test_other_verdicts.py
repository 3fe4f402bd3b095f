"""What the rules of other tools say of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.other_verdicts import METHODS, judge, table
from sentinel.burnin.checks.recorded_run import read_run
from sentinel.burnin.run_folder import RunFolder
from tests.harness.example_run import ExampleRun, uuid

FRYER, POWER, BANDWIDTH, BURN = METHODS


def passed(folder: RunFolder) -> dict[str, list[bool | None]]:
    """Judge a run: for each method, whether each GPU passes."""
    found = judge(read_run(folder).records)
    return {
        name: [None if one is None else one.passed for one in by_gpu.values()]
        for name, by_gpu in found.items()
    }


def test_healthy_gpus_pass_by_every_method(tmp_path: Path) -> None:
    assert passed(ExampleRun().write(tmp_path)) == {name: [True, True] for name in METHODS}


@pytest.mark.parametrize(("rate", "passes"), [(0.91, True), (0.89, False), (0.0, False)])
def test_a_slow_gpu_fails_from_a_tenth_on(rate: float, passes: bool, tmp_path: Path) -> None:  # noqa: FBT001
    found = passed(ExampleRun(rates={1: rate}).write(tmp_path))
    assert found[FRYER] == [True, passes]
    assert found[BANDWIDTH] == [True, rate > 0 or None], "its minimum is never missed"


def test_wrong_results_are_seen_by_one_method(tmp_path: Path) -> None:
    found = passed(ExampleRun(wrong={0: 3}).write(tmp_path))
    assert found[BURN] == [False, True]
    assert found[FRYER] == found[POWER] == found[BANDWIDTH] == [True, True]


def change_telemetry(folder: RunFolder, index: int, **values: Any) -> None:
    """Replace readings of a GPU."""
    rows = [json.loads(line) for line in folder.samples.read_text().splitlines()]
    for row in rows:
        if row["event"] == "telemetry" and row["gpu"] == uuid(index):
            row.update(values)
    folder.samples.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize(
    ("reasons", "passes"),
    [
        (["hw_slowdown"], False),
        (["sw_thermal_slowdown"], False),
        (["hw_thermal_slowdown", "hw_slowdown"], True),
        (["sw_power_cap"], True),
        (None, True),
    ],
)
def test_two_reasons_at_once_are_missed(
    reasons: list[str] | None,
    passes: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    folder = ExampleRun().write(tmp_path)
    change_telemetry(folder, 1, reasons=reasons)
    assert passed(folder)[FRYER] == [True, passes]


def test_little_power_fails(tmp_path: Path) -> None:
    folder = ExampleRun().write(tmp_path)
    change_telemetry(folder, 0, power_w=500.0)
    assert passed(folder)[POWER] == [False, True]


def test_the_table_has_each_method_and_the_own_verdict(tmp_path: Path) -> None:
    lines = table(ExampleRun(wrong={1: 1}).write(tmp_path))
    assert len(lines) == 2 + 2 * (len(METHODS) + 1)
    assert any(
        "gpu-burn" in line and "**FAIL**" in line and "exit code 0" in line for line in lines
    )
    assert sum("| Sentinel |" in line for line in lines) == 2
