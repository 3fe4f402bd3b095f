"""Reports of each format follow its schema; the page needs nothing else, and trusts no text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import pytest
from jsonschema import Draft202012Validator

from sentinel.burnin.checks.check import Thresholds
from sentinel.burnin.checks.measures import format_measure, title
from sentinel.burnin.formats import FORMATS
from sentinel.burnin.report import SCHEMA_VERSION, judge_run, report_object
from sentinel.burnin.timeline import COLUMNS, Span, thinned
from sentinel.protocol.stressor import LinkPart
from tests.harness.example_run import COPY, RUNS, STEADY, ExampleRun, judged, report_of, uuid
from tests.harness.narrowing import not_none
from tests.harness.parameters import mostly_long
from tests.harness.report_formats import (
    SCHEMA,
    Parsed,
    closed,
    junit_suites,
    ocp_messages,
    ocp_validator,
    schema_problems,
)


def test_the_schema_is_valid_and_names_the_version_of_the_reports() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$id"].rpartition(":")[2] == SCHEMA_VERSION


@mostly_long("verdict, run", [*RUNS.items(), ("INCOMPLETE", ExampleRun(gpus=0))], quick=2)
def test_a_report_with_each_verdict_follows_the_schema(
    verdict: str, run: ExampleRun, tmp_path: Path
) -> None:
    report = report_of(run, tmp_path / "run")
    assert report["verdict"] == verdict, report["gpus"]
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


@pytest.mark.parametrize(
    ("without", "text"),
    [
        ((), "the memory at 40 to 71 C"),
        (("memory_temperature_c",), "the GPU at 35 to 64 C"),
        (("memory_temperature_c", "temperature_c"), None),
    ],
)
def test_a_memory_test_says_how_warm_the_memory_was(
    without: tuple[str, ...], text: str | None, tmp_path: Path
) -> None:
    folder = ExampleRun().write(tmp_path / "run")
    rows = [json.loads(line) for line in folder.samples.read_text().splitlines()]
    kept = ({k: v for k, v in row.items() if k not in without} for row in rows)
    folder.samples.write_text("".join(f"{json.dumps(row)}\n" for row in kept))
    run = judge_run(folder, Thresholds())
    report = report_object(run)
    assert schema_problems(closed(SCHEMA), json.loads(json.dumps(report))) == []
    memory, *others = report["gpus"][0]["coverage"]
    assert (memory["memory_heat"] is None) == (text is None)
    assert [phase["memory_heat"] for phase in others] == [None, None]
    for name in ("text", "html"):
        found = "(memory|GPU) at [0-9]" if text is None else re.escape(text)
        assert bool(re.search(found, FORMATS[name](run, report))) == (text is not None)


def test_the_page_has_the_temperature_of_a_gpu_that_was_too_hot_to_begin(tmp_path: Path) -> None:
    run = judged(ExampleRun(), tmp_path / "run")
    report = report_object(run)
    hot = report["gpus"][1]
    hot["measurements"] = []
    hot["counters"]["before"]["temperature_c"] = 93
    shown = FORMATS["html"](run, report).partition("<h2>GPUs</h2>")[2].partition("</table>")[0]
    assert "93 °C" in shown.partition(hot["serial"])[2]


def test_a_hot_gpu_has_its_highest_temperature_when_it_was_slow_and_what_to_do(
    tmp_path: Path,
) -> None:
    """It was hottest while it warmed up, which does not count."""
    folder = ExampleRun(every=1.0).write(tmp_path / "run")
    rows = [json.loads(line) for line in folder.samples.read_text().splitlines()]
    for row in rows:
        since = row["at"] - 1000.0
        if row["event"] == "telemetry" and row["gpu"] == uuid(1) and 31 <= since <= 50:
            row["reasons"] = ["sw_thermal_slowdown"]
            row["temperature_c"] = 86 if since == 32 else 80
    folder.samples.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    counters = json.loads(folder.counters.read_text())
    for name, seconds in (("before", 0.0), ("after", 20.0)):
        counters[name][1]["software_thermal_throttled_s"] = seconds
        counters[name][1]["hardware_thermal_throttled_s"] = seconds / 1000
    folder.write(folder.counters, counters)
    run = judge_run(folder, Thresholds())
    report = report_object(run)
    head, hot, first = FORMATS["text"](run, report).split("\n\n")
    assert "GPU 1: throttle.software_thermal" in head
    assert "throttle.software_thermal" in hot
    assert hot.count("\n            do: CHECK_MECHANICALS: check the air flow") == 1
    assert "do:" not in first
    shares = re.findall(r"([0-9.]+) of the time;", FORMATS["ocp"](run, report))
    assert any(map(float, shares))
    assert max(map(len, shares)) <= len("0.0001234")
    html = FORMATS["html"](run, report)
    shown = html.partition("<h2>GPUs</h2>")[2].partition("</table>")[0]
    assert "86 °C" in shown.partition(hot.partition("serial ")[2][:5])[2]
    found = not_none(re.search(r'id="plots">(.*?)</script>', html))
    good, bad = json.loads(found[1]).values()
    assert (good["slow"], bad["slow"]) == ([], [[31, 51, "slowed down by heat for 20 s"]])
    assert html.count('class="swatch slow"') == 1


def test_stripes_are_held_one_after_the_other_and_add_up_to_no_more_than_the_memory(
    tmp_path: Path,
) -> None:
    """Two stripes of 11 % were held beside patterns that covered 75 % of 86 %: 97 % is no sum."""
    folder = ExampleRun().write(tmp_path / "run")
    text = folder.events.read_text()
    folder.events.write_text(text.replace('"retained": null', '"retained": 0.22', 1))
    run = judge_run(folder, Thresholds())
    report = report_object(run)
    for name in ("text", "html"):
        assert FORMATS[name](run, report).count("22.0% held untouched, a stripe at a time") == 1


def test_an_interruption_in_text_has_its_time(tmp_path: Path) -> None:
    run = judged(ExampleRun(interrupted={0: "python"}), tmp_path / "run")
    text = FORMATS["text"](run, report_object(run))
    assert "\n            1 interruption, 6 s in all: a foreign process (python)\n" in text


def test_more_passes_than_were_needed_are_no_share_of_them(tmp_path: Path) -> None:
    folder = ExampleRun().write(tmp_path / "run")
    text = folder.events.read_text()
    covered = '"0": {0}, "1": {0}, "2": {0}, "3": {0}'
    text = text.replace(covered.format(2), covered.format(3), 1)
    folder.events.write_text(text.replace('"passes": 2', '"passes": 3', 1))
    run = judge_run(folder, Thresholds())
    report = report_object(run)
    for name in ("text", "html", "junit", "ocp"):
        found = FORMATS[name](run, report)
        assert found.count("3 passes (2 needed)") == found.count("2 of 2 passes") == 1


HOSTILE = "</style></script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"


def page(run: ExampleRun, folder: Path) -> str:
    """Build the page of a run."""
    found = judged(run, folder / "run")
    return FORMATS["html"](found, report_object(found))


@mostly_long("verdict", RUNS, quick=2)
def test_the_verdict_is_first_with_its_word_symbol_and_colour(verdict: str, tmp_path: Path) -> None:
    kind = "none" if verdict == "N/A" else verdict.lower()
    parsed = Parsed(page(RUNS[verdict], tmp_path))
    assert parsed.text.split("Burn-in of")[0].split()[-1] == verdict
    assert parsed.named("use")[0] == {"href": f"#i-{kind}"}
    assert parsed.named("header")[0] == {"class": f"top {kind}"}


def test_a_reason_has_its_value_threshold_source_and_action(tmp_path: Path) -> None:
    text = Parsed(page(RUNS["FAIL"], tmp_path)).text
    reason = re.sub(r"\s+", " ", text.partition("Wrong Interrupted")[2])
    assert re.search(
        r"FAIL results\.wrong 3 2,000 results checked Action TRIAGE:.*?"
        r"Threshold fail > 0 Source Sentinel.*? Severity isolate",
        reason,
    )


def test_text_from_outside_is_escaped_wherever_it_comes_from(tmp_path: Path) -> None:
    run = ExampleRun(
        name=HOSTILE,
        model=HOSTILE,
        interrupted={0: HOSTILE},
        given_up={1: HOSTILE},
        moved={0: {"inforom": HOSTILE, "lost": HOSTILE}},
    )
    parsed, plain = Parsed(page(run, tmp_path)), Parsed(page(RUNS["FAIL"], tmp_path / "plain"))
    assert parsed.text.count(HOSTILE) > 5
    known = {name for name, _ in plain.elements}
    assert {name for name, _ in parsed.elements} <= known
    assert len(parsed.named("script")) == 2  # the values and the script
    assert not [a for _, attributes in parsed.elements for a in attributes if a.startswith("on")]


def test_the_page_loads_nothing_and_allows_no_script_but_its_own(tmp_path: Path) -> None:
    text = page(RUNS["FAIL"], tmp_path)
    parsed = Parsed(text)
    for name, attributes in parsed.elements:
        assert name not in {"img", "link", "iframe", "object", "base"}
        assert "src" not in attributes
        assert str(attributes.get("href", "#")).startswith("#")
    assert "url(" not in text
    assert "@import" not in text
    script = text.partition('<script type="module">')[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(one["content"] for one in parsed.named("meta") if "http-equiv" in one)
    assert policy == (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    )


def test_every_link_leads_to_a_place_on_the_page(tmp_path: Path) -> None:
    parsed = Parsed(page(RUNS["FAIL"], tmp_path))
    places = {attributes.get("id") for _, attributes in parsed.elements}
    links = [one["href"] for name, one in parsed.elements if name in {"a", "use"}]
    assert links
    assert {str(link)[1:] for link in links} <= places


@pytest.mark.long
def test_a_day_of_eight_gpus_is_a_page_below_five_megabytes(tmp_path: Path) -> None:
    run = ExampleRun(gpus=2, seconds=86400.0, every=12.0, interrupted={1: "python"})
    text = page(run, tmp_path)
    assert 4 * len(text.encode()) < 5e6
    assert text.count('<div class="drawing"') == 2 * 4


# --- curves ----------------------------------------------------------------------------------


def points(segments: list[list[tuple[float, float]]], seconds: float) -> list[Any]:
    """Thin a curve; return its points."""
    return list(zip(*thinned(segments, Span(first=0.0, last=seconds, started=None)), strict=True))


def test_a_curve_of_a_day_keeps_the_lowest_and_the_highest_value_of_each_column() -> None:
    values = [(float(at), 50.0 + at % 2) for at in range(86400)]
    values[43210] = (43210.0, 100.0)
    values[70001] = (70001.0, 0.0)
    found = points([values], 86400.0)
    assert len(found) <= 2 * COLUMNS
    assert (43210, 100) in found
    assert (70001, 0) in found
    assert [at for at, _ in found] == sorted(at for at, _ in found)


def test_a_curve_has_a_gap_where_values_are_missing_and_between_phases() -> None:
    values = [(float(at), 50.0) for at in range(100) if not 40 <= at < 60]
    found = points([values[:70], values[70:]], 100.0)
    assert [at for at, value in found if value is None] == [39, 89]
    assert len(found) == len(values) + 2


def test_the_page_has_the_phases_the_absences_and_the_curves_for_its_script(
    tmp_path: Path,
) -> None:
    values = not_none(re.search(r'id="plots">(.*?)</script>', page(RUNS["FAIL"], tmp_path)))
    first, second = json.loads(values[1]).values()
    assert [one["key"] for one in first["curves"]] == ["heat", "power", "clock", "rate"]
    assert [name for *_, name, _ in first["phases"]] == ["1 memory", "2 steady", "3 copy"]
    assert [why for *_, why in first["away"]] == [
        "interrupted by a foreign process (python) for 6 s"
    ]
    assert second["away"] == []
    assert first["seconds"] >= sum(first["curves"][0]["steps"]) > 0.9 * first["seconds"]


def test_the_curve_of_a_phase_shows_the_kind_of_work_that_most_of_its_reports_have(
    tmp_path: Path,
) -> None:
    """Of units, one in ten computes products."""
    folder = ExampleRun().write(tmp_path / "run")
    rows = [json.loads(line) for line in folder.samples.read_text().splitlines()]
    works = [one for one in rows if one["event"] == "work"]
    for number, one in enumerate(works):
        one.update(flops=0.0 if number % 10 else 1e12, bytes=1e12 * one["seconds"])
    folder.samples.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    judged = judge_run(folder, Thresholds())
    found = re.search(r'id="plots">(.*?)</script>', FORMATS["html"](judged, report_object(judged)))
    assert found is not None
    for gpu in json.loads(found[1]).values():
        (rate,) = [one for one in gpu["curves"] if one["key"] == "rate"]
        assert {value for value in rate["values"] if value is not None} == {100}


# --- JUnit and OCP -------------------------------------------------------------------------------


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


@mostly_long("verdict", RUNS, quick=2)
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
