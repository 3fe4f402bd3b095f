"""The folder of a run may be another user's; earlier runs beside it count if they are alike."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sentinel.burnin import run_folder
from sentinel.burnin.checks.check import Thresholds
from sentinel.burnin.checks.recorded_run import read_run
from sentinel.burnin.former_runs import former_runs
from sentinel.burnin.report import judge_run
from sentinel.burnin.resume import earlier_work
from sentinel.burnin.run_files import new_folder, new_run, register
from sentinel.burnin.run_folder import RunFolder, drop_torn_line, find_run, lines, read_object
from sentinel.config.plan import Phase, Plan
from sentinel.errors import ConfigError
from sentinel.host import last_verdicts
from sentinel.host.regular_file import locked
from tests.harness.example_run import BEGAN, ExampleRun, uuid
from tests.harness.isolation import STRANGER

#: Deeper than any parser goes.
DEEP = "[" * 100_000


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


ODD: list[tuple[Callable[[Path], object], str]] = [
    (os.mkfifo, "not a regular file"),
    (endless, "not a regular file"),
    (lambda path: path.write_text(f"{DEEP}\n"), "not JSON"),
    (lambda path: path.write_bytes(b"\xff\xfe\n"), "not JSON"),
]


def test_no_line_is_written_through_a_link(tmp_path: Path) -> None:
    """The owner of the folder above may replace the folder of a run by one with links."""
    run, victim = RunFolder(path=tmp_path / "run"), tmp_path / "victim"
    run.path.mkdir()
    run.events.symlink_to(victim)
    with pytest.raises(ConfigError, match="cannot be written"):
        run.appended(run.events)
    assert not victim.exists()
    victim.write_text("torn")
    with pytest.raises(OSError, match="symbolic link"):
        drop_torn_line(run.events)
    assert victim.read_text() == "torn"


def test_runs_that_begin_within_a_second_have_folders_of_their_own(tmp_path: Path) -> None:
    """As those of a command for each GPU of a host."""
    plan = Plan(name="a", phases=(Phase(name="b", workload="hold"),))
    folders = [new_folder(tmp_path, plan).path for _ in range(20)]
    assert register(RunFolder(path=tmp_path / "elsewhere"), tmp_path, plan) is None
    assert len({*folders}) == 20
    assert len(list((tmp_path / last_verdicts.RUNS).iterdir())) == 21
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="Not a directory"):
        new_folder(tmp_path / "file", plan)


@pytest.mark.parametrize(("make", "why"), ODD)
def test_an_odd_file_is_refused(tmp_path: Path, make: Callable[[Path], object], why: str) -> None:
    folder = RunFolder(path=tmp_path)
    make(folder.header)
    make(folder.events)
    with pytest.raises(ConfigError, match=f"run.json.*{why}"):
        read_object(folder.header)
    with pytest.raises(ConfigError, match=f"run.json.*{why}"):
        read_run(folder)
    with pytest.raises(ConfigError, match=f"events.jsonl.*{why}"):
        list(lines(folder.events))


def test_a_list_is_no_object(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("[]")
    with pytest.raises(ConfigError, match="not a JSON object"):
        read_object(path)


def test_a_line_that_is_too_long_is_not_read_whole_and_no_end(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": 1}\n')
    os.truncate(path, 2**36)  # it has no blocks; as one line, it would not fit into the memory
    read = lines(path)
    assert next(read) == {"event": 1}
    with pytest.raises(ConfigError, match="line 2: longer than"):
        next(read)
    assert RunFolder(path=tmp_path / "none").event_count() == 0


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to give a file away")
def test_the_run_of_another_user_is_not_resumed(tmp_path: Path) -> None:
    """Its plan names workloads, which are code."""
    folder = RunFolder(path=tmp_path)
    folder.write(folder.header, {"plan": {}})
    with pytest.raises(ConfigError, match="not a run of this version"):
        earlier_work(folder, datetime.now(UTC), (), Thresholds())
    os.chown(folder.header, STRANGER, STRANGER)
    with pytest.raises(ConfigError, match=f"belongs to uid {STRANGER}") as refused:
        earlier_work(folder, datetime.now(UTC), (), Thresholds())
    assert "who began the run" in str(refused.value.remedy)


HEADER: dict[str, Any] = {
    "id": "now",
    "plan": {"hash": "h"},
    "node": {"driver": "580"},
    "started": "2026-11-23T00:00:00+00:00",
}
CARD = ("GPU-0", "S1")


def report(**changes: Any) -> dict[str, Any]:
    """Build the report of an earlier run."""
    found: dict[str, Any] = {
        "schema_version": "1.0",
        "run": {
            "id": "before",
            "plan": {"hash": "h"},
            "started": "2026-11-22T00:00:00+00:00",
        },
        "node": {"driver": "580"},
        "gpus": [
            {
                "uuid": "GPU-0",
                "serial": "S1",
                "verdict": "PASS",
                "vbios": "96.00",
                "counters": {"before": {"power_limit_w": 700.0}},
                "measurements": [
                    {"name": "flops_per_s", "phase": "hot", "steady": True, "median": 6e14},
                    {"name": "flops_per_s", "phase": "fp16", "steady": False, "median": 1e12},
                    {"name": "temperature_c", "phase": "hot", "steady": True, "median": 60.0},
                    {"name": "bytes_per_s", "phase": "memory", "steady": False, "median": 3e12},
                    {"name": "bytes_per_s", "phase": "copy", "steady": False, "median": 4e12},
                    {
                        "name": "all_reduce_bytes_per_s",
                        "phase": "links",
                        "steady": False,
                        "median": 1,
                        "highest": 2,
                    },
                ],
            }
        ],
    }
    for path, value in changes.items():
        *parts, last = path.split("__")
        place: Any = found
        for part in parts:
            place = place[int(part) if part.isdigit() else part]
        place[last] = value
    return found


def found(
    tmp_path: Path, *reports: object, name: str = "temperature_c"
) -> dict[tuple[str, str], list[Any]]:
    """Write reports beside a run; return what counts of them."""
    for number, report in enumerate(reports):
        folder = tmp_path / f"run-{number}"
        folder.mkdir()
        text = report if isinstance(report, str) else json.dumps(report)
        (folder / "report.json").write_text(text)
    runs = former_runs(RunFolder(path=tmp_path / "now"), HEADER)
    return {card: [getattr(one, name) for one in former] for card, former in runs.items()}


def test_each_measurement_of_earlier_runs_counts(tmp_path: Path) -> None:
    first, second = found(tmp_path, report(), report(), name="medians")[CARD]
    assert first == second
    rates = [("hot", "flops_per_s"), ("fp16", "flops_per_s"), ("copy", "bytes_per_s")]
    assert [first[rate] for rate in rates] == [6e14, 1e12, 4e12]


def test_the_best_all_reduce_of_earlier_runs_counts_with_the_number_of_gpus(tmp_path: Path) -> None:
    assert found(tmp_path, report(), name="all_reduce") == {CARD: [2]}
    both = [*report()["gpus"], {**report()["gpus"][0], "uuid": "GPU-1"}]
    other = ("GPU-1", CARD[1])
    busy = {**both[0], "uuid": "GPU-2", "serial": None, "measurements": []}  # not of the group
    folder = tmp_path / "two"
    folder.mkdir()
    assert found(folder, report(gpus=[*both, busy]), name="gpus") == {CARD: [2], other: [2]}


@pytest.mark.parametrize(
    "other",
    [
        report(run__plan={"hash": "other"}),
        report(node__driver="590"),
        report(run__started="2026-11-24T00:00:00+00:00"),
        report(gpus__0__verdict="FAIL"),
        report(gpus__0__serial=None),
        report(gpus__0__measurements=[]),
        report(schema_version="2.0"),
        report(gpus=None),
        "no JSON",
        "[" * 100_000,
        "[]",
    ],
)
def test_other_runs_do_not(other: object, tmp_path: Path) -> None:
    assert found(tmp_path, other) == {}


@pytest.mark.parametrize(
    ("started", "is_earlier"),
    [("2026-11-23T02:00:00+09:00", True), ("2026-11-22T23:00:00-09:00", False)],
)
def test_a_run_in_another_zone_is_earlier_by_its_moment(
    started: str,
    is_earlier: bool,  # noqa: FBT001 - a parameter of the test
    tmp_path: Path,
) -> None:
    assert bool(found(tmp_path, report(run__started=started))) is is_earlier


def test_the_newest_run_is_that_begun_or_resumed_last_whatever_its_local_time(
    tmp_path: Path,
) -> None:
    def run(name: str, started: str, *resumed: str) -> Path:
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        parts = [{"started": one} for one in resumed]
        (folder / "run.json").write_text(json.dumps({"started": started, "resumed": parts}))
        return folder

    run("20261123-080000", "2026-11-23T08:00:00+00:00")
    last = run("20261123-010000", "2026-11-23T01:00:00-08:00")
    assert find_run(tmp_path, None) == last
    again = run("20261122-080000", "2026-11-22T08:00:00+00:00", "2026-11-23T10:00:00+00:00")
    assert find_run(tmp_path, None) == again


def test_another_serial_number_is_another_card(tmp_path: Path) -> None:
    assert found(tmp_path, report(gpus__0__serial="S2")) == {("GPU-0", "S2"): [60.0]}


def test_the_report_of_another_user_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    assert found(tmp_path, report()) == {}


def test_a_run_that_is_refused_leaves_the_folder_to_the_one_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one may have locked it, and written nothing: its daemon still starts."""
    monkeypatch.setattr("sentinel.burnin.run_folder._LOCK_TIMEOUT_S", 0.0)
    folder = RunFolder(path=tmp_path / "run")
    refused = pytest.raises(ConfigError, match="another process records this run")
    with new_run(folder):
        with refused, new_run(folder):
            pytest.fail("both record in one folder")
        folder.write(folder.header, {"id": "run"})
        folder.events.write_text("{}\n")
    assert read_object(folder.header) == {"id": "run"}


@pytest.mark.parametrize(
    ("begins", "why"), [(True, "it has a run already"), (False, "another process has removed it")]
)
def test_a_run_that_waited_for_the_lock_looks_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    begins: bool,  # noqa: FBT001 - a parameter of the test
    why: str,
) -> None:
    folder = RunFolder(path=tmp_path / "run")

    @contextmanager
    def late(file: int, timeout: float) -> Iterator[int]:
        """Lock the folder after another process has begun its run there, or removed it."""
        if begins:
            folder.write(folder.header, {"id": "other"})
        else:
            folder.path.rmdir()
        with locked(file, timeout):
            yield file

    monkeypatch.setattr(run_folder, "locked", late)
    with pytest.raises(ConfigError, match=why), new_run(folder):
        pytest.fail("a run was begun")
    assert folder.header.exists() == begins


@pytest.mark.parametrize(
    ("name", "edit", "named"),
    [
        ("events", {"event": "gpu.fault", "reason": "1 error"}, "gpu.fault.fault: expected text"),
        ("events", {"event": "gpu.fault", "fault": "xid"}, "gpu.fault.reason: expected text"),
        ("events", {"event": "gpu.overheat", "temperature_c": "hot"}, "gpu.overheat.temperature_c"),
        ("events", {"event": "stressor.mismatch"}, "stressor.mismatch.errors: expected a whole"),
        ("events", {"event": "stressor.finding", "place": "x"}, "stressor.finding.place: expected"),
        ("events", {"event": "gpu.idle", "time": "noon"}, "gpu.idle.time: expected a time"),
        ("events", {"event": "gpu.idle", "at": 1e300}, "gpu.idle.at: expected a moment"),
        ("events", {"event": "gpu.idle", "at": math.nan}, "gpu.idle.at: expected a finite number"),
        ("samples", {"event": "unit", "unit": "exp", "checks": 1}, "unit.wrong: expected a whole"),
        ("samples", {"event": "link", "part": "p2p"}, "link.size: expected a whole"),
        ("samples", {"event": "checksum", "key": None}, "checksum: expected the fields checksum"),
        ("samples", {"event": "telemetry", "reasons": [{}]}, "telemetry.reasons[0]: expected text"),
        ("samples", {"event": "selftest", "dtype": "exp"}, "selftest.place: expected text"),
        ("header", {"node": None}, "run.node"),
        ("header", {"settings": [{"key": "rearm"}]}, "run.settings[0]: expected the fields"),
        ("header", {"started": "noon"}, "run.started: expected a time"),
        ("header", {"expectation": "gpus = 2"}, "run.expectation: expected an object"),
        ("counters", {"known": {"GPU-1": 1}}, "counters.known: expected text"),
        ("counters", {"pci_paths": []}, "counters.pci_paths: expected an object"),
        ("counters", {"resumed": {"after": 1}}, "it is not a run of this version"),
    ],
)
def test_a_file_that_was_edited_is_an_error_that_names_the_field(
    tmp_path: Path, name: str, edit: dict[str, Any], named: str
) -> None:
    folder = ExampleRun(gpus=1).write(tmp_path / "run")
    path = getattr(folder, name)
    if path.suffix == ".jsonl":
        row = {"at": BEGAN + 90, "gpu": uuid(0), "index": 0} | edit
        path.write_text(f"{path.read_text()}{json.dumps(row)}\n")
    else:
        path.write_text(json.dumps(json.loads(path.read_text()) | edit))
    with pytest.raises(ConfigError, match=re.escape(named)):
        judge_run(folder)


@pytest.mark.parametrize(("rate", "lost"), [(1e9, 0), ("fast", 1), (math.nan, 1)])
def test_a_part_of_another_version_is_no_error_and_a_rate_that_is_no_number_is_lost(
    tmp_path: Path, rate: float | str, lost: int
) -> None:
    folder = ExampleRun(gpus=1).write(tmp_path / "run")
    link = {"part": "p2p", "peer": None, "rate": rate, "size": 1, "checked": 1, "wrong": 0}
    row = {"at": BEGAN + 90, "gpu": uuid(0), "index": 0, "event": "link", **link}
    text = folder.samples.read_text()
    folder.samples.write_text(f"{json.dumps(row)}\n{text}")
    assert [gpu.record.dropped for gpu in judge_run(folder).gpus] == [lost]


def test_a_folder_that_cannot_be_created_has_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    plan = Plan(name="short", phases=(Phase(name="one", workload="hold"),))
    with pytest.raises(ConfigError) as caught:
        new_folder(tmp_path / "file", plan)
    assert caught.value.what.startswith(f"the folder of the run cannot be created: {tmp_path}")
    assert "Set HOME or XDG_STATE_HOME" in caught.value.remedy
    assert "--report DIR" in caught.value.remedy
