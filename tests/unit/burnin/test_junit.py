"""The JUnit XML of a burn-in: what a CI system counts."""

from __future__ import annotations

from pathlib import Path
from xml.etree.ElementTree import Element

import pytest

from tests.harness.example_run import COPY, STEADY, ExampleRun
from tests.harness.judged_run import RUNS, report_of
from tests.harness.report_formats import junit_suites


def suites(run: ExampleRun, folder: Path) -> list[Element]:
    """Build the document of a run, and return its suites."""
    return junit_suites(report_of(run, folder / "run"))


def result(suite: Element, name: str) -> Element:
    """Find the only child of a case."""
    return next(case[0] for case in suite.iter("testcase") if case.get("name") == name)


@pytest.mark.parametrize("verdict", RUNS)
def test_there_is_a_suite_for_each_gpu_and_one_for_the_node(verdict: str, tmp_path: Path) -> None:
    found = suites(RUNS[verdict], tmp_path)
    assert [suite.get("name", "").split()[:2] for suite in found] == [
        ["GPU", "0"],
        ["GPU", "1"],
        ["node"],
    ]
    failures = sum(int(suite.get("failures", "")) for suite in found)
    assert (failures > 0) == (verdict == "FAIL")


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
    cut, broken, _ = suites(run, tmp_path)
    assert result(cut, COPY).tag == "skipped"
    assert result(cut, STEADY).tag == "system-out"
    error = result(broken, COPY)
    assert error.tag == "error"
    assert "no module named cuda" in str(error.get("message"))


def test_a_check_that_was_not_tested_is_skipped(tmp_path: Path) -> None:
    suite, *_ = suites(ExampleRun(gpus=1), tmp_path)
    assert result(suite, "rate.peers").tag == "skipped"


def test_a_run_without_a_gpu_is_an_error(tmp_path: Path) -> None:
    (suite,) = suites(ExampleRun(gpus=0), tmp_path)
    assert suite.get("errors") == "1"


def test_text_from_outside_cannot_break_the_document(tmp_path: Path) -> None:
    hostile = 'a"]]><x>&\x00\x1b[31m\ufffe\N{SNOWMAN}'
    run = ExampleRun(gpus=1, name=hostile, given_up={0: hostile})
    suite, _ = suites(run, tmp_path)
    message = str(result(suite, COPY).get("message"))
    assert message.endswith('a"]]><x>&\ufffd\ufffd[31m\ufffd\N{SNOWMAN}')
