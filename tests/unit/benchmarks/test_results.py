"""A file of results that several processes share, or that ends in the middle of a line."""

from __future__ import annotations

from pathlib import Path

from benchmarks.results import Results


def test_lanes_share_a_file_and_count_each_others_rounds(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    lanes = [Results(path, lane=number) for number in range(2)]
    for lane in lanes:
        lane.add({"cell": "race", "round": 0})
    assert [lane.rounds("race") for lane in lanes] == [2, 2]
    assert [one["lane"] for one in Results(path).records] == [0, 1]


def test_a_round_of_several_records_counts_once_and_that_of_other_code_not(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.jsonl")
    for code, number in (("old", 0), ("old", 1), ("new", 0), ("new", 0)):
        results.add({"cell": "race", "round": number, "code": code})
    assert [results.rounds("race", code) for code in ("old", "new")] == [2, 1]


def test_half_a_line_of_an_interrupted_run_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"cell": "race", "round": 0}\n{"cell": "ra')
    results = Results(path)
    results.add({"cell": "race", "round": 1})
    assert results.records == Results(path).records
    assert results.rounds("race") == 2
