"""Reports that were collected from nodes: which of them have passed, and which have not."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from sentinel.burnin.formats import FORMATS
from sentinel.burnin.levels import find_plan
from sentinel.burnin.report import judge_run, report_object
from sentinel.errors import ExitCode
from sentinel.fleet.node_result import node_result
from sentinel.protocol.codec import DecodeError
from tests.harness.command_line import CommandLine
from tests.harness.example_fleet import Fleets, just_accepted, node_report
from tests.harness.example_run import ExampleRun
from tests.harness.parameters import mostly_long

Report = dict[str, Any]

STANDARD = find_plan("standard")
FORMS = ("text", "html", "json", "jsonl", "junit")


def started(ago: timedelta) -> str:
    return (datetime.now().astimezone() - ago).isoformat()


@pytest.fixture(scope="module")
def fleets(tmp_path_factory: pytest.TempPathFactory) -> Fleets:
    folder = tmp_path_factory.mktemp("fleets")
    return Fleets(just_accepted(node_report(folder, gpus=2)), folder)


def screened(report: Report) -> None:
    report["run"]["plan"] |= {"name": "screen", "hash": "1" * 16}
    report["verdict"] = report["gpus"][0]["verdict"] = "N/A"


def short_beside_a_warning(report: Report) -> None:
    report["verdict"] = report["gpus"][0]["verdict"] = "WARN"
    report["gpus"][0]["too_short"] = "10 s of work; a PASS needs 1 min"


def another_plan(report: Report) -> None:
    report["run"]["plan"] |= {"hash": "2" * 16}


def simulated(report: Report) -> None:
    report["run"]["simulated"] = True


def other_limits(report: Report) -> None:
    report["thresholds_overridden"] = {"rate.peers.fail": "< 0.5"}


def old(report: Report) -> None:
    report["run"]["started"] = started(timedelta(days=9))


def future(report: Report) -> None:
    report["run"]["started"] = started(timedelta(days=-2))


def listed_twice(report: Report) -> None:
    report["gpus"][1]["uuid"] = report["gpus"][0]["uuid"]


def left_out(report: Report) -> None:
    report["gpus"].pop()


@pytest.mark.parametrize(
    ("change", "reason"), [(listed_twice, "every GPU once"), (left_out, "as many GPUs as in its")]
)
def test_a_report_that_contradicts_itself_is_none(
    change: Callable[[Report], None], reason: str, fleets: Fleets
) -> None:
    report = fleets.report(2)
    change(report)
    with pytest.raises(DecodeError, match=reason):
        node_result(report)


def test_a_report_of_a_host_with_another_name_is_named(fleets: Fleets, cli: CommandLine) -> None:
    folder = fleets.write(run_file=False, nodes=1).path
    (path,) = folder.glob("*.json")
    report = json.loads(path.read_text())
    report["node"]["hostname"] = "spare.example"
    path.write_text(json.dumps(report))
    text = cli("fleet", "report", str(folder)).out
    assert f"have other names than their files: {path.stem}: spare.example\n" in text


NOT_PASSED: list[tuple[Callable[[Report], None], str]] = [
    (screened, "too little was done for a verdict (N/A)"),
    (short_beside_a_warning, "too little was done for a PASS"),
    (another_plan, f"of another plan: standard ({'2' * 16}), and not standard ({STANDARD.hash})"),
    (simulated, "its GPUs are simulated"),
    (other_limits, "another limit: rate.peers.fail is < 0.5, and not the default"),
    (old, "it is too old: it ended "),
    (future, "it ends in the future"),
]


@mostly_long(
    "change, reason", NOT_PASSED, ids=[change.__name__ for change, _ in NOT_PASSED], quick=3
)
@mostly_long("chosen", [range(2, 3), range(6)], ids=["one", "all"])
def test_a_report_that_is_not_what_was_asked_for_has_not_passed(
    change: Callable[[Report], None], reason: str, chosen: range, fleets: Fleets, cli: CommandLine
) -> None:
    reports = {number: fleets.report(number) for number in chosen}
    for report in reports.values():
        change(report)
    folder = fleets.write(run_file=False, reports=reports)
    forms = FORMS if len(chosen) == 1 else ("json", "jsonl")
    printed = {
        form: cli("fleet", "report", str(folder.path), f"--{form}", code=3).out for form in forms
    }
    for form, text in printed.items():
        plain = text.replace("&lt;", "<").replace("\\u003c", "<").replace("&#34;", '"')
        assert reason in plain, form
    gpus = [json.loads(line) for line in printed["jsonl"].splitlines()]
    assert {gpu["node"] for gpu in gpus if gpu["verdict"] != "PASS"} == {
        f"node-{number:04}" for number in chosen
    }
    words = {node["node"]: node["verdict"] for node in json.loads(printed["json"])["nodes"]}
    not_passed = [name for name, word in words.items() if word == "INCOMPLETE"]
    assert not_passed == [f"node-{number:04}" for number in chosen]


def test_reports_that_are_what_was_asked_for_have_passed(fleets: Fleets, cli: CommandLine) -> None:
    folder = fleets.write(run_file=False)
    assert cli("fleet", "report", str(folder.path), "--expect-nodes", "6").out.startswith("PASS")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (simulated, ("--simulated",)),
        (old, ("--since", "10d")),
        (screened, ("--level", "screen")),
    ],
)
def test_what_is_asked_for_otherwise_is_accepted(
    change: Callable[[Report], None], words: tuple[str, ...], fleets: Fleets, cli: CommandLine
) -> None:
    reports = {number: fleets.report(number) for number in range(6)}
    for report in reports.values():
        change(report)
    folder = fleets.write(run_file=False, reports=reports)
    printed = cli("fleet", "report", str(folder.path), *words, code=None).out
    # A screen that was asked for is still none of a verdict.
    assert ("N/A) " in printed or "(N/A)" in printed) == (change is screened)
    assert ("it is too old" in printed, "its GPUs are simulated" in printed) == (False, False)


def test_a_fault_is_a_fault_however_the_report_came_about(fleets: Fleets, cli: CommandLine) -> None:
    report = fleets.report(1, verdicts={1: "FAIL"})
    screened(report)
    report["verdict"] = report["gpus"][0]["verdict"] = "FAIL"
    folder = fleets.write(run_file=False, reports={1: report})
    assert cli("fleet", "report", str(folder.path), code=1).out.startswith("FAIL")


def emptied(gpu: Report) -> None:
    gpu["checks"] = []


def without_evidence(gpu: Report) -> None:
    gpu["checks"] = [check for check in gpu["checks"] if check["id"] != "memory.remap_failed"]


def excused(*ids: str) -> Callable[[Report], None]:
    def excuse(gpu: Report) -> None:
        for check in gpu["checks"]:
            if check["id"] in ids:
                check["status"] = "n/a"

    return excuse


def counted(gpu: Report) -> None:
    gpu["coverage"][0]["errors"] = 1


def unfinished(gpu: Report) -> None:
    gpu["coverage"][0]["complete"] = False


def undone(gpu: Report) -> None:
    gpu["coverage"] = []


def unexplained(gpu: Report) -> None:
    gpu["incomplete"] = ["phase copy not complete"]


@mostly_long(
    "change, word, reason",
    [
        (emptied, "INCOMPLETE", "results not judged: results.wrong: its report does not have it"),
        (without_evidence, "INCOMPLETE", "memory.remap_failed: its report does not have it"),
        (excused("results.wrong"), "INCOMPLETE", "results not judged: results.wrong"),
        (excused("memory.remap_failed"), "INCOMPLETE", "repairs not judged: memory.remap_failed"),
        (excused("memory.covered"), "INCOMPLETE", "the memory not judged: memory.covered"),
        (excused("xid"), "INCOMPLETE", "XIDs not judged: xid"),
        (counted, "FAIL", "results.wrong: 1"),
        (unfinished, "INCOMPLETE", "not complete"),
        (undone, "INCOMPLETE", "phases are in its report"),
        (unexplained, "INCOMPLETE", "phase copy not complete"),
    ],
    quick=3,
)
def test_a_report_that_says_pass_has_to_contain_it(
    change: Callable[[Report], None], word: str, reason: str, fleets: Fleets, cli: CommandLine
) -> None:
    report = fleets.report(1)
    change(report["gpus"][0])
    folder = fleets.write(run_file=False, reports={1: report})
    code = 1 if word == "FAIL" else 3
    found = cli("fleet", "report", str(folder.path), "--json", code=code).out
    gpu = json.loads(found)["nodes"][1]["gpus"][0]
    assert gpu["verdict"] == word
    assert any(reason in text for text in gpu["reasons"])


def test_a_report_of_an_earlier_version_says_how_its_run_is_judged_again(
    fleets: Fleets, cli: CommandLine
) -> None:
    report = fleets.report(1) | {"schema_version": "1.6"}
    for gpu in report["gpus"]:
        gpu["checks"] = [check for check in gpu["checks"] if check["id"] != "gpu.whole"]
    folder = fleets.write(run_file=False, reports={1: report})
    how = "on its node: sentinel report DIR --json --output NODE.json"
    for form in FORMS:
        printed = cli("fleet", "report", str(folder.path), f"--{form}", code=3).out
        assert "its report, of version 1.6, lacks checks of this version" in printed, form
        assert how in printed, form


def test_of_nodes_by_name_each_without_a_report_is_missing(
    fleets: Fleets, cli: CommandLine, tmp_path: Path
) -> None:
    names = tmp_path / "nodes"
    names.write_text("\ufeff# rack 1\n" + "\n".join(f"node-{number:04}" for number in range(1, 8)))
    folder = fleets.write(run_file=False)
    printed = cli("fleet", "report", str(folder.path), "--expect-nodes", str(names), code=3).out
    assert "node-[0006-0007]\n            it has no report" in printed
    assert "Node node-0000 is not on the list; its report is PASS." in printed


@mostly_long(
    "verdict, words, code",
    [("PASS", (), 0), ("PASS", ("--strict",), 3), ("FAIL", (), 3), ("FAIL", ("--strict",), 3)],
)
def test_a_report_of_a_node_that_is_not_on_the_list_is_named_with_its_verdict(
    verdict: str,
    words: tuple[str, ...],
    code: int,
    fleets: Fleets,
    cli: CommandLine,
    tmp_path: Path,
) -> None:
    names = tmp_path / "nodes"
    names.write_text("\n".join(f"node-{number:04}" for number in range(5)))
    folder = fleets.write(run_file=False, verdicts={5: verdict} if verdict == "FAIL" else {})
    given = ("fleet", "report", str(folder.path), "--expect-nodes", str(names), *words)
    printed = {form: cli(*given, f"--{form}", code=code).out for form in FORMS}
    found = json.loads(printed["json"])
    word = "INCOMPLETE" if (verdict, code) == ("PASS", 3) else verdict
    assert found["nodes"][5]["verdict"] == word
    assert found["summary"]["nodes"][word] == (6 if word == "PASS" else 1)
    for form in ("text", "html", "json"):
        assert f"Node node-0005 is not on the list; its report is {word}." in printed[form]
    assert found["verdict"] == ("INCOMPLETE" if code else "PASS")
    assert ("node node-0005 is not on the list" in printed["junit"]) == bool(code)


def test_a_node_without_a_gpu_that_was_held_elsewhere_says_so(
    fleets: Fleets, cli: CommandLine
) -> None:
    folder = fleets.write(run_file=False)
    path = folder.path / "node-0000.json"
    report = json.loads(path.read_text())
    (tested,) = [check for check in report["checks"] if check["id"] == "node.tested"]
    tested |= {"status": "not tested", "value": 1, "evidence": "GPU 1 has no verdict: held"}
    path.write_text(json.dumps({**report, "verdict": "INCOMPLETE"}))
    printed = cli("fleet", "report", str(folder.path), code=3).out
    assert "INCOMPLETE  node-0000\n            node.tested: GPU 1 has no verdict: held\n" in printed


@pytest.mark.parametrize("number", ["5", "7"])
def test_another_number_of_nodes_is_incomplete(
    number: str, fleets: Fleets, cli: CommandLine
) -> None:
    folder = fleets.write(run_file=False)
    printed = cli("fleet", "report", str(folder.path), "--expect-nodes", number, code=3).out
    assert f"{number} nodes expected, and 6 have a report: node-[0000-0005]" in printed
    given = ("--expect-nodes", number, "--junit")
    printed = cli("fleet", "report", str(folder.path), *given, code=3).out
    assert printed.count("<error ") == 1


def test_what_a_run_says_of_itself_is_not_said_again(fleets: Fleets, cli: CommandLine) -> None:
    words = ("--level", "standard", "--simulated")
    printed = cli("fleet", "report", str(fleets.write().path), *words, code=ExitCode.USAGE).err
    assert "--level, --simulated: for collected reports" in printed


def test_a_byte_order_mark_changes_nothing_and_copies_are_named(
    fleets: Fleets, cli: CommandLine
) -> None:
    folder = fleets.write(run_file=False).path
    report = folder / "node-0001.json"
    report.write_text("\ufeff" + report.read_text())
    copies = {
        "._node-0002.json": "what macOS keeps beside a file",
        ".#node-0002.json": "an editor's copy",
        "node-0002.json~": "an editor's copy",
        ".node-0002.json.swp": "an editor's copy",
        "node-0002.json.bak": "an editor's copy",
    }
    for name in copies:
        (folder / name).write_bytes(b"\0\5\26\7")
    found = cli.json("fleet", "report", str(folder), "--json")
    assert found["verdict"] == "PASS"
    assert [node["node"] for node in found["nodes"]] == [f"node-{number:04}" for number in range(6)]
    for name, what in copies.items():
        assert f"{name} is {what}, and was not read." in found["notices"]


def test_a_report_whose_name_ends_otherwise_is_named(fleets: Fleets, cli: CommandLine) -> None:
    folder = fleets.write(run_file=False).path
    (folder / "node-0001.json").rename(folder / "node-0001.JSON")
    printed = cli("fleet", "report", str(folder), code=3).out
    assert "it has no report: node-0001.JSON must be called node-0001.json" in printed


# --- eight nodes, of which one may go into service -------------------------------------------

EXPECTATION = """
gpus = 2
[all]
driver = "580.65.06"
power_limit_w = 700
"""


def one_gpu(report: Report) -> None:
    report["gpus"].pop()
    report["summary"]["PASS"] -= 1


def lower_limit(report: Report) -> None:
    for gpu in report["gpus"]:
        for reading in gpu["counters"].values():
            reading["power_limit_w"] = 500.0


def another_driver(report: Report) -> None:
    report["node"]["driver"] = "570.00.01"
    for gpu in report["gpus"]:
        for reading in gpu["counters"].values():
            reading["driver"] = "570.00.01"


def truncated(report: Report) -> None:
    """Judge a record whose samples end before the run does."""
    with TemporaryDirectory() as folder:
        run = ExampleRun(every=6.0, expectation="gpus = 2").write(Path(folder) / "run")
        lines = run.samples.read_text().splitlines(keepends=True)
        run.samples.write_text("".join(lines[: len(lines) * 2 // 3]))
        judged = json.loads(FORMATS["json"](judge_run(run), report_object(judge_run(run))))
    report["verdict"] = judged["verdict"]
    for gpu, cut in zip(report["gpus"], judged["gpus"], strict=True):
        gpu |= {name: cut[name] for name in ("verdict", "incomplete", "checks")}


BAD = [
    (one_gpu, "1 of 2 are there"),
    (lower_limit, "power_limit_w"),
    (another_driver, "driver"),
    (screened, "too little was done for a verdict (N/A)"),
    (other_limits, "it was judged by another limit"),
    (old, "it is too old"),
    (truncated, "samples"),
]


def test_of_eight_nodes_the_seven_bad_ones_are_named_and_the_eighth_has_passed(
    fleets: Fleets, cli: CommandLine, tmp_path: Path
) -> None:
    reports = {number: fleets.report(number, nodes=8) for number in range(8)}
    for number, (change, _) in enumerate(BAD):
        change(reports[number])
    folder = fleets.write(run_file=False, nodes=8, reports=reports).path
    expectation, names = tmp_path / "node.toml", tmp_path / "nodes.txt"
    expectation.write_text(EXPECTATION)
    names.write_text("\n".join(f"node-{number:04}" for number in range(8)))
    words = ["fleet", "report", str(folder), "--strict"]
    words += ["--expect", str(expectation), "--expect-nodes", str(names)]
    found = {node["node"]: node for node in cli.json(*words, "--json", code=1)["nodes"]}
    assert found.pop("node-0007")["verdict"] == "PASS"
    for (_, what), node in zip(BAD, found.values(), strict=True):
        assert node["verdict"] in {"FAIL", "INCOMPLETE"}, node["node"]
        reasons = [*node["reasons"], *(text for gpu in node["gpus"] for text in gpu["reasons"])]
        assert what in " ".join(reasons), (node["node"], reasons)
    for number in range(8):
        (folder / f"node-{number:04}.json").write_text(json.dumps(fleets.report(number, nodes=8)))
    assert cli(*words).out.startswith("PASS")
