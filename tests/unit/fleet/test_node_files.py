"""Reports of nodes are read strictly: what is not a node's own report of this run is missing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sentinel.burnin.checks.check import Thresholds
from sentinel.burnin.verdict import Verdict
from sentinel.errors import ConfigError
from sentinel.fleet.formats import FORMATS
from sentinel.fleet.node_files import read_fleet
from sentinel.fleet.node_run import read_verdict
from sentinel.fleet.progress import NodeProgress, write_progress
from sentinel.fleet.report import outliers
from sentinel.fleet.verdict import judge_fleet
from tests.harness.example_fleet import Fleets, node_report
from tests.harness.parameters import mostly_long

Report = dict[str, Any]
NODE = "node-0001"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Return a report that is short, since each test reads several."""
    return node_report(tmp_path_factory.mktemp("node"), gpus=2)


def changed(report: Report, path: str, value: Any) -> Report:
    """Change one value, or leave it out (`...`); of lists, that of the first item."""
    *parts, last = path.split(".")
    place = report
    for part in parts:
        place = place[part][0] if isinstance(place[part], list) else place[part]
    place[last] = value
    if value is ...:
        del place[last]
    return report


COMPLETE = "its report is not complete JSON"
#: What is said of the file of node 1, and what is in it: a text, or a changed value of its report.
BAD: list[tuple[str, str | tuple[str, Any]]] = [
    ("its report is empty", " "),
    (COMPLETE, '{"run": {"id": "'),
    (COMPLETE, "slurmstepd: error"),
    (COMPLETE, "[" * 100_000),
    (COMPLETE, ("run.id", "\ud800")),  # half a character
    ("a burn-in report with a schema_version", "[]"),
    ("a burn-in report with a schema_version", '{"run": 1}'),
    ("expected the fields verdict", ("verdict", ...)),
    ("schema_version: expected version 1 of the schema, not 2.0", ("schema_version", "2.0")),
    ("verdict: expected one of", ("verdict", "GOOD")),
    ("run.duration_s: expected a finite number", ("run.duration_s", float("nan"))),
    ("its report is of another plan: example (feed), and not", ("run.plan.hash", "feed")),
    (
        "its report is of an earlier run: it began 2026-11-22T07:00:00+00:00",
        ("run.started", "2026-11-22T07:00:00+00:00"),
    ),
    ("its report is of simulated GPUs, and the run is not", ("run.simulated", True)),
    # In another time zone, it is in no year.
    ("run.started: expected a time", ("run.started", "9999-12-31T23:59:59-14:00")),
    ("expected a number, a text or null", ("gpus.checks.value", [[1]])),
    ("value: expected a finite number", ("gpus.checks.value", float("nan"))),
    ("its report is that of node-0002", ("node.hostname", "node-0002")),
]


@mostly_long("why, content", BAD, quick=5)
def test_a_file_that_is_no_report_of_the_node_is_missing(
    why: str, content: str | tuple[str, Any], fleets: Fleets
) -> None:
    file = content if isinstance(content, str) else changed(fleets.report(1), *content)
    fleet = fleets.judged(reports={1: file})
    assert [node.word for node in fleet.nodes] == ["PASS", "MISSING", *["PASS"] * 4]
    assert why in fleet.nodes[1].missing
    assert fleet.verdict is Verdict.INCOMPLETE


UNREADABLE: dict[str, Callable[[Path], object]] = {
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
    "forbidden": lambda path: path.symlink_to(path),  # root may read everything else
    "large": lambda path: path.write_bytes(b" " * 2000),
}


@pytest.mark.parametrize("make", UNREADABLE.values(), ids=UNREADABLE)
def test_a_file_that_cannot_be_read_is_missing(
    make: Callable[[Path], object], fleets: Fleets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentinel.fleet.node_files.MAX_REPORT_BYTES", 1000)
    folder = fleets.write(absent={1})
    make(folder.report(NODE))
    node = read_fleet(folder.path).nodes[1]
    assert node.missing.startswith("its report cannot be read: ")
    assert node.result is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(content=st.binary(max_size=200), cut=st.floats(0, 0.999))
def test_no_damaged_file_ever_passes(content: bytes, cut: float, fleets: Fleets) -> None:
    template = {**fleets.template, "gpus": fleets.template["gpus"][:1]}
    folder = fleets.write(template=template, nodes=2)
    whole = folder.report(NODE).read_bytes()
    for damaged in (content, whole[: int(len(whole) * cut)]):
        folder.report(NODE).write_bytes(damaged)
        fleet = judge_fleet(read_fleet(folder.path), Thresholds())
        assert [node.word for node in fleet.nodes] == ["PASS", "MISSING"]
        assert fleet.verdict is Verdict.INCOMPLETE


def test_a_copy_of_a_report_is_that_of_the_node_that_it_names(fleets: Fleets) -> None:
    folder = fleets.write(nodes=2, run_file=False)
    text = folder.report(NODE).read_text()
    folder.report("spare").write_text(text)
    words = {node.name: node.missing for node in read_fleet(folder.path).nodes}
    assert words == {
        "node-0000": "",
        NODE: "",
        "spare": "its run was reported as that of node-0001,spare",
    }


#: The names of one host in two reports, whether its GPUs are simulated, and who is missing.
ONE_HOST = [
    (("ip-10-0-0-7", "ip-10-0-0-7"), False, {1, 2}),
    ((NODE, NODE), False, {2}),
    ((NODE, "node-0002"), False, {1, 2}),
    (("ip-10-0-0-7", "ip-10-0-0-7"), True, {1, 2}),
    ((NODE, NODE), True, {2}),
    ((NODE, "node-0002"), True, set()),  # name spaces of one machine
]


@pytest.mark.parametrize(("names", "simulated", "missing"), ONE_HOST)
def test_a_host_that_reports_for_two_nodes_is_one_of_them_at_most(
    fleets: Fleets, names: tuple[str, str], missing: set[int], *, simulated: bool
) -> None:
    """Two names may lead to one host: its second run is not that of the node that it left out."""
    reports = {number: fleets.report(1) for number in (1, 2)}
    for (number, report), name in zip(reports.items(), names, strict=True):
        report["node"]["hostname"] = name
        report["run"] |= {"id": f"run{number}", "started": f"2026-11-23T08:0{number}:00+00:00"}
        report["run"]["simulated"] = simulated
        report["run"]["sha256"]["events.jsonl"] = f"{number:064x}"
    files = fleets.read(run_file=False, reports=reports)
    assert {node.name: node.missing for node in files.nodes if node.missing} == {
        f"node-000{number}": f"its report is of {name}, which node-000{other} has reported, too"
        for number, other, name in zip((1, 2), (2, 1), names, strict=True)
        if number in missing
    }


@pytest.mark.parametrize("verdict", ["PASS", "FAIL"])
def test_a_run_under_two_names_is_no_proof_of_either(verdict: str, fleets: Fleets) -> None:
    """The host in a report and the names of its GPUs can be edited; its record cannot be shared."""
    reports = {1: fleets.report(1, verdicts={1: verdict}), 2: fleets.report(2)}
    for report in reports.values():
        report["run"] |= {"simulated": True, "sha256": fleets.report(1)["run"]["sha256"]}
    fleet = fleets.judged(run_file=False, reports=reports)
    words = [node.word for node in fleet.nodes]
    assert words == ["PASS", "MISSING" if verdict == "PASS" else "FAIL", "MISSING", *["PASS"] * 3]
    assert fleet.nodes[2].missing == "its run was reported as that of node-[0001-0002]"
    assert fleet.verdict is (Verdict.INCOMPLETE if verdict == "PASS" else Verdict.FAIL)


def test_runs_of_one_name_that_begin_at_once_are_of_two_nodes(fleets: Fleets) -> None:
    """The id of a run is the name of its folder, and its begin is known to the second."""
    reports = {number: fleets.report(number) for number in (1, 2)}
    for report in reports.values():
        report["run"] |= {"simulated": True, "id": "accept"}
    assert fleets.judged(run_file=False, reports=reports).verdict is Verdict.PASS


def test_simulated_gpus_of_two_machines_are_of_two_hosts(fleets: Fleets) -> None:
    reports = {number: fleets.report(1) for number in (1, 2)}
    for number, report in reports.items():
        report["node"] |= {"hostname": "localhost", "machine_id": f"{number:032x}"}
        report["run"]["simulated"] = True
        report["run"]["sha256"]["events.jsonl"] = f"{number:064x}"
    files = fleets.read(run_file=False, reports=reports)
    assert not any(node.missing for node in files.nodes)


def test_a_fault_of_a_host_with_two_names_stays(fleets: Fleets) -> None:
    reports = {1: fleets.report(1), 2: fleets.report(1, verdicts={1: "FAIL"})}
    reports[2]["node"]["hostname"] = "node-0002"
    fleet = fleets.judged(run_file=False, reports=reports)
    assert [node.word for node in fleet.nodes[1:3]] == ["MISSING", "FAIL"]
    assert fleet.verdict is Verdict.FAIL


def test_a_node_may_call_itself_otherwise_than_its_engine_does(fleets: Fleets) -> None:
    for hostname in ("NODE-0001.cluster.example.org", "ip-10-0-0-7"):
        report = fleets.report(1)
        report["node"]["hostname"] = hostname
        assert fleets.read(reports={1: report}).nodes[1].missing == ""


def test_clocks_of_nodes_may_differ(fleets: Fleets) -> None:
    text = changed(fleets.report(1), "run.started", "2026-11-23T07:30:00+00:00")
    assert fleets.read(reports={1: text}).nodes[1].missing == ""


def test_files_of_no_node_are_named_and_not_judged(fleets: Fleets) -> None:
    folder = fleets.write(nodes=3)
    folder.report("other").write_text(json.dumps({**fleets.report(1), "verdict": "FAIL"}))
    (folder.path / "report.json").write_text("{}")  # of this command
    files = read_fleet(folder.path)
    assert files.unexpected == ("other",)
    fleet = judge_fleet(files, Thresholds())
    assert fleet.verdict is Verdict.PASS
    assert fleet.notices == ("1 file of no node of this run was not judged: other.json",)


def test_without_fleet_json_the_nodes_are_those_with_files(fleets: Fleets) -> None:
    files = fleets.read(absent={1}, half={2}, run_file=False)
    assert files.run is None
    assert [node.name for node in files.nodes if node.missing] == ["node-0002"]
    assert len(files.nodes) == 5


def test_what_is_no_fleet_at_all_is_an_error(fleets: Fleets, tmp_path: Path) -> None:
    bad = fleets.write()
    bad.run_file.write_text("{")
    file, empty = tmp_path / "file", tmp_path / "empty"
    file.touch()
    empty.mkdir()
    for path in (bad.path, file, empty, tmp_path / "missing"):
        with pytest.raises(ConfigError, match=str(path)):
            read_fleet(path)
    for name in ("run.json", "counters.json", "report.json"):
        (empty / name).touch()
    with pytest.raises(ConfigError, match=f"one host, not of a fleet\nTo .*report {empty}"):
        read_fleet(empty)


def test_the_pages_of_the_nodes_are_found(fleets: Fleets) -> None:
    nodes = fleets.read(nodes=2, pages=True).nodes
    assert [node.has_page for node in nodes] == [True, True]


def test_a_name_that_cannot_be_printed_spoils_no_report(fleets: Fleets) -> None:
    folder = fleets.write(run_file=False)
    for name in (b"\xff.json", b"a\x1b[2J\n.json"):
        Path(os.fsdecode(bytes(folder.path) + b"/" + name)).write_bytes(b"{}")
    fleet = judge_fleet(read_fleet(folder.path), Thresholds())
    assert fleet.verdict is Verdict.INCOMPLETE
    for form in FORMATS.values():
        assert form(fleet).encode()


def test_a_progress_that_is_nested_deeply_is_none(fleets: Fleets) -> None:
    folder = fleets.write(absent={1})
    folder.progress(NODE).parent.mkdir(exist_ok=True)
    folder.progress(NODE).write_text("[" * 60_000)
    assert read_fleet(folder.path).nodes[1].missing == "it has no report"


def test_a_follower_takes_no_verdict_from_such_a_file(tmp_path: Path) -> None:
    deep, pipe = tmp_path / "n1.json", tmp_path / "n2.json"
    deep.write_text("[" * 100_000)
    os.mkfifo(pipe)
    assert read_verdict(deep) is None
    assert read_verdict(pipe) is None


def test_a_node_without_a_report_has_what_it_wrote_last(fleets: Fleets) -> None:
    folder = fleets.write(absent={1, 2, 3})
    last = NodeProgress(node=NODE, state="running", time=datetime(2026, 11, 23, 8, 4, tzinfo=UTC))
    last = replace(last, phase="steady", number=2, phases=3, findings=2)
    write_progress(folder.progress(NODE), last)
    folder.progress("node-0002").write_text("{")
    held = "the burn-in did not begin: GPU 0 is held by another sentinel"
    ended = NodeProgress(node="node-0003", state="ended", time=last.time, note=held)
    write_progress(folder.progress(ended.node), ended)
    fleet = judge_fleet(read_fleet(folder.path), Thresholds())
    assert [node.reasons for node in fleet.nodes][1:4] == [
        (
            "it has no report",
            (
                "it wrote last at 2026-11-23T08:04:00+00:00 in phase steady (2 of 3);"
                " it had proved 2 wrong results"
            ),
        ),
        ("it has no report",),
        ("it has no report", f"it wrote last at 2026-11-23T08:04:00+00:00: {held}"),
    ]
    (missing,) = outliers(fleet)
    assert missing.reasons == ("it has no report", "1 of them had proved wrong results")


@pytest.mark.parametrize("extreme", [1e308, -1e308, 0.0, 5e-324])
@mostly_long("name", ["flops_per_s", "temperature_c", "power_w"])
def test_an_extreme_reading_of_one_node_spoils_no_report(
    name: str, extreme: float, fleets: Fleets
) -> None:
    report = fleets.report(1)
    gpu = report["gpus"][0]
    for one in gpu["measurements"]:
        if one["name"] == name:
            one["median"] = extreme
    counters = {"ecc_corrected_total": 10**400, "ecc_corrected_lifetime_total": 10**400}
    gpu["counters"]["after"] |= {**counters, "pcie_replays_total": -1}
    fleet = fleets.judged(reports={1: report})
    for form in FORMATS.values():
        assert form(fleet)
    assert [node.word for node in fleet.nodes][2:] == ["PASS"] * 4
