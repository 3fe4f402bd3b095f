"""The formats of a fleet's report: text, JSON by its schema, JSON lines, JUnit and the page."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from sentinel.burnin.checks.check import Thresholds
from sentinel.burnin.verdict import exit_code
from sentinel.fleet.formats import FORMATS, common_prefix
from sentinel.fleet.node_names import fold_names
from sentinel.fleet.report import LINE_SCHEMA, MAX_ALIKE, SCHEMA_VERSION, outliers
from sentinel.fleet.verdict import FleetVerdict, judge_fleet
from tests.harness.example_fleet import Fleets, node_report
from tests.harness.parameters import mostly_long
from tests.harness.report_formats import ROOT, Parsed, closed, parsed_suites, schema_problems


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ([], ""),
        (["login"], "login"),
        (["node1"], "node1"),
        (["node-003", "node-001", "node-002", "node-007"], "node-[001-003,007]"),
        (["a1", "a2", "b1"], "a[1-2],b1"),
        (["n9", "n10", "n11"], "n9,n[10-11]"),
        (["n1.x.org", "n2.x.org", "n2.y.org"], "n2.y.org,n[1-2].x.org"),
        (["rack2-node1", "rack1-node1", "rack1-node2"], "rack1-node[1-2],rack2-node1"),
        (["n1", "n1"], "n1"),
    ],
)
def test_names_are_folded(names: list[str], folded: str) -> None:
    assert fold_names(names) == folded


def unfolded(text: str) -> set[str]:
    """Expand what was folded."""
    found = set()
    for part in re.findall(r"[^,\[\]]*\[[^\]]*\][^,\[\]]*|[^,\[\]]+", text):
        match = re.fullmatch(r"(.*)\[(.*)\](.*)", part)
        if match is None:
            found.add(part)
            continue
        for one in match[2].split(","):
            first, _, last = one.partition("-")
            for number in range(int(first), int(last or first) + 1):
                found.add(f"{match[1]}{number:0{len(first)}}{match[3]}")
    return found


@given(st.sets(st.from_regex(r"\A[a-z]{1,2}-?[0-9]{0,3}(\.x)?\Z")))
def test_no_name_is_lost_and_none_is_added(names: set[str]) -> None:
    assert unfolded(fold_names(names)) == names


Template = dict[str, Any]
SCHEMA = json.loads((ROOT / "docs" / "fleet-report.schema.json").read_text())
LINE = {"$defs": SCHEMA["$defs"], "$ref": "#/$defs/line"}
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"


#: A fleet with every verdict.
EVERYTHING: dict[str, Any] = {
    "nodes": 12,
    "rates": {(2, 3): 0.8},
    "heat": {(3, 1): 25.0},
    "node_rates": {7: 0.88},
    "wrong": {(1, 1)},
    "absent": {4},
    "half": {5},
    "verdicts": {6: "INCOMPLETE", 8: "N/A"},
    "pages": True,
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    """Return the report of a node of eight GPUs, as the page and the texts have to show."""
    return node_report(tmp_path_factory.mktemp("node"))


@pytest.fixture(scope="module")
def fleet(template: Template, tmp_path_factory: pytest.TempPathFactory) -> FleetVerdict:
    return Fleets(template, tmp_path_factory.mktemp("fleet")).judged(**EVERYTHING)


# --- text ------------------------------------------------------------------------------------


def test_the_text_has_what_is_wrong_first_and_the_rest_in_counts(fleet: FleetVerdict) -> None:
    lines = FORMATS["text"](fleet).splitlines()
    assert lines[:3] == [
        "FAIL  fleet-1  example: a fault was found",
        "12 nodes: 3 FAIL, 2 MISSING, 1 INCOMPLETE, 1 WARN, 1 N/A, 4 PASS",
        "80 GPUs: 10 FAIL, 1 INCOMPLETE, 1 WARN, 1 N/A, 67 PASS",
    ]
    subjects = [line for line in lines if line.split("  ")[0] in {"FAIL", "MISSING", "WARN"}][1:]
    assert [line.split("  GPU-")[0] for line in subjects] == [
        "FAIL        node-0001 GPU 1",
        "FAIL        node-0002 GPU 3",
        "FAIL        node-0007",
        "FAIL        node-0007 GPUs 0-7",
        "MISSING     node-0004",
        "MISSING     node-0005",
        "WARN        node-0003 GPU 1",
    ]
    assert "group 1: 80 GPUs of 10 nodes: NVIDIA H200, driver 580.65.06, 700 W" in lines


def test_confirmed_faulty_cards_are_counted_over_all_nodes(fleets: Fleets) -> None:
    """Also with nodes whose reports are of before version 1.5."""
    found = fleets.judged(nodes=3, confirmed={0: (2, 1), 1: (1, 1)})
    counts = {"known": 3, "found_first": 2}
    assert json.loads(FORMATS["json"](found))["confirmed_faulty"] == counts
    for name in ("text", "html"):
        text = FORMATS[name](found)
        assert "confirmed faulty cards first found by Sentinel: 2 of 3" in text


@pytest.mark.long
def test_the_text_of_a_large_fleet_stays_short(fleets: Fleets) -> None:
    many = fleets.judged(
        template={**fleets.template, "gpus": fleets.template["gpus"][:1]},
        nodes=250,
        verdicts=dict.fromkeys(range(100), "INCOMPLETE"),
        absent=frozenset(range(100, 200)),
        rates={(number, 0): 0.8 for number in range(200, 250)},
    )
    lines = FORMATS["text"](many).splitlines()
    assert len(lines) < 100
    assert "INCOMPLETE  100 GPUs of 100 nodes: node-[0000-0099]" in lines
    assert "MISSING     100 nodes: node-[0100-0199]" in lines
    assert lines[4:7:2] == ["FAIL        node-0200", lines[6]]
    assert lines[6].startswith("FAIL        node-0200 GPU 0")
    # A node with one GPU is as slow as its GPU: two entries for each of them.
    assert "FAIL        and 60 more: node-[0220-0249]" in lines


@pytest.mark.long
def test_what_many_nodes_have_in_common_is_one_entry_unless_it_failed(fleets: Fleets) -> None:
    counts = []
    for nodes in (MAX_ALIKE, MAX_ALIKE + 1):
        hot = {(number, 2): 16.0 + number for number in range(nodes)}
        wrong = frozenset((number, 3) for number in range(nodes))
        found = outliers(fleets.judged(nodes=20, heat=hot, wrong=wrong))
        counts.append([(one.word, len(one.nodes), len(one.gpus)) for one in found])
    assert counts == [
        [("FAIL", 1, 1)] * MAX_ALIKE + [("WARN", 1, 1)] * MAX_ALIKE,
        [("FAIL", 1, 1)] * (MAX_ALIKE + 1) + [("WARN", MAX_ALIKE + 1, MAX_ALIKE + 1)],
    ]
    assert found[-1].reasons[0].startswith("fleet.temperature: 1")
    assert " to 2" in found[-1].reasons[0]


def test_work_left_is_the_same_reason_whatever_its_seconds(fleets: Fleets) -> None:
    report = fleets.report(2)
    for gpu in report["gpus"]:
        text = f"phase steady not complete: {gpu['index']}.5 s of 10 s: SIGTERM"
        gpu |= {"verdict": "INCOMPLETE", "incomplete": [text]}
    (found,) = outliers(fleets.judged(reports={2: report}))
    assert (found.word, len(found.gpus)) == ("INCOMPLETE", 8)
    assert found.reasons == ("phase steady not complete: 0.5 s of 10 s: SIGTERM",)


def test_a_fleet_in_which_nothing_is_wrong_has_no_outliers(fleets: Fleets) -> None:
    fleet = fleets.judged()
    assert outliers(fleet) == []
    assert "Nothing stands out." in FORMATS["html"](fleet)


# --- JSON ------------------------------------------------------------------------------------


def test_the_schema_is_valid_and_names_the_version() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$id"].rpartition(":")[2] == SCHEMA_VERSION


@mostly_long("run_file", [True, False])
def test_the_report_follows_the_schema_which_describes_every_field(
    *, run_file: bool, fleets: Fleets
) -> None:
    fleet = fleets.judged(**EVERYTHING, run_file=run_file)
    report = json.loads(FORMATS["json"](fleet))
    assert schema_problems(closed(SCHEMA), report) == []
    assert (report["run"] is None) is not run_file
    pages = [node["page"] for node in report["nodes"]]
    assert pages[0] == "nodes/node-0000/report.html"
    assert pages[4] is None  # it is missing
    del report["nodes"][0]["gpus"][0]["coverage"][0]["done_s"]
    assert len(schema_problems(SCHEMA, report)) == 1


def test_there_is_a_line_for_each_gpu_and_each_missing_node(fleet: FleetVerdict) -> None:
    rows = [json.loads(line) for line in FORMATS["jsonl"](fleet).splitlines()]
    assert len(rows) == 80 + 2
    for row in rows:
        assert schema_problems(closed(LINE), row) == []
    assert {row["schema"] for row in rows} == {LINE_SCHEMA}
    assert {row["run_id"] for row in rows} == {"fleet-1"}
    (bad,) = [row for row in rows if row["node"] == "node-0001" and row["verdict"] != "PASS"]
    assert (bad["verdict"], bad["node_verdict"]) == ("FAIL", "PASS")
    assert bad["coverage"][0]["phase"] == "memory"
    missing = [row for row in rows if row["verdict"] == "MISSING"]
    assert [(row["node"], row["uuid"], row["reasons"]) for row in missing] == [
        ("node-0004", None, ["it has no report"]),
        ("node-0005", None, ["its report is not complete JSON"]),
    ]


# --- JUnit -----------------------------------------------------------------------------------


def test_junit_has_a_suite_for_each_node_and_a_case_for_each_gpu(fleet: FleetVerdict) -> None:
    suites = parsed_suites(FORMATS["junit"](fleet))
    assert [suite.get("name") for suite in suites] == [node.name for node in fleet.nodes]
    kinds = {
        str(suite.get("name")): [case[0].tag for case in suite.iter("testcase")] for suite in suites
    }
    assert kinds["node-0000"] == ["system-out"] * 9
    assert kinds["node-0001"] == ["system-out"] * 2 + ["failure"] + ["system-out"] * 6
    assert kinds["node-0004"] == kinds["node-0005"] == ["error"]
    assert kinds["node-0006"] == ["system-out", "error"] + ["system-out"] * 7
    assert kinds["node-0007"] == ["failure"] * 9
    assert kinds["node-0008"] == ["system-out", "skipped"] + ["system-out"] * 7


@pytest.mark.parametrize("by", ["", "--strict"])
@pytest.mark.parametrize("verdict", ["PASS", "WARN", "N/A", "INCOMPLETE", "FAIL"])
def test_junit_is_green_if_and_only_if_the_exit_code_is_0(
    verdict: str, by: str, fleets: Fleets
) -> None:
    found = replace(fleets.judged(nodes=3, verdicts={1: verdict}), read_strictly=bool(by))
    text = FORMATS["junit"](found)
    red = [suite for suite in parsed_suites(text) if suite.findall(".//failure/..")]
    red += [suite for suite in parsed_suites(text) if suite.findall(".//error/..")]
    code = exit_code(found.verdict, strict=found.strict)
    assert [suite.get("name") for suite in red] == (["node-0001"] if code else []), verdict


def test_junit_shows_a_verdict_that_is_of_no_gpu_at_its_node(fleets: Fleets) -> None:
    report = fleets.report(1) | {"verdict": "INCOMPLETE"}
    _, suite, _ = parsed_suites(FORMATS["junit"](fleets.judged(nodes=3, reports={1: report})))
    assert (suite.get("failures"), suite.get("errors")) == ("0", "1")


def test_an_incomplete_node_off_the_list_fails_no_junit_of_a_fleet_that_passes(
    fleets: Fleets,
) -> None:
    report = fleets.report(1) | {"verdict": "INCOMPLETE"}
    files = fleets.read(nodes=3, reports={1: report})
    nodes = [replace(node, unlisted=number == 1) for number, node in enumerate(files.nodes)]
    found = judge_fleet(replace(files, run=None, nodes=tuple(nodes)), Thresholds())
    assert exit_code(found.verdict, strict=False) == 0
    suites = parsed_suites(FORMATS["junit"](found))
    assert {(suite.get("failures"), suite.get("errors")) for suite in suites} == {("0", "0")}


def test_junit_has_the_times_of_the_nodes_and_of_their_gpus(fleets: Fleets) -> None:
    report = fleets.report(1)
    began = datetime.fromisoformat(report["run"]["started"])
    report["run"] |= {"started": (began + timedelta(seconds=10)).isoformat(), "duration_s": 200.0}
    for gpu in report["gpus"]:
        for number, phase in enumerate(gpu["coverage"]):
            phase |= {"began": 5.0 + 10 * number, "ended": 15.0 + 10 * number}
    phases = len(report["gpus"][0]["coverage"])
    report["gpus"][3]["coverage"][-1] |= {"ended": None, "done_s": 4.0}  # it was cut off
    for phase in report["gpus"][4]["coverage"]:
        phase |= {"began": None, "ended": None}
    text = FORMATS["junit"](fleets.judged(nodes=3, absent={2}, reports={1: report}))
    first, second, missing = parsed_suites(text)
    times = [float(str(case.get("time"))) for case in second.iter("testcase")]
    whole = 10.0 * phases
    assert times == [200.0, whole, whole, whole, whole - 6, 0.0, whole, whole, whole]
    assert float(str(second.get("time"))) == 200.0
    (case,) = missing.iter("testcase")
    assert (case.get("time"), missing.get("time")) == ("0.000", "0.000")
    for case in first.iter("testcase"):
        assert float(str(case.get("time"))) > 0
    # From the first start to the last end.
    assert 'time="210.000"' in text.partition("<testsuite ")[0]


# --- the page --------------------------------------------------------------------------------


def test_the_page_has_a_tile_for_each_node_and_a_letter_for_each_gpu(fleet: FleetVerdict) -> None:
    page = FORMATS["html"](fleet)
    parsed = Parsed(page)
    tiles = [one for one in parsed.named("li") if str(one.get("id", "")).startswith("n")]
    assert len(tiles) == 12
    cells = page.partition('id="map"')[2].partition("</ul>")[0]
    assert cells.count("<i>P</i>") == 67
    assert cells.count('<i class="fail">F</i>') == 10
    assert cells.count("missing</em>") == 2
    assert "all names begin with node-, which is left out below" in parsed.text


def test_the_page_needs_no_network_and_links_to_the_nodes_own_pages(fleet: FleetVerdict) -> None:
    page = FORMATS["html"](fleet)
    parsed = Parsed(page)
    places = {attributes.get("id") for _, attributes in parsed.elements}
    for name, attributes in parsed.elements:
        assert name not in {"img", "link", "iframe", "object", "base"}
        assert "src" not in attributes
        link = str(attributes.get("href", "#map"))
        assert link.startswith("nodes/node-") or link[1:] in places, link
    assert "url(" not in page
    assert "nodes/node-0001/report.html#gpu-1" in page


def test_text_from_outside_is_escaped_also_in_the_values_for_the_script(fleets: Fleets) -> None:
    template = fleets.template
    gpus = [{**gpu, "model": HOSTILE, "incomplete": [HOSTILE]} for gpu in template["gpus"]]
    gpus[0]["verdict"] = "INCOMPLETE"
    node = {**template["node"], "driver": HOSTILE}
    page = FORMATS["html"](fleets.judged(template={**template, "gpus": gpus, "node": node}))
    parsed = Parsed(page)
    assert parsed.text.count(HOSTILE) >= 2
    assert len(parsed.named("script")) == 2  # the values and the script
    values = page.partition('id="fleet"')[2].partition(">")[2].partition("</script>")[0]
    assert json.loads(values)[0][4][0][8] == [HOSTILE]


@pytest.mark.parametrize(
    ("names", "prefix"),
    [
        (["node-001", "node-002"], "node-"),
        (["gpu-a-17", "gpu-a-19"], "gpu-a-"),
        (["n1", "n2"], ""),
        (["node-001"], ""),
        (["rack1", "node1"], ""),
        ([], ""),
    ],
)
def test_the_map_leaves_out_what_all_names_begin_with(names: list[str], prefix: str) -> None:
    assert common_prefix(names) == prefix
