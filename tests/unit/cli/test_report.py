"""``sentinel report``: which run, which format, where to, and its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sentinel.burnin.checks.check import Thresholds
from sentinel.burnin.formats import FILES, write_reports
from sentinel.burnin.report import judge_run
from sentinel.cli.tools.report import command
from sentinel.errors import AccessDeniedError, ConfigError, ExitCode
from tests.harness.example_run import RUNS, ExampleRun


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a state directory of simulated GPUs with two runs."""
    from sentinel.host.paths import places

    monkeypatch.setenv("SENTINEL_SIM_DIR", str(tmp_path))
    found = places({"SENTINEL_SIM_DIR": str(tmp_path)}, 0, tmp_path).state
    RUNS["PASS"].write(found / "runs" / "20261122-080000-example")
    RUNS["FAIL"].write(found / "runs" / "20261123-080000-example")
    (found / "runs" / "20261124-080000-empty").mkdir()
    return found


def report(*arguments: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(command, arguments, standalone_mode=False)


def test_the_default_is_the_newest_run_as_text(state: Path) -> None:
    found = report()
    assert found.stdout.startswith("FAIL  node-7  example:")
    assert found.return_value == ExitCode.FAIL


def test_a_run_is_found_by_its_name_and_by_its_folder(state: Path) -> None:
    name = "20261122-080000-example"
    for run in (name, str(state / "runs" / name)):
        found = report(run)
        assert found.stdout.startswith("PASS  node-7")
        assert found.return_value == ExitCode.OK


def test_a_folder_needs_no_state_directory(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "all"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("SENTINEL_SIM_DIR", str(shared / "folder"))
    assert isinstance(report("20261122-080000-example").exception, AccessDeniedError)
    found = report(str(state / "runs" / "20261122-080000-example"))
    assert found.return_value == ExitCode.OK


def test_another_name_and_a_state_directory_without_runs_are_errors(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(report("other").exception, ConfigError)
    monkeypatch.setenv("SENTINEL_SIM_DIR", str(tmp_path / "none"))
    assert "has no run" in str(report().exception)


@pytest.mark.long
@pytest.mark.parametrize("name", FILES)
def test_each_format_is_that_of_the_file_in_the_folder(
    name: str, state: Path, tmp_path: Path
) -> None:
    folder = ExampleRun(wrong={0: 1}).write(tmp_path / "run")
    write_reports(folder, judge_run(folder, Thresholds()))
    written = (folder.path / FILES[name]).read_text()
    assert len(written) > 500
    output = tmp_path / "output"
    assert report(f"--{name}", str(folder.path)).stdout == written
    assert report(f"--{name}", str(folder.path), "--output", str(output)).stdout == ""
    assert output.read_text() == written


def test_the_run_is_judged_again_by_other_thresholds(state: Path, tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    file.write_text(
        'spec = "dcgm-error-thresholds-v1"\n[common_thresholds."load.power.warn".LT]\nvalue = 1.5\n'
    )
    found = report("--json", "--thresholds", str(file), "20261122-080000-example")
    values = json.loads(found.stdout)
    assert values["verdict"] == "WARN"
    assert values["thresholds_overridden"] == {"load.power.warn": "< 1.5"}


def test_two_runs_are_compared(state: Path) -> None:
    names = ("20261122-080000-example", "20261123-080000-example")
    found = report("--compare", *names)
    assert "PASS, then FAIL" in found.stdout
    assert found.return_value == ExitCode.OK
    assert json.loads(report("--compare", "--json", *names).stdout)["notable"] is True


@pytest.mark.parametrize(
    "arguments", [("--compare", "a"), ("a", "b"), ("--compare", "--html", "a", "b")]
)
def test_a_wrong_number_of_runs_and_a_wrong_format_are_refused(arguments: tuple[str, ...]) -> None:
    found = report(*arguments)
    assert found.exit_code != 0
    assert "compare" in str(found.exception) or "one run" in str(found.exception)


def test_two_formats_are_refused() -> None:
    assert "--junit and --html exclude each other" in str(report("--junit", "--html").exception)


def test_an_output_that_cannot_be_written_is_an_error(state: Path, tmp_path: Path) -> None:
    error = report("--output", str(tmp_path / "no" / "file")).exception
    assert isinstance(error, ConfigError)
    assert "No such file" in str(error)
