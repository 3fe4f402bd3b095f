"""The load benchmark: its bare loops run, and its table reports missed bars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.load import CELLS
from benchmarks.load_table import LoadTable
from benchmarks.results import Results
from benchmarks.torch_loops import COPY, KINDS, copies, products


@pytest.mark.parametrize("kind", KINDS)
def test_a_bare_loop_runs_one_step_of_its_kind(kind: str) -> None:
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        step, amounts = copies("cpu") if kind == COPY else products(kind, "cpu")
        step()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    (amount,) = amounts.values()
    assert amount > 0


def record(cell: str, **changes: Any) -> dict[str, Any]:
    """Build the measurements of a row within its bars."""
    found = {"rate": 98e12, "checks": 10, "watts": 693.0, "limit": 700.0}
    found |= {"sm_clock": 1480, "temperature": 58}
    row = {"cell": cell, "round": 0, "rate": "flops_per_s", "bare": [{"rate": 1e14}]}
    row |= {"sentinel": found, "wrong": 0, "stressor_cpu": 0.03, "stressor_rss": 9 * 10**8}
    return {**row, **changes}


def table(folder: Path, *records: dict[str, Any]) -> LoadTable:
    results = Results(folder / "load.jsonl")
    results.add({"cell": "machine", "round": 0, "simulated": False, "date": "2026-01-02"})
    for entry in records:
        results.add(entry)
    return LoadTable(results, [cell.name for cell in CELLS])


def test_a_row_within_its_bars_passes(tmp_path: Path) -> None:
    load_table = table(tmp_path, record("gemm bf16"))
    text = load_table.render()
    assert "| gemm bf16 | 98 TFLOP/s | 100 TFLOP/s | 98.0% | 693 W | 99.0% | 1480 MHz |" in text
    assert "The hottest is gemm bf16, at 99.0% of the limit; bar 98%: pass." in text
    assert load_table.failed == []


@pytest.mark.parametrize(
    ("found", "missed"),
    [
        (
            record("gemm bf16", bare=[{"rate": 103e12}]),
            "gemm bf16: 95.1% of the bare loop, bar 97%",
        ),
        (record("gemm fp8", stressor_cpu=0.06), "gemm fp8: 6.0% of a core, bar 5%"),
        (
            record("elementwise", bare=[{"rate": 104e12}]),
            "elementwise: 94.2% of the bare loop, bar",
        ),
        (record("mixed", bare=[], wrong=1), "mixed: 1 events of wrong results"),
        (
            record("hold", bare=[], sentinel={**record("hold")["sentinel"], "watts": 500.0}),
            "the hottest, hold: 71.4%, bar 98%",
        ),
    ],
)
def test_a_missed_bar_is_reported(tmp_path: Path, found: dict[str, Any], missed: str) -> None:
    load_table = table(tmp_path, found)
    assert "**FAIL**" in load_table.render()
    (failure,) = load_table.failed
    assert failure.startswith(missed)
