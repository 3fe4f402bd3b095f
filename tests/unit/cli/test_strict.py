"""``--strict``: a WARN ends with 1, in each command that judges, in JUnit and in later reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.burnin.checks.check import Thresholds
from sentinel.burnin.formats import write_reports
from sentinel.burnin.report import judge_run
from sentinel.burnin.verdict import EXIT_CODES, Verdict, exit_code
from sentinel.errors import ExitCode
from sentinel.host.paths import places
from sentinel.host.simulation import Registry
from tests.harness.command_line import CommandLine
from tests.harness.example_fleet import Fleets, node_report
from tests.harness.example_run import RUNS, ExampleRun
from tests.harness.gpu_environment import SimulatedHost
from tests.harness.parameters import mostly_long
from tests.harness.report_formats import parsed_suites

pytestmark = pytest.mark.usefixtures("own_environment")


@pytest.fixture
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SENTINEL_STRICT", raising=False)


@pytest.fixture
def warned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a burn-in of two GPUs, one of which is WARN, to a state directory."""
    monkeypatch.setenv("SENTINEL_SIM_DIR", str(tmp_path))
    run = places({"SENTINEL_SIM_DIR": str(tmp_path)}, 0, tmp_path).state / "runs" / "warned"
    folder = RUNS["WARN"].write(run)
    write_reports(folder, judge_run(folder, Thresholds()))
    return run


@pytest.mark.parametrize("verdict", Verdict)
def test_only_a_pass_ends_with_0(verdict: Verdict) -> None:
    others = {Verdict.WARN: ExitCode.FAIL, Verdict.NOT_APPLICABLE: ExitCode.INCOMPLETE}
    assert exit_code(verdict, strict=True) is others.get(verdict, EXIT_CODES[verdict])
    assert (exit_code(verdict, strict=True) is ExitCode.OK) == (verdict is Verdict.PASS)
    assert exit_code(verdict, strict=False) is EXIT_CODES[verdict]


@pytest.mark.parametrize("by", ["flag", "variable", "variable off"])
def test_each_command_that_judges_ends_with_1_for_a_warning(
    warned: Path, by: str, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleets(node_report(warned.parent / "template", RUNS["WARN"]), warned.parent / "fleets")
    shown = fleet.write().path
    monkeypatch.setenv("SENTINEL_STRICT", {"variable": "on", "variable off": "off"}.get(by, ""))
    words = ["--strict"] if by == "flag" else []
    code = 0 if by == "variable off" else 1
    assert cli("report", str(warned), *words, code=code).out.startswith("WARN")
    assert "WARN" in cli("health", "--simulated", *words, code=code).out
    npd = cli("health", "--simulated", "--npd", *words, code=code).out
    assert npd.startswith("GPU 1 " if code else "2 simulated GPUs")
    assert cli("fleet", "report", str(shown), *words, code=code).out.startswith("WARN")


@mostly_long("strict", [0, 1])
def test_a_check_with_a_warning(
    simulated: SimulatedHost, cli: CommandLine, strict: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SENTINEL_SIM_DIR", str(simulated.folder))
    registry = Registry.create(simulated.folder, 2)
    registry.inject_figures(registry.gpus()[0].uuid, {"remap_pending": True})
    words = ["check", "--simulate", "2", *(["--strict"] if strict else [])]
    assert "warn" in cli(*words, code=strict).out
    cli(*words, "--npd", code=strict)
    assert cli(*words, "--nagios", code=1).out.startswith("GPU WARNING")


def test_a_run_that_was_begun_so_is_judged_so_later(tmp_path: Path, cli: CommandLine) -> None:
    moved = {1: {"ecc_corrected_total": 12}}
    run = ExampleRun(moved=moved, settings={"strict": "on"})
    run.write(tmp_path / "run")
    shown = cli("report", str(tmp_path / "run"), code=1).out
    assert "which does not pass (--strict)" in shown.splitlines()[0]
    assert 'failures="1"' in cli("report", str(tmp_path / "run"), "--junit", code=1).out
    RUNS["WARN"].write(tmp_path / "other")
    for words in ([], ["--stored"]):
        shown = cli("report", str(tmp_path / "other"), "--strict", *words, code=1).out
        assert shown.count("which does not pass (--strict)") == 1
    assert 'failures="1"' not in cli("report", str(tmp_path / "other"), "--junit").out


@pytest.mark.parametrize("verdict", RUNS)
@pytest.mark.parametrize("stored", ["", "--stored"])
def test_junit_is_green_if_and_only_if_the_exit_code_is_0(
    verdict: str, stored: str, tmp_path: Path, cli: CommandLine
) -> None:
    RUNS[verdict].write(tmp_path / "run")
    for strict in ("", "--strict"):
        code = int(exit_code(Verdict(verdict), strict=bool(strict)))
        words = ["report", str(tmp_path / "run"), "--junit", *filter(None, (stored, strict))]
        suites = parsed_suites(cli(*words, code=code).out)
        red = [suite for suite in suites if {suite.get("failures"), suite.get("errors")} != {"0"}]
        assert bool(red) == bool(code), words


def test_a_fleet_that_was_begun_so_is_judged_so(tmp_path: Path, cli: CommandLine) -> None:
    folder = Fleets(node_report(tmp_path / "template", RUNS["WARN"]), tmp_path).write()
    text = folder.run_file.read_text()
    folder.run_file.write_text(text.replace('"strict": false', '"strict": true'))
    assert cli("fleet", "report", str(folder.path), code=1).out.startswith("WARN")
