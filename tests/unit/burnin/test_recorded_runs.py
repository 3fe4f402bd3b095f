"""What counted of sixteen burn-ins on simulated GPUs, as version 0.2 recorded and counted it.

Among them are runs with newcomers, kills, resumptions, a full disk and faults. A change of what
counts as verified work shows here.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sentinel.burnin.loading import load
from sentinel.burnin.record import GpuRecord
from sentinel.burnin.run_folder import lines, read_object
from sentinel.config.plan import Plan
from sentinel.protocol.codec import from_json

HARNESS = Path(__file__).parents[2] / "harness"
COUNTED: dict[str, Any] = json.loads((HARNESS / "recorded_runs.json").read_text())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Extract the folders of the runs."""
    folder = tmp_path_factory.mktemp("runs")
    with tarfile.open(HARNESS / "recorded_runs.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def counted(record: GpuRecord) -> dict[str, Any]:
    """Collect what counts of a GPU's run, by both definitions: the daemon's and the record's."""
    return {
        "phases": [
            {
                "done": phase.done,
                "passes": phase.passes,
                "complete": phase.complete,
                "work": {
                    key: None if phase.ended is None else getattr(phase.work, key)
                    for key in ("seconds", "checks", "errors")
                },
                "stretches": [[round(at, 3) for at in stretch] for stretch in phase.stretches],
                "judged": [len(phase.judged(phase.telemetry)), len(phase.judged(phase.reports))],
            }
            for phase in record.phases
        ],
        "interruptions": [
            [one.phase, one.cause, round(one.stretch_s, 3)] for one in record.interruptions
        ],
        "cut_short": record.cut_short,
        "dropped": record.dropped,
    }


def counted_run(folder: Path) -> dict[str, Any]:
    """Count a run, by the number of the GPU."""
    plan = {k: v for k, v in read_object(folder / "run.json")["plan"].items() if k != "hash"}
    rows: list[Iterator[Any]] = [lines(folder / f"{name}.jsonl") for name in ("events", "samples")]
    records = load(from_json(Plan, plan, "plan"), *rows).values()
    return {str(one.index): counted(one) for one in sorted(records, key=lambda one: one.index)}


@pytest.mark.parametrize("name", COUNTED)
def test_what_counts_of_a_recorded_run_stays(runs: Path, name: str) -> None:
    assert counted_run(runs / name) == COUNTED[name]
