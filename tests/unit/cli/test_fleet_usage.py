"""Every option of ``sentinel fleet`` refuses a wrong value with the exit code of wrong usage."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import click
import pytest

from sentinel.cli.main import run_command_line
from sentinel.cli.tools.fleet import COMMANDS, FleetGroup
from sentinel.errors import ExitCode
from sentinel.fleet.progress import NodeProgress, write_progress
from sentinel.fleet.run_folder import FleetFolder
from tests.harness.example_fleet import fleet_run

#: A command line for each command, without what a test adds.
LINES = {
    "burnin": ("--nodes", "1", "--report", "{new}"),
    "resume": ("{run}",),
    "cancel": ("{run}",),
    "report": ("{run}",),
    "undrain": ("{run}",),
}
#: Wrong values of each option that takes one. A path is judged by what is there, and not here.
WRONG = {
    ("burnin", "--engine"): ("", "ray"),
    ("burnin", "--partition"): ("", " "),
    ("burnin", "--nodes"): ("0", "-1", "1000001", "x", ""),
    ("burnin", "--nodelist"): ("", " "),
    ("burnin", "--level"): ("", "short"),
    ("burnin", "--batch"): ("0", "-1", "10001", "x", ""),
    ("burnin", "--expect-gpus"): ("0", "-1", "x", ""),
    ("burnin", "--expect"): ("", "/nowhere/x"),
    ("report", "--expect"): ("", "/nowhere/x"),
    ("report", "--expect-gpus"): ("0", "-1", "x", ""),
    ("burnin", "--simulate"): ("0", "-1", "x", ""),
    ("burnin", "--engine-option"): ("", "--job-name=x", "-wx", "--array"),
    ("burnin", "--sentinel"): ("", " ", "'"),
    ("burnin", "--thresholds"): ("", "/nowhere/x"),
    ("burnin", "--give-up"): ("0", "-1s", "x", ""),
    ("report", "--give-up"): ("0", "-1s", "x", ""),
    ("report", "--thresholds"): ("", "/nowhere/x"),
    ("report", "--level"): ("x", "", "screen"),
    ("report", "--since"): ("0", "-1s", "x", "", "1d"),
    ("report", "--expect-nodes"): ("0", "/nowhere/x", "", "-1", "2"),
}
#: Options whose value is a path: what cannot be used there is no wrong usage.
PATHS = {("burnin", "--plan"), ("burnin", "--report"), ("report", "--output"), ("report", "--plan")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('"fleet.temperature.wran".GT', "Did you mean fleet.temperature.warn"),
        ('"memory.retired_pages.fial".GTE', "Did you mean memory.retired_pages.fail"),
        ('"fleet.temperature.warn".LT', "Allowed are GT"),
    ],
)
def test_a_file_of_thresholds_is_refused_before_anything_is_submitted(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "limits.toml"
    file.write_text(f'spec = "dcgm-error-thresholds-v1"\n[common_thresholds.{text}]\nvalue = 1\n')
    words = ["fleet", "burnin", "--report", str(tmp_path / "new"), "--thresholds", str(file)]
    assert run_command_line(words) == ExitCode.USAGE
    error = capsys.readouterr().err
    assert f"{file}: common_thresholds." in error
    assert message in error
    assert not (tmp_path / "new").exists()


def test_every_option_with_a_value_is_in_the_table() -> None:
    group = FleetGroup("fleet")
    context = click.Context(group)
    found = set()
    for name in COMMANDS:
        command = group.get_command(context, name)
        assert command is not None
        found |= {
            (name, option.opts[0])
            for option in command.params
            if isinstance(option, click.Option) and not option.is_flag
        }
    # --color is that of every command.
    assert {one for one in found if one[1] != "--color"} == WRONG.keys() | PATHS


@pytest.mark.parametrize(
    ("command", "flag", "value"),
    [(*key, value) for key, values in WRONG.items() for value in values],
)
def test_a_wrong_value_is_wrong_usage_and_starts_nothing(
    command: str, flag: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = FleetFolder(path=tmp_path / "run")
    folder.create()
    run = fleet_run("n1")
    folder.write(run)
    words = [one.format(new=tmp_path / "new", run=folder.path) for one in LINES[command]]
    if flag == "--nodelist":  # it excludes --nodes
        words = words[2:]
    code = run_command_line(["fleet", command, *words, flag, value])
    assert code == ExitCode.USAGE, capsys.readouterr()
    assert flag in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    assert folder.read() == run


@pytest.mark.parametrize(
    ("name", "message"), [("a\udcffb", "it is not UTF-8 text"), ("a\\b", "it has a backslash")]
)
def test_a_folder_that_the_nodes_could_not_write_is_refused(
    name: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fleet", "burnin", "--nodes", "1", "--report", str(tmp_path / name)]
    assert run_command_line(words) == ExitCode.USAGE
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_has_ended_is_not_said_to_be_cancelled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = FleetFolder(path=tmp_path / "run")
    folder.create()
    folder.write(fleet_run("n1", engine="clush"))
    progress = NodeProgress(node="n1", state="running", time=datetime.now().astimezone())
    write_progress(folder.progress("n1"), progress)
    assert run_command_line(["fleet", "cancel", str(folder.path)]) == ExitCode.OK
    assert "cancelled" in capsys.readouterr().out
    write_progress(folder.progress("n1"), replace(progress, state="ended"))
    assert run_command_line(["fleet", "cancel", str(folder.path)]) == ExitCode.OK
    output = capsys.readouterr().out
    assert "had ended; the verdict: sentinel fleet report --watch" in output
    assert "cancelled" not in output


@pytest.mark.parametrize("sinfo", [None, "echo sinfo: no configuration >&2; exit 1"])
def test_without_slurm_the_other_engine_is_named(
    sinfo: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if sinfo is not None:
        (tmp_path / "sinfo").write_text(f"#!/bin/sh\n{sinfo}\n")
        (tmp_path / "sinfo").chmod(0o755)
    words = ["fleet", "burnin", "--nodes", "1", "--report", str(tmp_path / "new")]
    assert run_command_line(words) == ExitCode.USAGE
    assert "--engine clush --nodelist LIST" in capsys.readouterr().err
