"""``sentinel fleet report``: its exit codes, formats and files."""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.cli.main import run_command_line
from sentinel.cli.options.setting_options import load_thresholds
from sentinel.fleet import follow, run_folder
from sentinel.fleet.run_folder import known_folder, remember
from tests.harness.example_fleet import Fleets, node_report

SLOW = {(2, 3): 0.8}
GONE = frozenset({1})

Capsys = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def fleets(tmp_path_factory: pytest.TempPathFactory) -> Fleets:
    folder = tmp_path_factory.mktemp("fleets")
    return Fleets(node_report(folder), folder)


@pytest.mark.parametrize(
    ("given", "code", "first"),
    [
        ({}, 0, "PASS  fleet-1  example: everything was done, and no fault was found"),
        ({"heat": {(2, 3): 20.0}}, 0, "WARN  fleet-1"),
        ({"rates": SLOW, "absent": GONE}, 1, "FAIL  fleet-1"),
        ({"absent": GONE}, 3, "INCOMPLETE  fleet-1  example: no fault was found, and 1 of 6"),
    ],
)
def test_the_exit_code_and_the_first_line_are_the_verdict(
    given: dict[str, Any], code: int, first: str, fleets: Fleets, capsys: Capsys
) -> None:
    folder = fleets.write(**given)
    assert run_command_line(["fleet", "report", str(folder.path)]) == code
    assert capsys.readouterr().out.startswith(first)


@pytest.mark.parametrize("form", ["text", "json", "jsonl", "junit", "html"])
def test_each_format_is_written_to_a_file_or_printed(
    form: str, fleets: Fleets, capsys: Capsys
) -> None:
    folder = fleets.write(rates=SLOW).path
    words = ["fleet", "report", str(folder), f"--{form}"]
    assert run_command_line(words) == 1
    printed = capsys.readouterr().out
    # Within the folder a file is not taken for the report of a node.
    assert run_command_line([*words, "--output", str(folder / "report.json")]) == 1
    assert (folder / "report.json").read_text() == printed
    assert capsys.readouterr().out == ""
    assert run_command_line(words) == 1
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["/nowhere/x"], 2, "/nowhere/x: No such file or directory"),
        ([".", "--html", "--json"], 64, "--html and --json exclude each other"),
        ([".", "--thresholds", "/nowhere/x"], 64, "/nowhere/x: No such file"),
        ([".", "--nope"], 64, "no option --nope"),
    ],
)
def test_wrong_usage_is_not_a_verdict(
    words: list[str], code: int, error: str, capsys: Capsys
) -> None:
    assert run_command_line(["fleet", "report", *words]) == code
    shown = capsys.readouterr()
    assert error in shown.out + shown.err


def test_a_file_of_thresholds_replaces_limits(
    fleets: Fleets, tmp_path: Path, capsys: Capsys
) -> None:
    folder = fleets.write(heat={(2, 3): 20.0}).path
    limits = tmp_path / "limits.toml"
    limits.write_text(
        'spec = "dcgm-error-thresholds-v1"\n'
        '[common_thresholds."fleet.temperature.warn".GT]\nvalue = 30\n'
    )
    words = ["fleet", "report", str(folder), "--thresholds", str(limits), "--json"]
    assert run_command_line(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["verdict"], report["thresholds_overridden"]) == (
        "PASS",
        {"fleet.temperature.warn": "> 30"},
    )


def test_one_file_has_the_limits_of_nodes_and_of_the_fleet(
    fleets: Fleets, tmp_path: Path, capsys: Capsys
) -> None:
    limits = tmp_path / "limits.toml"
    limits.write_text(
        'spec = "dcgm-error-thresholds-v1"\n'
        '[common_thresholds."fleet.temperature.warn".GT]\nvalue = 30\n'
        '[common_thresholds."memory.retired_pages.fail".GTE]\nvalue = 30\n'
        '[xids]\n63 = "fail"\n'
    )
    folder = fleets.write().path
    words = ["fleet", "report", str(folder), "--thresholds", str(limits), "--json"]
    assert run_command_line(words) == 0
    # What the nodes have applied is in their own reports.
    report = json.loads(capsys.readouterr().out)
    assert report["thresholds_overridden"] == {"fleet.temperature.warn": "> 30"}
    assert run_command_line(["check", "--simulate", "1", "--thresholds", str(limits)]) != 64
    assert load_thresholds(str(limits)).node.overridden() == {
        "memory.retired_pages.fail": ">= 30",
        "xid.63": "fail",
    }


def test_a_report_has_the_thresholds_of_its_run(fleets: Fleets, capsys: Capsys) -> None:
    def write(value: int) -> None:
        folder.thresholds.write_text(
            'spec = "dcgm-error-thresholds-v1"\n'
            f'[common_thresholds."fleet.temperature.warn".GT]\nvalue = {value}\n'
        )

    folder = fleets.write(heat={(2, 3): 20.0})
    write(30)
    words = ["fleet", "report", str(folder.path), "--json"]
    run_command_line(words)  # a file that the run was not begun with
    assert json.loads(capsys.readouterr().out)["verdict"] == "WARN"
    found = load_thresholds(str(folder.thresholds))
    folder.write(replace(folder.read(), thresholds_hash=found.hash))
    run_command_line(words)
    report = json.loads(capsys.readouterr().out)
    assert (report["verdict"], report["run"]["thresholds_hash"]) == ("PASS", found.hash)
    write(31)
    assert run_command_line(words) == 2
    assert "thresholds.toml: it was changed since run fleet-1 began" in capsys.readouterr().out
    folder.thresholds.unlink()
    assert run_command_line(words[:-1]) == 2
    assert "the thresholds of run fleet-1 cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["report", "--watch"], ["resume"], ["report"]])
def test_a_run_does_not_go_on_with_other_thresholds(
    words: list[str], fleets: Fleets, capsys: Capsys
) -> None:
    folder = fleets.write()
    folder.write(replace(folder.read(), thresholds_hash="0" * 16))
    folder.thresholds.write_text('spec = "dcgm-error-thresholds-v1"')
    assert run_command_line(["fleet", *words, str(folder.path)]) == 2
    error = capsys.readouterr().err
    assert f"{folder.thresholds}: it was changed since run fleet-1 began" in error
    assert not folder.summary.exists()


def test_a_report_adds_no_line_and_does_not_control_the_terminal(
    fleets: Fleets, capsys: Capsys
) -> None:
    report = fleets.report(1)
    check = report["gpus"][0]["checks"][0]
    check |= {"status": "fail", "evidence": "\x1b[2J\nPASS  fleet-1\n", "value": None}
    folder = fleets.write(reports={1: report})
    assert run_command_line(["fleet", "report", str(folder.path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("PASS")] == []
    assert all(line.isprintable() for line in lines)


def test_a_report_is_that_of_the_last_run_or_of_an_id(
    fleets: Fleets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert run_command_line(["fleet", "report"]) == 64
    assert "no fleet run was begun here by this user" in capsys.readouterr().err
    folder = fleets.write()
    remember(known_folder(os.environ, os.getuid()), "fleet-1", folder)
    for words in ([], ["fleet-1"], [str(folder.path)]):
        assert run_command_line(["fleet", "report", *words]) == 0
        assert capsys.readouterr().out.startswith("PASS  fleet-1")


def test_the_verdict_is_printed_even_if_it_cannot_be_written(
    fleets: Fleets, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An administrator may follow the run of another user, whose folder is readable alone."""
    folder = fleets.write(absent=frozenset({2}))
    folder.write(replace(folder.read(), engine="clush", command=("true", str(folder.path))))

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(run_folder, "replace_file", refuse)
    monkeypatch.setattr(follow, "MIN_PAUSE_S", 0.0)
    assert run_command_line(["fleet", "report", "--watch", str(folder.path)]) == 3
    printed = capsys.readouterr()
    assert "5 PASS" in printed.out
    assert f"{folder.path}/report.html cannot be written: Permission denied" in printed.err


def test_the_copy_of_a_folder_is_not_resumed(
    fleets: Fleets, tmp_path: Path, capsys: Capsys
) -> None:
    folder = fleets.write()
    folder.write(replace(folder.read(), command=("true", str(folder.path))))
    shutil.copytree(folder.path, tmp_path / "copy")
    assert run_command_line(["fleet", "resume", str(tmp_path / "copy")]) == 2
    assert f"whose nodes write to {folder.path}" in capsys.readouterr().err


def test_a_folder_that_was_moved_is_not_resumed(
    fleets: Fleets, tmp_path: Path, capsys: Capsys
) -> None:
    folder = fleets.write()
    folder.write(replace(folder.read(), command=("true", str(folder.path))))
    moved = folder.path.rename(tmp_path / "moved")
    assert run_command_line(["fleet", "resume", str(moved)]) == 2
    assert f"{moved} was moved: the nodes of run" in capsys.readouterr().err
    assert not folder.path.exists()
