"""No later step turns a FAIL into exit 0: other limits are named, and correctness has no limit."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sentinel.burnin.checks.thresholds_file import CORRECTNESS, SPEC
from sentinel.burnin.formats import FILES, FORMATS
from sentinel.burnin.report import judge_run, report_object
from sentinel.cli.options.setting_options import load_thresholds
from sentinel.errors import ExitCode
from tests.harness.command_line import CommandLine
from tests.harness.example_fleet import Fleets, node_report
from tests.harness.example_run import RUNS, ExampleRun
from tests.harness.parameters import mostly_long

FORMS = ("text", "html", "junit", "ocp", "json", "summary")
#: By name: what the run shows, and the limits that hide it.
HIDDEN: Mapping[str, tuple[Any, ...]] = {
    "wrong results": (
        ExampleRun(wrong={1: 3}),
        ("results.finding.fail", "GT", 9),
        ("results.wrong.fail", "GT", 9),
    ),
    "uncorrectable errors": (
        ExampleRun(moved={1: {"ecc_uncorrected": 1, "ecc_uncorrected_total": 1}}),
        ("ecc.uncorrected_new.fail", "GT", 9),
    ),
    "golden": (ExampleRun(), ("golden.peers.fail", "GT", 99)),
    "a lost GPU": (ExampleRun(), ("node.inventory.fail", "GT", 8)),
}


def limits_file(path: Path, *limits: tuple[str, str, float], xids: str = "") -> str:
    """Write a file of thresholds."""
    tables = [
        f'[common_thresholds."{name}".{sign}]\nvalue = {value}' for name, sign, value in limits
    ]
    path.write_text("\n".join([f'spec = "{SPEC}"', *tables, "[xids]", xids, ""]))
    return str(path)


def shown(cli: CommandLine, form: str, *words: str, code: int) -> str:
    """Print a report in one format."""
    out = cli("report", *words, f"--{form}", code=code).out
    return html.unescape(out) if form in {"html", "junit"} else out


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_says_by_the_rules_of_which_version(form: str, tmp_path: Path) -> None:
    judged = judge_run(ExampleRun().write(tmp_path / "run"))
    report = {**report_object(judged), "judged_by": "98.76.5"}
    text = FORMATS[form](judged, report)
    assert re.search(r"(?is)judged.by.{0,60}98\.76\.5", text)


def test_a_run_is_judged_by_its_own_thresholds(tmp_path: Path, cli: CommandLine) -> None:
    """Without the file, too."""
    limits = limits_file(tmp_path / "limits.toml", ("ecc.corrected_new.warn", "GT", 20))
    run = ExampleRun(
        moved={1: {"ecc_corrected_total": 12}}, thresholds=load_thresholds(limits).node
    )
    folder = str(run.write(tmp_path / "run").path)
    Path(limits).unlink()
    assert cli("report", folder).out.startswith("PASS")
    report = json.loads(cli("report", folder, "--json").out)
    assert report["judged_again_by"] is None
    assert report["thresholds_overridden"] == {"ecc.corrected_new.warn": "> 20"}


@mostly_long("form", FORMS, quick=2)
def test_other_thresholds_are_named_in_each_format(
    form: str, tmp_path: Path, cli: CommandLine
) -> None:
    folder = str(RUNS["WARN"].write(tmp_path / "run").path)
    limits = limits_file(tmp_path / "lax.toml", ("ecc.corrected_new.warn", "GT", 20))
    out = shown(cli, form, folder, "--thresholds", limits, code=0)
    assert limits in out
    assert "udged" in out or form == "summary"
    if form == "text":
        assert f"judged again by {limits}" in out.splitlines()[0]
    assert "judged again" not in shown(cli, form, folder, code=0)


def test_the_defaults_are_other_thresholds_where_the_run_had_its_own(
    tmp_path: Path, cli: CommandLine
) -> None:
    limits = limits_file(tmp_path / "limits.toml", ("ecc.corrected_new.warn", "GT", 20))
    own = load_thresholds(limits).node
    run = ExampleRun(moved={1: {"ecc_corrected_total": 12}}, thresholds=own)
    folder = run.write(tmp_path / "run")
    none = limits_file(tmp_path / "none.toml")
    out = cli("report", str(folder.path), "--thresholds", none).out
    assert out.startswith("WARN")
    assert f"judged again by {none}" in out.splitlines()[0]
    same = limits_file(tmp_path / "same.toml", ("ecc.corrected_new.warn", "GT", 20))
    assert "judged again" not in cli("report", str(folder.path), "--thresholds", same).out


def test_a_run_whose_thresholds_were_not_recorded_says_so(tmp_path: Path, cli: CommandLine) -> None:
    folder = ExampleRun(settings={"thresholds": "/gone.toml"}).write(tmp_path / "run")
    header = json.loads(folder.header.read_text())
    del header["thresholds"]
    folder.header.write_text(json.dumps({**header, "version": "0.2.0"}))
    out = cli("report", str(folder.path)).out
    assert "judged again by the default thresholds" in out.splitlines()[0]


# --- correctness is no threshold -------------------------------------------------------------


@pytest.mark.parametrize("name", HIDDEN)
@mostly_long("begun", ["", "begun so"])
def test_a_raised_limit_of_correctness_proves_nothing(
    name: str, begun: str, tmp_path: Path, cli: CommandLine
) -> None:
    run, *raised = HIDDEN[name]
    limits = limits_file(tmp_path / "lax.toml", *raised)
    given = load_thresholds(limits).node if begun else None
    folder = str(ExampleRun(**{**vars(run), "thresholds": given}).write(tmp_path / "run").path)
    words = [] if begun else ["--thresholds", limits]
    for form in FORMS if name == "wrong results" else ("text",):
        out = shown(cli, form, folder, *words, code=ExitCode.INCOMPLETE)
        assert all(limit in out for limit, *_ in raised), form
        assert f"> {raised[0][2]}" in out
    report = json.loads(cli("report", folder, *words, "--json", code=3).out)
    assert {gpu["verdict"] for gpu in report["gpus"]} == {"INCOMPLETE"}
    assert report["correctness_overridden"] == {
        limit: f"> {value}, not > 0" for limit, _, value in raised
    }


@pytest.mark.parametrize(
    ("xids", "listed"),
    [
        ('79 = "pass"', "xid.79 is pass, not fail"),
        ('95 = "warn"', "xid.95 is warn, not fail"),
        # Of NVLink 5, the driver's word is the verdict, and a file would hide it.
        ('145 = "warn"', "xid.145 is warn, not fail"),
        ('79 = "fail"', None),
        ('63 = "fail"', None),
        ('31 = "pass"', None),
    ],
)
def test_the_verdict_of_an_xid_of_a_broken_card(
    xids: str, listed: str | None, tmp_path: Path, cli: CommandLine
) -> None:
    folder = str(ExampleRun().write(tmp_path / "run").path)
    limits = limits_file(tmp_path / "xids.toml", xids=xids)
    words = ("report", folder, "--thresholds", limits)
    first = cli(*words, code=3 if listed else 0).out.splitlines()[0]
    assert (listed or "judged again") in first


def test_a_fault_beside_a_raised_limit_is_a_fault_and_lists_it(
    tmp_path: Path, cli: CommandLine
) -> None:
    folder = str(RUNS["FAIL"].write(tmp_path / "run").path)
    limits = limits_file(tmp_path / "lax.toml", ("ecc.uncorrected_new.fail", "GT", 9))
    for form in FORMS:
        out = shown(cli, form, folder, "--thresholds", limits, code=1)
        assert "ecc.uncorrected_new.fail" in out, form


def test_a_lower_limit_of_correctness_is_allowed(tmp_path: Path, cli: CommandLine) -> None:
    folder = str(ExampleRun().write(tmp_path / "run").path)
    limits = limits_file(tmp_path / "low.toml", ("memory.repair_new.fail", "GT", 0))
    assert cli("report", folder, "--thresholds", limits).out.startswith("PASS")


@mostly_long("words", [(), ("-v",), ("--json",), ("--nagios",), ("--npd",)])
def test_a_check_with_a_raised_limit_of_correctness_proves_nothing(
    words: tuple[str, ...], tmp_path: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SENTINEL_SIM_DIR", str(tmp_path / "gpus"))
    (tmp_path / "gpus").mkdir()
    limits = limits_file(tmp_path / "lax.toml", ("memory.remap_failed.fail", "GT", 9))
    code = 2 if "--npd" in words else 3
    out = cli("check", "--simulate", "1", "--thresholds", limits, *words, code=code).out
    assert "memory.remap_failed.fail" in out or "--npd" in words
    assert "limit of correctness" in out.replace("\n", " ") or "--json" in words


def test_each_check_of_correctness_exists() -> None:
    from sentinel.burnin.checks.recorded_run import CHECKS
    from sentinel.fleet import fleet_checks

    assert not CORRECTNESS - {*CHECKS.limits, *fleet_checks.CHECKS.limits}


# --- fleets, and what a folder says of itself ------------------------------------------------


def test_a_fleet_takes_no_report_that_was_judged_again(tmp_path: Path, cli: CommandLine) -> None:
    folder = str(RUNS["WARN"].write(tmp_path / "run").path)
    limits = limits_file(tmp_path / "lax.toml", ("ecc.corrected_new.warn", "GT", 20))
    again: dict[str, Any] = json.loads(cli("report", folder, "--thresholds", limits, "--json").out)
    fleet = Fleets(node_report(tmp_path / "node", gpus=2), tmp_path)
    again = {**fleet.report(2), "judged_again_by": again["judged_again_by"]}
    path = str(fleet.write(reports={2: again}).path)
    for form in ("text", "html", "json", "jsonl", "junit"):
        out = html.unescape(cli("fleet", "report", path, f"--{form}", code=3).out)
        assert f"judged again by {limits}" in out, form


@mostly_long("form", ["text", "html", "json", "junit"])
def test_a_fleet_that_is_judged_again_says_so(form: str, tmp_path: Path, cli: CommandLine) -> None:
    path = str(Fleets(node_report(tmp_path / "node", gpus=2), tmp_path).write().path)
    lax = limits_file(tmp_path / "lax.toml", ("fleet.temperature.warn", "GT", 90))
    words = ("fleet", "report", path, f"--{form}", "--thresholds")
    assert f"udged again by {lax}" in html.unescape(cli(*words, lax).out)
    golden = limits_file(tmp_path / "golden.toml", ("fleet.golden.fail", "GT", 90))
    assert "fleet.golden.fail is > 90" in html.unescape(cli(*words, golden, code=3).out)


def test_what_is_stored_stays_the_verdict(tmp_path: Path, cli: CommandLine) -> None:
    """A run that was killed has no report: it is written first, so that all say the same."""
    folder = RUNS["FAIL"].write(tmp_path / "run")
    words = ("report", str(folder.path), "--stored", "--summary")
    assert json.loads(cli(*words, code=1).out)["verdict"] == "FAIL"
    assert all((folder.path / name).exists() for name in FILES.values())
    report = json.loads(folder.report.read_text())
    folder.manifest.unlink()
    folder.report.write_text(json.dumps({**report, "verdict": "INCOMPLETE"}))
    assert json.loads(cli(*words, code=3).out)["verdict"] == "INCOMPLETE"
    for more in (("--thresholds", "x"), ("--compare",), ("--html",)):
        cli("report", str(folder.path), "--stored", *more, code=ExitCode.USAGE)
    folder.report.write_text(json.dumps(report | {"summary": "x"}))
    assert f"{folder.report}: not a report" in cli(*words, code=ExitCode.USAGE).err
    folder.report.write_text("{}")
    cli(*words, code=ExitCode.USAGE)
