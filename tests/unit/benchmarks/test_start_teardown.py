"""The table of how late killed processes free their memory."""

from __future__ import annotations

from pathlib import Path

from benchmarks.results import Results
from benchmarks.start_teardown import table


def test_a_row_has_the_median_and_the_worst_and_what_newcomers_got(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.jsonl")
    results.add({"cell": "machine", "round": 0, "gpu": "H100", "date": "2026-11-28"})
    for number, (first_s, got) in enumerate([(0.01, True), (0.02, True), (0.11, False)]):
        times = {"first_free_s": first_s, "all_free_s": None, "exit_s": 0.2}
        record = {"cell": "start units", "round": number, **times, "newcomer": {"got": got}}
        results.add(record)
    results.add({"cell": "call idle", "round": 0, **times})
    text = table(results)
    assert "gpu H100; 2026-11-28" in text
    assert "| start units | 3 | 20 / 110 ms | - | 200 / 200 ms | 2 of 3 |" in text
    assert "| call idle | 1 | 110 / 110 ms | - | 200 / 200 ms | - |" in text
