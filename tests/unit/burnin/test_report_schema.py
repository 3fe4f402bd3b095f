"""Reports follow the published schema, which describes every field."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from sentinel.burnin.checks.measures import format_measure, title
from sentinel.burnin.checks.thresholds import Thresholds
from sentinel.burnin.formats import FORMATS
from sentinel.burnin.report import SCHEMA_VERSION, judge_run, report_object
from sentinel.protocol.stressor import LinkPart
from tests.harness.example_run import ExampleRun
from tests.harness.judged_run import RUNS, report_of
from tests.harness.report_formats import SCHEMA, closed, schema_problems


def test_the_schema_is_valid_and_names_the_version_of_the_reports() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$id"].rpartition(":")[2] == SCHEMA_VERSION


@pytest.mark.parametrize("verdict", RUNS)
def test_a_report_with_each_verdict_follows_the_schema(verdict: str, tmp_path: Path) -> None:
    report = report_of(RUNS[verdict], tmp_path / "run")
    assert report["verdict"] == verdict, report["gpus"][1]["reasons"]
    assert schema_problems(SCHEMA, report) == []


def test_the_schema_describes_every_field(tmp_path: Path) -> None:
    run = ExampleRun(
        wrong={0: 2},
        interrupted={0: "x"},
        given_up={1: "no"},
        cut=frozenset({0}),
        checksums={0: {"bf16": "0xa"}},
    )
    assert schema_problems(closed(SCHEMA), report_of(run, tmp_path / "run")) == []


def test_a_golden_checksum_is_reported_once_however_often_it_was_computed(tmp_path: Path) -> None:
    report = report_of(ExampleRun(checksums={0: {"fp8": "0xb", "bf16": "0xa"}}), tmp_path / "run")
    assert [gpu["golden_checksums"] for gpu in report["gpus"]] == [
        [
            {"key": "bf16", "checksum": "0xa", "stored": None},
            {"key": "fp8", "checksum": "0xb", "stored": None},
        ],
        [],
    ]


def test_a_report_with_an_unknown_field_is_allowed_and_one_without_a_field_is_not(
    tmp_path: Path,
) -> None:
    report = report_of(RUNS["PASS"], tmp_path / "run")
    assert schema_problems(SCHEMA, {**report, "later": 1}) == []
    del report["gpus"][0]["coverage"][0]["done_s"]
    assert len(schema_problems(SCHEMA, report)) == 1


def test_an_empty_run_follows_the_schema(tmp_path: Path) -> None:
    report = report_of(ExampleRun(gpus=0), tmp_path / "run")
    assert report["verdict"] == "INCOMPLETE"
    assert schema_problems(SCHEMA, report) == []


def test_the_rates_of_links_are_measurements(tmp_path: Path) -> None:
    folder = ExampleRun().write(tmp_path / "run")
    rows = [json.loads(line) for line in folder.samples.read_text().splitlines()]
    (first, *_) = [one for one in rows if one["event"] == "work"]
    for part in LinkPart:
        peer = 11 if part is LinkPart.PEER else None
        fields = {"part": part, "peer": peer, "size": 2, "rate": 5e10, "checked": 8, "wrong": 0}
        rows.insert(rows.index(first), {**first, "event": "link", **fields})
    folder.samples.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    judged = judge_run(folder, Thresholds())
    report = report_object(judged)
    assert schema_problems(closed(SCHEMA), json.loads(json.dumps(report))) == []
    names = {one["name"] for gpu in report["gpus"] for one in gpu["measurements"]}
    texts = {title(name): format_measure(name, 5e10) for name in names}
    assert texts["Peer 11"] == texts["All reduce"] == texts["Host to device all"] == "50 GB/s"
    assert len(names) >= len(LinkPart)
    assert "Peer 11" in FORMATS["html"](judged, report)
    assert '"name": "peer_11_bytes_per_s_median"' in FORMATS["ocp"](judged, report)
