"""Reports follow the published schema, which describes every field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from sentinel.burnin.report import SCHEMA_VERSION
from tests.harness.example_run import ExampleRun
from tests.harness.judged_run import RUNS, report_of

SCHEMA = json.loads(
    (Path(__file__).resolve().parents[3] / "docs" / "report.schema.json").read_text()
)


def problems(schema: Any, report: Any) -> list[str]:
    """Validate a report, and return what is wrong."""
    validator = Draft202012Validator(schema)
    return [f"{list(one.path)}: {one.message}" for one in validator.iter_errors(report)]


def closed(schema: Any) -> Any:
    """Return the schema without its permission of unknown fields."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    if "properties" in found and isinstance(found.get("required"), list):
        found["additionalProperties"] = False
    return found


def test_the_schema_is_valid_and_names_the_version_of_the_reports() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$id"].rpartition(":")[2] == SCHEMA_VERSION


@pytest.mark.parametrize("verdict", RUNS)
def test_a_report_with_each_verdict_follows_the_schema(verdict: str, tmp_path: Path) -> None:
    report = report_of(RUNS[verdict], tmp_path / "run")
    assert report["verdict"] == verdict, report["gpus"][1]["reasons"]
    assert problems(SCHEMA, report) == []


def test_the_schema_describes_every_field(tmp_path: Path) -> None:
    run = ExampleRun(wrong={0: 2}, interrupted={0: "x"}, given_up={1: "no"}, cut=frozenset({0}))
    assert problems(closed(SCHEMA), report_of(run, tmp_path / "run")) == []


def test_a_report_with_an_unknown_field_is_allowed_and_one_without_a_field_is_not(
    tmp_path: Path,
) -> None:
    report = report_of(RUNS["PASS"], tmp_path / "run")
    assert problems(SCHEMA, {**report, "later": 1}) == []
    del report["gpus"][0]["coverage"][0]["done_s"]
    assert len(problems(SCHEMA, report)) == 1


def test_an_empty_run_follows_the_schema(tmp_path: Path) -> None:
    report = report_of(ExampleRun(gpus=0), tmp_path / "run")
    assert report["verdict"] == "INCOMPLETE"
    assert problems(SCHEMA, report) == []
