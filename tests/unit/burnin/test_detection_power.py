"""What a verdict is worth: four statements of a report, from what a run has recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sentinel.burnin.checks.check import Thresholds
from sentinel.burnin.detection_power import PARTS, statements, wilson
from sentinel.burnin.formats import FORMATS
from sentinel.burnin.report import judge_run, report_object
from sentinel.config.options import DTYPES, UNITS
from sentinel.host.golden_store import GoldenKey, dtype_of, sms_of
from tests.harness.example_run import BEGAN, ExampleRun, uuid
from tests.harness.parameters import mostly_long
from tests.harness.report_formats import SCHEMA, closed, schema_problems

KEY = GoldenKey(
    gpu="NVIDIA H200, 141 GB",
    sms=132,
    torch="2.11.0+cu128",
    blas="12.8.4 CUBLAS_WORKSPACE_CONFIG=:4096:8",
    dtype="bf16",
    shape="16384x16384x16384 v2",
    seed=1,
)
KINDS = {"single bit": 37, "several bits": 31, "every 32nd element": 31, "NaN or infinite": 1}
#: When the steady phase of the example begins, and its last one, in seconds.
STEADY_AT, COPY_AT = 66.0, 126.0

Row = dict[str, Any]


def selftest(dtype: str, at: float, visible: int, **missed: int) -> Row:
    """Build what a stressor sends before it is ready."""
    found = {kind: count - missed.get(kind, 0) for kind, count in KINDS.items()}
    return {
        "event": "selftest",
        "at": BEGAN + at,
        "gpu": uuid(0),
        "dtype": dtype,
        "place": "comparison",
        "tried": 200,
        "found": sum(found.values()) + visible,
        "rounded": 100 - visible,
        "tried_by_kind": {**KINDS, "partial sum": 100},
        "found_by_kind": {**found, "partial sum": visible},
    }


def checksum(dtype: str, at: float) -> Row:
    key = str(KEY).replace("bf16", dtype)
    values = {"key": key, "checksum": "0xa", "stored": None}
    return {"event": "checksum", "at": BEGAN + at, "gpu": uuid(0), **values}


def link(part: str, checked: int) -> Row:
    row = {"event": "link", "at": BEGAN + COPY_AT, "gpu": uuid(0)}
    values = {
        "part": part,
        "peer": 1 if part == "peer" else None,
        "size": 2,
        "rate": 5e10,
        "wrong": 0,
    }
    return {**row, **values, "checked": checked}


def power(folder: Path, *rows: Row, run: ExampleRun | None = None) -> tuple[Row, str, str]:
    """Return the statements of GPU 0 as values, and the report as text and as a page."""
    written = (run or ExampleRun()).write(folder / "run")
    lines = written.samples.read_text().splitlines()
    for row in rows:
        at = next(n for n, line in enumerate(lines) if json.loads(line)["at"] >= row["at"])
        lines.insert(at, json.dumps({"time": "2026-11-23T08:00:30+00:00", **row}))
    written.samples.write_text("\n".join([*lines, ""]))
    judged = judge_run(written, Thresholds())
    report = report_object(judged)
    assert schema_problems(closed(SCHEMA), json.loads(json.dumps(report))) == []
    texts = [FORMATS[name](judged, report) for name in ("text", "html")]
    return report["gpus"][0]["detection_power"], texts[0], texts[1]


def test_the_comparison_is_proved_by_the_faults_of_this_run(tmp_path: Path) -> None:
    """Over all stressors, and without the faults that rounding hides."""
    rows = [selftest("bf16", STEADY_AT, 52), selftest("bf16", STEADY_AT + 9, 55)]
    found, text, page = power(tmp_path, *rows)
    comparison = found["comparison"]
    assert (comparison["injected"], comparison["found"]) == (200, 200)
    assert comparison["interval"] == pytest.approx([0.981, 1.0], abs=0.001)
    kinds = {row["kind"]: (row["injected"], row["found"]) for row in comparison["kinds"]}
    assert kinds == {kind: (2 * count, 2 * count) for kind, count in KINDS.items()}
    (bf16,) = found["rounding"]
    assert (bf16["format"], bf16["injected"], bf16["found"]) == ("bf16", 200, 107)
    assert bf16["interval"] == pytest.approx([0.466, 0.603], abs=0.001)
    for form in (text, page):
        assert "200 of 200 injected faults were found" in form
        assert "bf16 54% (46.6 to 60.3 %)" in form


def test_without_a_fault_that_was_injected_no_sensitivity_is_claimed(tmp_path: Path) -> None:
    found, text, page = power(tmp_path)
    assert (found["comparison"], found["rounding"]) == (None, [])
    for form in (text, page):
        assert "no fault was injected, so its sensitivity is not known" in form


def test_what_was_exercised_and_what_was_not_is_listed(tmp_path: Path) -> None:
    rows = [selftest("bf16", STEADY_AT, 52), checksum("bf16", STEADY_AT)]
    rows += [link("host_to_device", 8), link("peer", 0)]
    found, text, page = power(tmp_path, *rows)
    exercised = found["exercised"]
    assert exercised["parts"] == ["bf16", "memory", "host-link"]
    assert (exercised["memory_share"], exercised["sms"]) == (0.88, 132)
    not_exercised = {row["part"]: row["why"] for row in found["not_exercised"]}
    assert [*not_exercised] == [name for name in PARTS if name not in exercised["parts"]]
    assert not_exercised["gpu-links"] == "no phase exercised it"
    assert not_exercised["network"] == "no workload exercises it"
    for form in (text, page):
        assert "88% of the memory" in form
        assert "a GPU of 132 SMs" in form
        assert "network adapters and fabric" in form


@mostly_long(
    "workload, again, parts",
    [
        # All formats of `mixed` are prepared at its start; only some have their time.
        ("mixed", ["fp8"], ["fp8"]),
        ("gemm:dtype=fp8", [], ["bf16", "fp8"]),
    ],
)
def test_a_format_that_was_only_prepared_is_not_exercised(
    workload: str,
    again: list[str],
    parts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = ExampleRun().plan
    phases = [vars(phase) for phase in plan.phases]
    phases[1] = {**phases[1], "workload": workload}
    changed = type(plan)(
        **{**vars(plan), "phases": tuple(type(plan.phases[0])(**one) for one in phases)}
    )
    monkeypatch.setattr(ExampleRun, "plan", property(lambda _: changed))
    rows = [
        row
        for name in ("bf16", "fp8")
        for row in (selftest(name, STEADY_AT, 50), checksum(name, STEADY_AT))
    ]
    found, *_ = power(tmp_path, *rows, *(checksum(name, STEADY_AT + 5) for name in again))
    assert [name for name in found["exercised"]["parts"] if name in DTYPES] == parts


def test_units_are_those_that_were_checked_and_others_have_their_reason(tmp_path: Path) -> None:
    from sentinel.burnin.detection_power import detection_power
    from sentinel.burnin.record import GpuRecord

    units = [
        {"unit": "exp", "checks": 9, "wrong": 0, "not_exercised": None},
        {"unit": "fp4", "checks": 0, "wrong": 0, "not_exercised": "this GPU has none"},
    ]
    phase = {"workload": "units", "checks": 9, "errors": 0, "memory_share": None, "units": units}
    found = detection_power(GpuRecord(uuid="GPU-1", index=0, phases=[]), [phase])
    assert found["exercised"]["parts"] == ["exp"]
    reasons = {row["part"]: row["why"] for row in found["not_exercised"]}
    assert {*DTYPES, *UNITS} <= PARTS.keys(), "what a workload has is in the one table"
    assert reasons["fp4"] == "this GPU has none"
    assert reasons["sin"] == "no phase exercised it"


@pytest.mark.parametrize(
    ("change", "steady", "hot"),
    [
        (lambda row: row, 63.0, 60.0),
        (lambda row: {**row, "temperature_c": 58}, 58.0, 80.0),
        (lambda row: {**row, "temperature_c": None}, None, None),
    ],
)
def test_a_gpu_is_hot_within_five_degrees_of_its_steady_temperature(
    change: Callable[[Row], Row], steady: float | None, hot: float | None, tmp_path: Path
) -> None:
    folder = ExampleRun().write(tmp_path / "run")
    rows = [json.loads(line) for line in folder.samples.read_text().splitlines()]
    changed = (change(row) if row["event"] == "telemetry" else row for row in rows)
    folder.samples.write_text("".join(f"{json.dumps(row)}\n" for row in changed))
    report = report_object(judge_run(folder, Thresholds()))
    found = report["gpus"][0]["detection_power"]["exercised"]
    assert found["steady_c"] == steady
    assert (found["hot_s"] is None) == (hot is None)
    assert hot is None or found["hot_s"] >= hot


def test_a_report_of_an_earlier_version_has_the_bound_alone() -> None:
    earlier = {"checks": 3000, "errors": 0, "error_rate_below": 0.001, "confidence": 0.95}
    (bound,) = statements({"detection_power": earlier})
    assert bound[1].startswith("no error in 3,000 checked results: fewer than 1.0e-03 per result")
    (bound,) = statements({"detection_power": {**earlier, "error_rate_below": 3 / 322}})
    assert "fewer than 9.4e-03 per result" in bound[1]  # 9.317e-03, rounded up


@pytest.mark.parametrize(
    ("found", "tried", "low", "high"),
    [(0, 0, 0.0, 1.0), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634)],
)
def test_intervals_are_those_of_wilson(found: int, tried: int, low: float, high: float) -> None:
    assert wilson(found, tried) == pytest.approx([low, high], abs=1e-4)


def test_multiprocessors_and_format_are_read_from_the_text_of_a_key() -> None:
    assert (sms_of(str(KEY)), dtype_of(str(KEY))) == (132, "bf16")
    assert (sms_of("bf16"), dtype_of("bf16")) == (0, None)
