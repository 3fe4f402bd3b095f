"""Why nodes are missing is kept while they are, also if the engine has forgotten it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sentinel.burnin.checks.thresholds import Thresholds
from sentinel.fleet.checks.outliers import outliers
from sentinel.fleet.checks.verdict import judge_fleet
from sentinel.fleet.records.missing_nodes import read_reasons, record_reasons
from sentinel.fleet.records.node_files import read_fleet
from sentinel.fleet.records.run_file import FleetFolder
from tests.harness.example_fleet import ExampleFleet


def test_a_reason_stays_until_the_node_is_not_missing(folder: FleetFolder) -> None:
    record_reasons(folder, ["a"], {})
    assert not folder.missing.exists()
    record_reasons(folder, ["a", "b", "c"], {"a": "one", "b": "two", "d": "it has a report"})
    assert read_reasons(folder) == {"a": "one", "b": "two"}
    record_reasons(folder, ["a", "c"], {"a": "three"})
    assert read_reasons(folder) == {"a": "three"}
    record_reasons(folder, ["a"], {})
    assert read_reasons(folder) == {"a": "three"}
    record_reasons(folder, [], {})
    assert read_reasons(folder) == {}


@pytest.mark.parametrize("text", ["", "{", "[]", "1", '{"a": 1, "b": ""}', "[" * 100_000])
def test_a_file_that_is_none_has_no_reasons(folder: FleetFolder, text: str) -> None:
    folder.missing.write_text(text)
    assert read_reasons(folder) == {}
    record_reasons(folder, ["a"], {"a": "one"})
    assert read_reasons(folder) == {"a": "one"}


def test_the_report_has_the_reasons_and_joins_those_that_differ_in_their_numbers(
    template: dict[str, Any], tmp_path: Path
) -> None:
    fleet = ExampleFleet(template=template, absent=frozenset({1, 2, 3}), half=frozenset({4}))
    folder = fleet.write(tmp_path / "run")
    names = [fleet.name(number) for number in (1, 2, 4)]
    ended = {name: f"job {number} has ended: TIMEOUT" for number, name in enumerate(names, 17)}
    record_reasons(folder, names, ended)
    found = outliers(judge_fleet(read_fleet(folder.path), Thresholds()))
    assert [([node.name for node in one.nodes], one.reasons) for one in found] == [
        (names[:2], ("it has no report: job 17 has ended: TIMEOUT",)),
        ([fleet.name(3)], ("it has no report",)),
        # Half of a report says more than the end of its task.
        ([fleet.name(4)], ("its report is not complete JSON",)),
    ]
    assert json.loads(folder.missing.read_text()) == ended  # no node is called so
