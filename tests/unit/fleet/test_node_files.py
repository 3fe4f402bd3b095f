"""Reports of nodes are read strictly: what is not a node's own report of this run is missing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sentinel.burnin.checks.thresholds import Thresholds
from sentinel.burnin.verdict import Verdict
from sentinel.errors import ConfigError
from sentinel.fleet.formats import FORMATS
from sentinel.fleet.node_files import read_fleet
from sentinel.fleet.node_run import read_verdict
from sentinel.fleet.progress import NodeProgress, write_progress
from sentinel.fleet.report import outliers
from sentinel.fleet.verdict import judge_fleet
from tests.harness.example_fleet import ExampleFleet

Template = dict[str, Any]
NODE = "node-0001"


def changed(report: dict[str, Any], **run: Any) -> str:
    """Write a report with other fields of its run."""
    return json.dumps({**report, "run": {**report["run"], **run}})


def of_other_plan(example: ExampleFleet) -> str:
    report = example.report(1)
    return changed(report, plan={**report["run"]["plan"], "hash": "feed"})


def with_value(example: ExampleFleet, value: Any) -> str:
    report = example.report(1)
    report["gpus"][0]["checks"][0]["value"] = value
    return json.dumps(report)


#: What is in the file of node 1, and what is said of it.
BAD: dict[str, tuple[Callable[[ExampleFleet], str], str]] = {
    "empty": (lambda _: "", "its report is empty"),
    "half": (lambda e: json.dumps(e.report(1))[:5000], "its report is not complete JSON"),
    "text": (lambda _: "slurmstepd: error", "its report is not complete JSON"),
    "deep": (lambda _: "[" * 100_000, "its report is not complete JSON"),
    "a list": (lambda _: "[]", "a burn-in report with a schema_version"),
    "another object": (lambda _: '{"run": 1}', "a burn-in report with a schema_version"),
    "a later major version": (
        lambda e: json.dumps({**e.report(1), "schema_version": "2.0"}),
        "schema_version: expected version 1 of the schema, not 2.0",
    ),
    "without a field": (
        lambda e: json.dumps({k: v for k, v in e.report(1).items() if k != "verdict"}),
        "expected the fields verdict",
    ),
    "an unknown verdict": (
        lambda e: json.dumps({**e.report(1), "verdict": "GOOD"}),
        "verdict: expected one of",
    ),
    "not a number": (
        lambda e: changed(e.report(1), duration_s=float("nan")),
        "run.duration_s: expected a finite number",
    ),
    "another plan": (of_other_plan, "its report is of another plan: example (feed), and not"),
    "an earlier run": (
        lambda e: changed(e.report(1), started="2026-11-22T07:00:00+00:00"),
        "its report is of an earlier run: it began 2026-11-22T07:00:00+00:00",
    ),
    "simulated": (
        lambda e: changed(e.report(1), simulated=True),
        "its report is of simulated GPUs, and the run is not",
    ),
    "half a character": (
        lambda e: changed(e.report(1), id="\ud800"),
        "its report is not complete JSON",
    ),
    "a time without a time zone in which it is": (
        lambda e: changed(e.report(1), started="9999-12-31T23:59:59-14:00"),
        "run.started: expected a time",
    ),
    "a list as a value": (lambda e: with_value(e, [[1]]), "expected a number, a text or null"),
    "a value that is no number": (
        lambda e: with_value(e, float("nan")),
        "value: expected a finite number",
    ),
    "of another node": (lambda e: json.dumps(e.report(2)), "its report is that of node-0002"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_file_that_is_no_report_of_the_node_is_missing(
    kind: str, template: Template, tmp_path: Path
) -> None:
    content, why = BAD[kind]
    example = ExampleFleet(template=template)
    folder = example.write(tmp_path / "run")
    folder.report(NODE).write_text(content(example))
    fleet = judge_fleet(read_fleet(folder.path), Thresholds())
    assert [node.word for node in fleet.nodes] == ["PASS", "MISSING", *["PASS"] * 4]
    assert why in fleet.nodes[1].missing
    assert fleet.verdict is Verdict.INCOMPLETE


@pytest.mark.parametrize("kind", ["folder", "pipe", "forbidden", "large"])
def test_a_file_that_cannot_be_read_is_missing(
    kind: str, template: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ExampleFleet(template=template, absent=frozenset({1})).write(tmp_path / "run")
    path = folder.report(NODE)
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "forbidden":
            path.symlink_to(path)  # root may read everything else
        case _:
            path.write_bytes(b" " * 2000)
            monkeypatch.setattr("sentinel.fleet.node_files.MAX_REPORT_BYTES", 1000)
    node = read_fleet(folder.path).nodes[1]
    assert node.missing.startswith("its report cannot be read: ")
    assert node.result is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(content=st.binary(max_size=200), cut=st.floats(0, 0.999))
def test_no_damaged_file_ever_passes(
    content: bytes, cut: float, template: Template, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    example = ExampleFleet(template={**template, "gpus": template["gpus"][:1]}, nodes=2)
    if not folder.exists():
        example.write(folder)
    whole = json.dumps(example.report(1)).encode()
    for damaged in (content, whole[: int(len(whole) * cut)]):
        (folder / f"{NODE}.json").write_bytes(damaged)
        fleet = judge_fleet(read_fleet(folder), Thresholds())
        assert [node.word for node in fleet.nodes] == ["PASS", "MISSING"]
        assert fleet.verdict is Verdict.INCOMPLETE


def test_a_copy_of_a_report_is_that_of_the_node_that_it_names(
    template: Template, tmp_path: Path
) -> None:
    folder = ExampleFleet(template=template, nodes=2).write(tmp_path / "run", run_file=False)
    text = folder.report(NODE).read_text()
    folder.report("spare").write_text(text)
    words = {node.node: node.missing for node in read_fleet(folder.path).nodes}
    assert words == {
        "node-0000": "",
        NODE: "",
        "spare": "its report is a copy of that of node-0001",
    }


@pytest.mark.parametrize(
    ("hostname", "missing"), [("ip-10-0-0-7", {"node-0001", "node-0002"}), (NODE, {"node-0002"})]
)
def test_a_host_that_reports_for_two_nodes_is_one_of_them_at_most(
    template: Template, tmp_path: Path, hostname: str, missing: set[str]
) -> None:
    """Two names may lead to one host: its second run is not that of the node that it left out."""
    example = ExampleFleet(template=template)
    folder = example.write(tmp_path / "run", run_file=False)
    for number in (1, 2):
        report = example.report(1)
        report["node"]["hostname"] = hostname
        report["run"] |= {"id": f"run{number}", "started": f"2026-11-23T08:0{number}:00+00:00"}
        folder.report(example.name(number)).write_text(json.dumps(report))
    files = read_fleet(folder.path)
    assert {node.node for node in files.nodes if node.missing} == missing
    why = f"its report is of {hostname}, which another node has reported, too"
    assert {node.missing for node in files.nodes if node.missing} == {why}


def test_a_node_may_call_itself_otherwise_than_its_engine_does(
    template: Template, tmp_path: Path
) -> None:
    example = ExampleFleet(template=template)
    folder = example.write(tmp_path / "run")
    for hostname in ("NODE-0001.cluster.example.org", "ip-10-0-0-7"):
        report = example.report(1)
        report["node"]["hostname"] = hostname
        folder.report(NODE).write_text(json.dumps(report))
        assert read_fleet(folder.path).nodes[1].missing == ""


def test_clocks_of_nodes_may_differ(template: Template, tmp_path: Path) -> None:
    example = ExampleFleet(template=template)
    folder = example.write(tmp_path / "run")
    text = changed(example.report(1), started="2026-11-23T07:30:00+00:00")
    folder.report(NODE).write_text(text)
    assert read_fleet(folder.path).nodes[1].missing == ""


def test_files_of_no_node_are_named_and_not_judged(template: Template, tmp_path: Path) -> None:
    example = ExampleFleet(template=template, nodes=3)
    folder = example.write(tmp_path / "run")
    folder.report("other").write_text(json.dumps({**example.report(1), "verdict": "FAIL"}))
    (folder.path / "report.json").write_text("{}")  # of this command
    files = read_fleet(folder.path)
    assert files.unexpected == ("other",)
    fleet = judge_fleet(files, Thresholds())
    assert fleet.verdict is Verdict.PASS
    assert fleet.notices == ("1 file of no node of this run was not judged: other.json",)


def test_without_fleet_json_the_nodes_are_those_with_files(
    template: Template, tmp_path: Path
) -> None:
    example = ExampleFleet(template=template, absent=frozenset({1}), half=frozenset({2}))
    files = read_fleet(example.write(tmp_path / "run", run_file=False).path)
    assert files.run is None
    assert [node.node for node in files.nodes if node.missing] == ["node-0002"]
    assert len(files.nodes) == 5


@pytest.mark.parametrize("kind", ["no folder", "a file", "empty", "a bad fleet.json"])
def test_what_is_no_fleet_at_all_is_an_error(kind: str, template: Template, tmp_path: Path) -> None:
    path = tmp_path / "run"
    match kind:
        case "a file":
            path.write_text("")
        case "empty":
            path.mkdir()
        case "a bad fleet.json":
            ExampleFleet(template=template).write(path).run_file.write_text("{")
        case _:
            pass
    with pytest.raises(ConfigError, match=str(path)):
        read_fleet(path)


def test_the_pages_of_the_nodes_are_found(template: Template, tmp_path: Path) -> None:
    example = ExampleFleet(template=template, nodes=2, pages=True)
    assert [node.has_page for node in read_fleet(example.write(tmp_path / "run").path).nodes] == [
        True,
        True,
    ]


def test_a_name_that_cannot_be_printed_spoils_no_report(template: Template, tmp_path: Path) -> None:
    folder = ExampleFleet(template=template).write(tmp_path / "run", run_file=False)
    for name in (b"\xff.json", b"a\x1b[2J\n.json"):
        Path(os.fsdecode(bytes(folder.path) + b"/" + name)).write_bytes(b"{}")
    fleet = judge_fleet(read_fleet(folder.path), Thresholds())
    assert fleet.verdict is Verdict.INCOMPLETE
    for form in FORMATS.values():
        assert form(fleet).encode()


def test_a_progress_that_is_nested_deeply_is_none(template: Template, tmp_path: Path) -> None:
    folder = ExampleFleet(template=template, absent=frozenset({1})).write(tmp_path / "run")
    folder.progress(NODE).parent.mkdir(exist_ok=True)
    folder.progress(NODE).write_text("[" * 60_000)
    assert read_fleet(folder.path).nodes[1].missing == "it has no report"


@pytest.mark.parametrize("kind", ["deep", "fifo"])
def test_a_follower_takes_no_verdict_from_such_a_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "n1.json"
    if kind == "deep":
        path.write_text("[" * 100_000)
    else:
        os.mkfifo(path)
    assert read_verdict(path) is None


def test_a_node_without_a_report_has_what_it_wrote_last(template: Template, tmp_path: Path) -> None:
    gone = frozenset({1, 2, 3})
    folder = ExampleFleet(template=template, absent=gone).write(tmp_path / "run")
    last = NodeProgress(
        node=NODE,
        state="running",
        time=datetime(2026, 11, 23, 8, 4, tzinfo=UTC),
        phase="steady",
        number=2,
        phases=3,
        findings=2,
    )
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
@pytest.mark.parametrize("name", ["flops_per_s", "temperature_c", "power_w"])
def test_an_extreme_reading_of_one_node_spoils_no_report(
    name: str, extreme: float, template: Template, tmp_path: Path
) -> None:
    example = ExampleFleet(template=template)
    folder = example.write(tmp_path / "run")
    report = example.report(1)
    gpu = report["gpus"][0]
    for one in gpu["measurements"]:
        if one["name"] == name:
            one["median"] = extreme
    counters = {"ecc_corrected_total": 10**400, "ecc_corrected_lifetime_total": 10**400}
    gpu["counters"]["after"] |= {**counters, "pcie_replays_total": -1}
    folder.report(NODE).write_text(json.dumps(report))
    fleet = judge_fleet(read_fleet(folder.path), Thresholds())
    for form in FORMATS.values():
        assert form(fleet)
    assert [node.word for node in fleet.nodes][2:] == ["PASS"] * 4
