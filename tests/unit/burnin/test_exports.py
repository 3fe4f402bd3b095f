"""A burn-in for other programs: JUnit XML, and OCP Test & Validation by its JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import pytest

from tests.harness.example_run import COPY, RUNS, STEADY, ExampleRun, report_of, uuid
from tests.harness.report_formats import junit_suites, ocp_messages, ocp_validator


def suites(run: ExampleRun, folder: Path) -> list[Element]:
    """Build the document of a run, and return its suites."""
    return junit_suites(report_of(run, folder / "run"))


def result(suite: Element, name: str) -> Element:
    """Find the only child of a case."""
    return next(case[0] for case in suite.iter("testcase") if case.get("name") == name)


#: The status and the result of a run in OCP, by its verdict; the schema of OCP allows other pairs.
ENDS = {
    "PASS": ("COMPLETE", "PASS"),
    "WARN": ("COMPLETE", "PASS"),
    "FAIL": ("COMPLETE", "FAIL"),
    "INCOMPLETE": ("SKIP", "NOT_APPLICABLE"),
    "N/A": ("SKIP", "NOT_APPLICABLE"),
}


@pytest.mark.parametrize("verdict", RUNS)
def test_each_verdict_has_its_suites_and_its_end(verdict: str, tmp_path: Path) -> None:
    report = report_of(RUNS[verdict], tmp_path / "run")
    found = junit_suites(report)
    names = [suite.get("name", "").split()[:2] for suite in found]
    assert names == [["GPU", "0"], ["GPU", "1"], ["node"]]
    failures = sum(int(suite.get("failures", "")) for suite in found)
    assert (failures > 0) == (verdict == "FAIL")
    assert ends(ocp_messages(report)) == ENDS[verdict]


def test_a_failed_check_is_a_failure_with_its_value_and_threshold(tmp_path: Path) -> None:
    good, bad, _ = suites(ExampleRun(wrong={1: 3}), tmp_path)
    failure = result(bad, "results.wrong")
    assert failure.tag == "failure"
    assert "value: 3; threshold: fail > 0" in str(failure.get("message"))
    assert failure.get("type") == "isolate"
    assert result(good, "results.wrong").tag == "system-out"


def test_a_warning_passes_and_says_so(tmp_path: Path) -> None:
    _, suite, _ = suites(RUNS["WARN"], tmp_path)
    output = result(suite, "ecc.corrected_new")
    assert output.tag == "system-out"
    assert str(output.text).startswith("WARNING: value: 12")


def test_a_phase_that_was_not_reached_is_skipped_and_a_broken_one_is_an_error(
    tmp_path: Path,
) -> None:
    run = ExampleRun(cut=frozenset({0}), given_up={1: "no module named cuda"})
    report = report_of(run, tmp_path / "run")
    cut, broken, _ = junit_suites(report)
    assert result(cut, COPY).tag == "skipped"
    assert result(cut, STEADY).tag == "system-out"
    error = result(broken, COPY)
    assert error.tag == "error"
    assert "no module named cuda" in str(error.get("message"))
    found = ocp_messages(report)
    assert ends(found) == ("ERROR", "NOT_APPLICABLE")
    assert step(found, "gpu0-phase3")[-1]["testStepEnd"] == {"status": "SKIP"}
    assert step(found, "gpu0-phase2")[-1]["testStepEnd"] == {"status": "COMPLETE"}
    *_, said, end = step(found, "gpu1-phase3")
    assert said["error"]["symptom"] == "phase-not-possible"
    assert "no module named cuda" in said["error"]["message"]
    assert end["testStepEnd"] == {"status": "ERROR"}


def test_a_check_that_was_not_tested_is_skipped(tmp_path: Path) -> None:
    suite, *_ = suites(ExampleRun(gpus=1), tmp_path)
    assert result(suite, "rate.peers").tag == "skipped"


def test_a_run_without_a_gpu_is_an_error(tmp_path: Path) -> None:
    report = report_of(ExampleRun(gpus=0), tmp_path / "run")
    (suite,) = junit_suites(report)
    assert suite.get("errors") == "1"
    assert ends(ocp_messages(report)) == ("ERROR", "NOT_APPLICABLE")


def test_text_from_outside_cannot_break_the_document(tmp_path: Path) -> None:
    hostile = 'a"]]><x>&\x00\x1b[31m\ufffe\N{SNOWMAN}'
    run = ExampleRun(gpus=1, name=hostile, given_up={0: hostile})
    suite, _ = suites(run, tmp_path)
    message = str(result(suite, COPY).get("message"))
    assert message.endswith('a"]]><x>&\ufffd\ufffd[31m\ufffd\N{SNOWMAN}')


def messages(run: ExampleRun, folder: Path) -> list[dict[str, Any]]:
    """Build the messages of a run."""
    return ocp_messages(report_of(run, folder / "run"))


def ends(found: list[dict[str, Any]]) -> tuple[str, str]:
    """Return the status and the result of a run."""
    end = found[-1]["testRunArtifact"]["testRunEnd"]
    return end["status"], end["result"]


def step(found: list[dict[str, Any]], name: str) -> list[Mapping[str, Any]]:
    """Return the messages of a step."""
    artifacts = [one["testStepArtifact"] for one in found if "testStepArtifact" in one]
    return [artifact for artifact in artifacts if artifact["testStepId"] == name]


def test_the_validator_rejects_what_the_schema_forbids() -> None:
    end = {"status": "COMPLETE", "result": "WARN"}
    time = "2026-11-23T08:00:00+00:00"
    message = {"testRunArtifact": {"testRunEnd": end}, "sequenceNumber": 1, "timestamp": time}
    assert list(ocp_validator().iter_errors(message))
    end["result"] = "PASS"
    assert not list(ocp_validator().iter_errors(message))


def test_diagnoses_name_the_gpu_and_a_failure_is_one_of_them(tmp_path: Path) -> None:
    found = messages(RUNS["FAIL"], tmp_path)
    diagnoses = [one["diagnosis"] for one in step(found, "gpu1-checks") if "diagnosis" in one]
    assert {diagnose["hardwareInfoId"] for diagnose in diagnoses} == {uuid(1)}
    failed = {diagnose["verdict"] for diagnose in diagnoses if diagnose["type"] == "FAIL"}
    assert failed == {"results.wrong-fail", "results.finding-fail", "burnin-fail"}
    good = [one["diagnosis"] for one in step(found, "gpu0-checks") if "diagnosis" in one]
    assert "FAIL" not in {one["type"] for one in good}
    start = found[1]["testRunArtifact"]["testRunStart"]
    known = {one["hardwareInfoId"] for one in start["dutInfo"]["hardwareInfos"]}
    assert known == {uuid(0), uuid(1)}


def test_measurements_have_their_unit_and_wrong_results_a_limit(tmp_path: Path) -> None:
    found = step(messages(RUNS["FAIL"], tmp_path), "gpu1-phase2")
    measured = {
        one["measurement"]["name"]: one["measurement"] for one in found if "measurement" in one
    }
    assert measured["power_w_median"]["unit"] == "W"
    assert measured["results_wrong"]["value"] == 3
    assert measured["results_wrong"]["validators"] == [{"type": "LESS_THAN_OR_EQUAL", "value": 0}]
