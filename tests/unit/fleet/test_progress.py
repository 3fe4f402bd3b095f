"""The live state of a node follows its events, and survives those of another version."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.burnin.checks.check import Thresholds
from sentinel.fleet.node_files import read_fleet
from sentinel.fleet.progress import (
    NodeProgress,
    ProgressBuilder,
    read_progress,
    read_reasons,
    record_reasons,
    write_progress,
)
from sentinel.fleet.report import outliers
from sentinel.fleet.run_folder import FleetFolder
from sentinel.fleet.verdict import judge_fleet
from tests.harness.example_fleet import Fleets

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


def event(name: str, gpu: str = "GPU-a", **fields: Any) -> dict[str, Any]:
    return {"event": name, "gpu": gpu, **fields}


def built(*events: dict[str, Any]) -> NodeProgress:
    builder = ProgressBuilder()
    for event in events:
        builder.take(event)
    return builder.progress("n", "running", NOW)


def started(gpu: str, number: int) -> dict[str, Any]:
    return event("burnin.phase_started", gpu, phase=f"p{number}", number=number, phases=3)


def ended(gpu: str) -> dict[str, Any]:
    return event("burnin.ended", gpu, reason=None)


def progressed(gpu: str, number: int, findings: int) -> dict[str, Any]:
    known = {"phase": f"p{number}", "number": number, "phases": 3, "findings": findings}
    return event("burnin.progress", gpu, **known, left_s=9.0 - number, temperature_c=40 + number)


#: A GPU, what happens to it, and the number of the phase in which it does.
STEPS = st.tuples(
    st.sampled_from(["GPU-a", "GPU-b"]),
    st.sampled_from(["found", "progress", "ended", "nothing"]),
    st.integers(1, 3),
)


@pytest.mark.parametrize(
    ("events", "number", "gpus", "done"),
    [
        ([started("GPU-a", 1), started("GPU-b", 1), started("GPU-a", 2)], 1, 2, 0),
        # A GPU that has done all is waited for no more, and a resumed one works again.
        (
            [started("GPU-a", 2), started("GPU-b", 1), ended("GPU-b")],
            2,
            2,
            1,
        ),
        ([started("GPU-a", 2), ended("GPU-a"), started("GPU-a", 2)], 2, 1, 0),
    ],
)
def test_the_phase_is_that_of_the_gpu_that_is_furthest_behind(
    events: list[dict[str, Any]], number: int, gpus: int, done: int
) -> None:
    progress = built(*events)
    assert (progress.phase, progress.number, progress.phases) == (f"p{number}", number, 3)
    assert (progress.gpus, progress.gpus_done) == (gpus, done)


def test_the_worst_readings_are_those_of_the_node() -> None:
    progress = built(
        started("GPU-a", 1),
        started("GPU-b", 1),
        event("burnin.progress", "GPU-a", phase="p1", number=1, phases=3, left_s=10.0,
              waiting=None, temperature_c=60),
        event("burnin.progress", "GPU-b", phase="p1", number=1, phases=3, left_s=30.0,
              waiting="not idle", temperature_c=None),
        event("gpu.status", "GPU-b", temperature_c=75),
        event("stressor.finding", "GPU-a"),
        event("stressor.finding", "GPU-b"),
    )  # fmt: skip
    assert progress.left_s == 30.0
    assert progress.temperature_c == 75
    assert progress.findings == 2
    assert progress.note == "not idle"


def test_the_work_that_is_left_is_that_of_the_last_event() -> None:
    """A phase is shorter than the time between two reports of the progress."""
    earlier = event("burnin.progress", phase="p1", number=1, phases=3, left_s=30.0)
    progress = built(earlier, {**started("GPU-a", 2), "left_s": 5.0})
    assert progress.left_s == 5.0


@given(steps=st.lists(STEPS, min_size=1), data=st.data())
def test_a_lost_event_loses_nothing_that_the_last_progress_repeats(
    steps: list[tuple[str, str, int]], data: st.DataObject
) -> None:
    """Any event of a GPU may be missing that is followed by a report of its progress."""
    rows: list[dict[str, Any]] = []
    findings: dict[str, int] = {}
    for gpu, what, number in steps:
        rows.append(started(gpu, number))
        if what == "found":
            findings[gpu] = findings.get(gpu, 0) + 1
            rows.append(event("stressor.finding", gpu))
        if what == "progress":
            rows.append(progressed(gpu, number, findings.get(gpu, 0)))
        if what == "ended":
            rows.append(ended(gpu))
    rows += [progressed(gpu, 3, findings.get(gpu, 0)) for gpu in {gpu for gpu, *_ in steps}]
    last = {row["gpu"]: number for number, row in enumerate(rows)}
    needed = set(last.values())
    lost = data.draw(st.sets(st.sampled_from(range(len(rows)))).map(lambda found: found - needed))
    kept = [row for number, row in enumerate(rows) if number not in lost]
    assert built(*kept) == built(*rows)
    assert built(*kept).findings == sum(findings.values())


@pytest.mark.parametrize(
    "strange", [{}, {"event": 1}, {"event": "burnin.progress", "gpu": "GPU-a"}, event("new.one")]
)
def test_an_event_of_another_version_breaks_nothing(strange: dict[str, Any]) -> None:
    assert built(started("GPU-a", 1), strange).gpus == 1


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "n.json"
    progress = built(started("GPU-a", 1))
    write_progress(path, progress)
    assert read_progress(path) == progress


@pytest.mark.parametrize("text", ["", "{", "[]", '{"node": 1}', '{"node": "n", "state": "x"}'])
def test_a_file_that_is_none_is_as_if_it_were_missing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "n.json"
    assert read_progress(path) is None
    path.write_text(text)
    assert read_progress(path) is None


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
    fleets: Fleets,
) -> None:
    folder = fleets.write(absent=frozenset({1, 2, 3}), half=frozenset({4}))
    names = ["node-0001", "node-0002", "node-0004"]
    ended = {name: f"job {number} has ended: TIMEOUT" for number, name in enumerate(names, 17)}
    record_reasons(folder, names, ended)
    found = outliers(judge_fleet(read_fleet(folder.path), Thresholds()))
    assert [([node.name for node in one.nodes], one.reasons) for one in found] == [
        (names[:2], ("it has no report: job 17 has ended: TIMEOUT",)),
        (["node-0003"], ("it has no report",)),
        # Half of a report says more than the end of its task.
        (names[2:], ("its report is not complete JSON",)),
    ]
    assert json.loads(folder.missing.read_text()) == ended  # no node is called so
