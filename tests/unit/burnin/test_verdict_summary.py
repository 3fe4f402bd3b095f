"""The summary of a verdict fits into a termination message, and never hides a fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sentinel.burnin.verdict import MAX_BYTES, verdict_summary
from tests.harness.judged_run import RUNS, report_of


@pytest.mark.parametrize("verdict", RUNS)
def test_it_has_the_verdict_of_the_node_and_of_each_gpu(verdict: str, tmp_path: Path) -> None:
    report = report_of(RUNS[verdict], tmp_path / "run")
    found = json.loads(verdict_summary(report))
    assert (found["verdict"], found["node"]) == (verdict, report["node"]["hostname"])
    assert {gpu["uuid"]: gpu["verdict"] for gpu in found["gpus"]} == {
        gpu["uuid"]: gpu["verdict"] for gpu in report["gpus"]
    }
    for gpu, whole in ((one, _of(report, one["uuid"])) for one in found["gpus"]):
        assert gpu.get("reasons", 0) == len(whole["reasons"])
        assert gpu.get("reason", "") == "".join(whole["reasons"][:1])[:200]


def _of(report: dict[str, Any], uuid: str) -> dict[str, Any]:
    gpu: dict[str, Any]
    (gpu,) = (one for one in report["gpus"] if one["uuid"] == uuid)
    return gpu


def _with_gpus(report: dict[str, Any], verdicts: list[str], reason: str) -> dict[str, Any]:
    template = report["gpus"][0]
    gpus = [
        {
            **template,
            "index": index,
            "uuid": f"GPU-{index:08d}-0000-0000-0000-000000000000",
            "verdict": verdict,
            "reasons": [] if verdict == "PASS" else [reason],
        }
        for index, verdict in enumerate(verdicts)
    ]
    summary = {name: verdicts.count(name) for name in report["summary"]}
    return {**report, "gpus": gpus, "summary": summary, "verdict": "FAIL"}


@pytest.mark.parametrize("reason", ["short", "wörter " * 500, "\x00\n" * 300])
@pytest.mark.parametrize("count", [1, 8, 16, 72, 1000])
def test_it_fits_whatever_there_is(tmp_path: Path, count: int, reason: str) -> None:
    verdicts = ["PASS", "INCOMPLETE", "FAIL", "PASS"] * count
    report = _with_gpus(report_of(RUNS["FAIL"], tmp_path / "run"), verdicts, reason)
    text = verdict_summary(report)
    assert len(text.encode()) <= MAX_BYTES
    found = json.loads(text)
    assert found["summary"]["FAIL"] == count
    assert len(found["gpus"]) + found["gpus_left_out"] == len(verdicts)
    shown = [gpu["verdict"] for gpu in found["gpus"]]
    assert shown.count("FAIL") == min(count, len(shown)), "a fault is the last that is left out"
    if count <= 8:
        assert shown.count("INCOMPLETE") == count
