"""Races in starts: their cells, and the table that counts those of one code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.handover import cells
from benchmarks.handover_starts import STARTS
from benchmarks.host_gpus import SimulatedHost
from benchmarks.processes import Rig
from benchmarks.report import Report
from benchmarks.results import Results
from sentinel.config.specs import parse_workload


def test_each_start_has_a_cell_whose_rounds_count_by_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rig = Rig(SimulatedHost(tmp_path / "gpus", 1), tmp_path / "log", "300ms")
    found = {cell.name: cell for cell in cells(rig, quick=True) if cell.code is not None}
    rig._errors.close()
    names = {f"{start}-starting" for start in STARTS}
    assert found.keys() == names | {"hold-starting-in-namespace", "gemm-starting-in-namespace"}
    assert {cell.rounds for cell in found.values()} == {40, 200}
    assert {name for name, cell in found.items() if cell.rounds == 200} == {
        "units-starting",
        "memtest-starting",
    }


@pytest.mark.parametrize("workload", [one for each in STARTS.values() for one in each])
def test_each_workload_can_be_set(workload: str) -> None:
    name, _ = parse_workload(workload)
    folder, _, _ = name.rpartition(":")
    assert not folder or (Path(folder) / "__init__.py").is_file()


def record(code: str, *, got: bool = True, cold: bool = False, **more: Any) -> dict[str, Any]:
    times = {"memory_s": 0.2, "context_s": 0.15, "kill_s": 0.002, "exit_s": 0.252, "ready_s": 9.0}
    names = {"newcomer": "brief", "stressor": "STARTING", "workload": "units"}
    return {**times, **names, "got": got, "cold": cold, "code": code, **more}


def test_the_table_counts_the_starts_of_the_last_code_or_of_a_given_one(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.jsonl")
    given = [record("old", got=False), record("new"), record("new", cold=True, stressor="RUNNING")]
    for number, one in enumerate(given):
        results.add({"cell": "units-starting", "round": number, **one})
    last = Report(results)
    text = last.render()
    assert "by the code new" in text
    assert "| units-starting | 1 of 1 | 1 of 1 | 1 | 9.00 s | 9.00 s | 250 ms / 250 ms |" in text
    assert last.failed == []
    old = Report(results, "old")
    assert "| units-starting | 0 of 1 | 0 of 0 | 1 |" in old.render()
    assert old.failed == ["units-starting: got the memory"]


def test_starts_of_a_former_benchmark_have_no_code_and_count_alone(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.jsonl")
    former = {"newcomer": "bare", "got": True, "memory_s": 0.3}
    results.add({"cell": "hold-starting", "round": 0, **former})
    assert "| hold-starting | bare | 1 of 1 |" in Report(results).render()
    results.add({"cell": "hold-starting", "round": 0, **record("new")})
    assert "| hold-starting | brief | 1 of 1 |" in Report(results).render()
