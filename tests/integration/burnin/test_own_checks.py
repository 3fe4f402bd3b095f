"""Checks of other packages: the example, and some that fail in every way that one may."""

from __future__ import annotations

import shutil
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.burnin.checks.check import CheckResult, Status, Thresholds, below
from sentinel.burnin.checks.own_checks import (
    GROUP,
    judge_by_own_checks,
    own_limits,
    registered_checks,
)
from sentinel.burnin.checks.recorded_run import CHECKS
from sentinel.burnin.checks.thresholds_file import parse
from sentinel.burnin.report import judge_run
from sentinel.burnin.verdict import Verdict
from sentinel.config.registrations import Registration
from sentinel.diagnostics.one_shot import Timeouts
from sentinel.errors import ConfigError
from tests.harness import registered
from tests.harness.example_run import ExampleRun, report_of, uuid
from tests.harness.gpu_environment import ROOT
from tests.harness.programs import run_program

EXAMPLE = ROOT / "examples" / "sentinel-check-site"
SHORT = Timeouts(opening=60.0, call=3.0)
DEFAULT = Thresholds()


def register(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, **checks: str) -> None:
    """Install the metadata of a package; a spawned child inherits the import path."""
    monkeypatch.syspath_prepend(registered.register_package(folder, GROUP, name, checks))


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the checks of the example."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    register(tmp_path, monkeypatch, "site_checks", **project["entry-points"]["sentinel.checks"])
    monkeypatch.syspath_prepend(str(EXAMPLE / "src"))


def results_of(report: dict[str, Any], check: str) -> list[dict[str, Any]]:
    """Select the results of a check, of all GPUs and of the node."""
    rows = [*report["checks"], *(one for gpu in report["gpus"] for one in gpu["checks"])]
    return [row for row in rows if row["id"] == check]


# --- the example -----------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.usefixtures("example")
def test_the_checks_of_the_example_are_part_of_the_verdict(tmp_path: Path) -> None:
    report = report_of(ExampleRun(), tmp_path / "good")
    assert report["verdict"] == "PASS"
    assert [one["status"] for one in results_of(report, "site.clock_drop")] == ["pass", "pass"]
    (firmware,) = results_of(report, "site.same_firmware")
    assert (firmware["status"], firmware["value"]) == ("pass", 1)
    assert firmware["source"] == "our acceptance test, 2026 (site_checks 0.1.0)"
    assert firmware["threshold"] == "warn > 1"


@pytest.mark.long
@pytest.mark.usefixtures("example")
def test_the_checks_of_the_example_find_their_faults(tmp_path: Path) -> None:
    folder = ExampleRun(seconds=300.0).write(tmp_path / "run")
    # The clock of GPU 1 drops by a fifth in the second half of the run's steady phase.
    lines = []
    for line in folder.samples.read_text().splitlines():
        late = '"at": 11' in line and line.split('"at": ')[1] > "1145"
        lines.append(line.replace('"sm_clock_mhz": 17', '"sm_clock_mhz": 12') if late else line)
    folder.samples.write_text("\n".join(lines) + "\n")
    counters = folder.counters.read_text()
    folder.counters.write_text(counters.replace("96.00.00.00.01", "96.00.00.00.02", 1))
    judged = judge_run(folder, Thresholds())
    assert judged.verdict is Verdict.FAIL
    for gpu in judged.gpus:
        (drop,) = [result for result in gpu.results if result.id == "site.clock_drop"]
        assert drop.status is Status.FAIL, drop
        assert drop.action.startswith("CHECK_MECHANICALS")
    (firmware,) = [one for one in judged.node if one.id == "site.same_firmware"]
    assert (firmware.status, firmware.value) == (Status.WARN, 2)


@pytest.mark.long
@pytest.mark.usefixtures("example")
def test_a_file_of_thresholds_changes_the_limits_of_a_package(tmp_path: Path) -> None:
    known = {**CHECKS.limits, **own_limits(registered_checks(CHECKS.ids))}
    assert known["site.clock_drop"]["fail"] == below(0.85)
    text = """
spec = "dcgm-error-thresholds-v1"
[common_thresholds."site.clock_drop.warn".LT]
value = 2.0
"""
    thresholds = parse(text, "mine.toml", known)
    judged = judge_run(ExampleRun().write(tmp_path / "run"), thresholds)
    for gpu in judged.gpus:
        (drop,) = [result for result in gpu.results if result.id == "site.clock_drop"]
        assert (drop.status, drop.source) == (Status.WARN, "mine.toml (site_checks 0.1.0)")
        assert drop.threshold == "fail < 0.85, warn < 2"


@pytest.mark.long
def test_the_installed_example_is_found_by_the_command(tmp_path: Path) -> None:
    source = shutil.copytree(EXAMPLE, tmp_path / "source")  # the build writes into its folder
    installed = tmp_path / "installed"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    offline = ("--no-deps", "--no-build-isolation", "--target", installed)
    run_program(*pip, *offline, source, check=True)
    folder = ExampleRun().write(tmp_path / "run")
    environment = {"PYTHONPATH": f"{ROOT}:{installed}", "PATH": "/usr/bin", "HOME": str(tmp_path)}
    words = (sys.executable, "-m", "sentinel", "report", "--json", folder.path)
    done = run_program(*words, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('"id": "site.clock_drop"') == 2


# --- checks that fail ------------------------------------------------------------------------


def judge_bad(
    tmp_path: Path, name: str, place: str = "", thresholds: Thresholds = DEFAULT
) -> tuple[list[CheckResult], tuple[CheckResult, ...]]:
    """Judge a run by one bad check; return the results of both GPUs, and those of the node."""
    target = place or f"bad_checks:{name}"
    entry = Registration(name=f"bad.{name}", target=target, package="bad_pkg", version="1.0")
    folder = ExampleRun(seconds=9.0).write(tmp_path / "run")
    found = judge_by_own_checks([entry], folder.path, [uuid(0), uuid(1)], thresholds, SHORT)
    return [one for gpu in found.gpus.values() for one in gpu], found.node


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("raises", "its judgement raised ValueError: GPU 0 is not mine"),
        ("crashes", "its judgement did not return: its process was ended by SIGSEGV"),
        ("not_a_number", "its value is nan"),
        ("not_a_judgement", "AttributeError"),
    ],
)
def test_a_check_that_fails_has_not_tested_anything(tmp_path: Path, name: str, why: str) -> None:
    gpus, node = judge_bad(tmp_path, name)
    assert [gpu.status for gpu in gpus] == [Status.NOT_TESTED] * 2
    assert why in gpus[0].evidence
    assert node == ()


@pytest.mark.long
def test_a_check_that_hangs_on_one_gpu_keeps_its_results_of_others(tmp_path: Path) -> None:
    gpus, _ = judge_bad(tmp_path, "hangs")
    assert [gpu.status for gpu in gpus] == [Status.FAIL, Status.NOT_TESTED]
    assert gpus[1].evidence == "its judgement did not return within 3 s"


@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("bad_checks:not_a_check", "is of type int, not a GpuCheck or NodeCheck"),
        ("bad_checks:raises", "its id is 'bad.raises'; its entry point is called 'bad.other'"),
        ("bad_checks:missing", "AttributeError"),
        ("no_such_module:check", "ModuleNotFoundError"),
        ("bad_workloads.failing_import:x", "Error"),
        (
            "bad_workloads.crashing_import:x",
            "its import did not return: its process was ended by SIG",
        ),
    ],
)
def test_a_check_that_cannot_be_imported_is_not_tested_and_says_why(
    tmp_path: Path, place: str, why: str
) -> None:
    gpus, (node,) = judge_bad(tmp_path, "other", place)
    assert gpus == []
    assert (node.id, node.status) == ("bad.other", Status.NOT_TESTED)
    assert why in node.evidence


@pytest.mark.long
def test_what_a_check_prints_is_not_in_the_report(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    gpus, _ = judge_bad(tmp_path, "prints")
    assert [(gpu.status, gpu.value) for gpu in gpus] == [(Status.PASS, 7)] * 2
    out, err = capfd.readouterr()
    assert out == ""
    assert "not a report" in err
    higher = replace(below(6), origin="mine.toml")
    file = Thresholds(replaced={"bad.prints": {"fail": higher}}, origin="mine.toml")
    shutil.rmtree(tmp_path / "run")
    gpus, _ = judge_bad(tmp_path, "prints", thresholds=file)
    assert [gpu.status for gpu in gpus] == [Status.WARN] * 2


# --- ids -------------------------------------------------------------------------------------


def test_a_malformed_entry_point_tests_nothing_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(tmp_path, monkeypatch, "bad_pkg", **{"site.fans": "just words"})
    folder = ExampleRun(seconds=9.0).write(tmp_path / "run").path
    entries = registered_checks(CHECKS.ids)
    found = judge_by_own_checks(entries, folder, [uuid(0)], DEFAULT, SHORT)
    (result,) = found.node
    assert (result.id, result.status) == ("site.fans", Status.NOT_TESTED)
    assert result.evidence == "its entry point 'just words' is not module:attribute"
    assert "bad_pkg 0.1.0" in result.source


def test_a_package_that_may_have_a_check_and_cannot_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = Path(registered.register_package(tmp_path, GROUP, "bad_pkg", {}))
    (file,) = bad.rglob("entry_points.txt")
    file.write_text(f"[{GROUP}]\nsite.fans\n")
    monkeypatch.syspath_prepend(bad)
    with pytest.raises(ConfigError, match=r"entry points of bad_pkg 0.1.0 cannot be read"):
        registered_checks(CHECKS.ids)


def test_a_check_that_is_registered_twice_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(tmp_path, monkeypatch, "one_package", **{"site.fans": "bad_checks:raises"})
    assert [entry.name for entry in registered_checks(CHECKS.ids)] == ["site.fans"]
    register(tmp_path, monkeypatch, "another", **{"site.fans": "bad_checks:hangs"})
    with pytest.raises(ConfigError) as error:
        registered_checks(CHECKS.ids)
    assert "'site.fans' of one_package 0.1.0 is also one of another 0.1.0" in error.value.what


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("results.wrong", "Sentinel has a check of that id"),
        ("node.inventory", "Sentinel has a check of that id"),
        ("fans", "its entry point has no valid id"),
        ("Site.Fans", "its entry point has no valid id"),
    ],
)
def test_an_id_that_is_taken_or_malformed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, why: str
) -> None:
    register(tmp_path, monkeypatch, "one_package", **{name: "bad_checks:raises"})
    with pytest.raises(ConfigError, match=why):
        registered_checks(CHECKS.ids)
