"""``sentinel fleet report``: its exit codes, formats and files."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.cli.options.setting_options import load_thresholds
from sentinel.fleet import follow, run_folder
from sentinel.fleet.node_files import hash_of
from sentinel.fleet.run_folder import known_folder, remember
from tests.harness.command_line import CommandLine
from tests.harness.example_fleet import Fleets, just_accepted, node_report
from tests.harness.parameters import mostly_long

SLOW = {(2, 1): 0.8}
GONE = frozenset({1})


@pytest.fixture(scope="module")
def fleets(tmp_path_factory: pytest.TempPathFactory) -> Fleets:
    folder = tmp_path_factory.mktemp("fleets")
    return Fleets(node_report(folder, gpus=2), folder)


@pytest.mark.parametrize(
    ("given", "code", "first"),
    [
        ({}, 0, "PASS  fleet-1  example: everything was done, and no fault was found"),
        ({"heat": {(2, 1): 20.0}}, 0, "WARN  fleet-1"),
        ({"rates": SLOW, "absent": GONE}, 1, "FAIL  fleet-1"),
        ({"absent": GONE}, 3, "INCOMPLETE  fleet-1  example: no fault was found, and 1 of 6"),
    ],
)
def test_the_exit_code_and_the_first_line_are_the_verdict(
    given: dict[str, Any], code: int, first: str, fleets: Fleets, cli: CommandLine
) -> None:
    folder = fleets.write(**given)
    assert cli("fleet", "report", str(folder.path), code=code).out.startswith(first)


@mostly_long("form", ["text", "json", "jsonl", "junit", "html"], quick=2)
def test_each_format_is_written_to_a_file_or_printed(
    form: str, fleets: Fleets, cli: CommandLine
) -> None:
    folder = fleets.write(rates=SLOW).path
    words = ["fleet", "report", str(folder), f"--{form}"]
    printed = cli(*words, code=1).out
    # Within the folder a file is not taken for the report of a node.
    assert cli(*words, "--output", str(folder / "report.json"), code=1).out == ""
    assert (folder / "report.json").read_text() == printed
    assert cli(*words, code=1).out == printed


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["/nowhere/x"], "/nowhere/x: No such file or directory"),
        ([".", "--html", "--json"], "--html and --json exclude each other"),
        ([".", "--thresholds", "/nowhere/x"], "/nowhere/x: No such file"),
        ([".", "--nope"], "no option --nope"),
    ],
)
def test_wrong_usage_is_not_a_verdict(words: list[str], error: str, cli: CommandLine) -> None:
    shown = cli("fleet", "report", *words, code=2)
    assert error in shown.out + shown.err


def test_a_file_of_thresholds_replaces_limits(
    fleets: Fleets, tmp_path: Path, cli: CommandLine
) -> None:
    folder = fleets.write(heat={(2, 1): 20.0}).path
    limits = tmp_path / "limits.toml"
    limits.write_text(
        'spec = "dcgm-error-thresholds-v1"\n'
        '[common_thresholds."fleet.temperature.warn".GT]\nvalue = 30\n'
    )
    words = ["fleet", "report", str(folder), "--thresholds", str(limits), "--json"]
    report = cli.json(*words)
    assert (report["verdict"], report["thresholds_overridden"]) == (
        "PASS",
        {"fleet.temperature.warn": "> 30"},
    )


@mostly_long("form", ["text", "json", "junit", "html"])
@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("gpus = 2", 1, "1 of 2 are there"),
        ('[[infiniband]]\nport = "a/1"', 3, "state of port a/1 is not known"),
    ],
)
def test_a_fleet_with_one_gpu_on_every_node_is_judged_by_what_was_ordered(
    form: str, text: str, code: int, said: str, fleets: Fleets, tmp_path: Path, cli: CommandLine
) -> None:
    template = just_accepted(fleets.template)
    folder = fleets.write(short=frozenset(range(6)), run_file=False, template=template).path
    words = ["fleet", "report", str(folder), f"--{form}"]
    cli(*words, code=0)  # all nodes are alike
    file = tmp_path / "node.toml"
    file.write_text(text)
    shown = cli(*words, "--expect", str(file), code=code).out
    assert said in " ".join(shown.split())


def test_what_a_run_was_begun_with_is_what_its_nodes_must_be(
    fleets: Fleets, cli: CommandLine
) -> None:
    folder = fleets.write(short=frozenset({2}))
    assert "1 of 2" not in cli("fleet", "report", str(folder.path), code=None).out
    folder.expectation.write_text("gpus = 2\n")
    folder.write(replace(folder.read(), expectation_hash=hash_of("gpus = 2")))
    assert "1 of 2 are there" in cli("fleet", "report", str(folder.path), code=1).out
    folder.expectation.write_text("gpus = 1\n")
    assert "it was changed since" in cli("fleet", "report", str(folder.path), code=2).err


def test_one_file_has_the_limits_of_nodes_and_of_the_fleet(
    fleets: Fleets, tmp_path: Path, cli: CommandLine
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
    # What the nodes have applied is in their own reports.
    assert cli.json(*words)["thresholds_overridden"] == {"fleet.temperature.warn": "> 30"}
    cli("check", "--simulate", "1", "--thresholds", str(limits), code=0)
    assert load_thresholds(str(limits)).node.overridden() == {
        "memory.retired_pages.fail": ">= 30",
        "xid.63": "fail",
    }


def test_a_report_has_the_thresholds_of_its_run(fleets: Fleets, cli: CommandLine) -> None:
    def write(value: int) -> None:
        folder.thresholds.write_text(
            'spec = "dcgm-error-thresholds-v1"\n'
            f'[common_thresholds."fleet.temperature.warn".GT]\nvalue = {value}\n'
        )

    folder = fleets.write(heat={(2, 1): 20.0})
    write(30)
    words = ["fleet", "report", str(folder.path), "--json"]
    assert cli.json(*words)["verdict"] == "WARN", "the run was not begun with this file"
    found = load_thresholds(str(folder.thresholds))
    folder.write(replace(folder.read(), thresholds_hash=found.hash))
    report = cli.json(*words)
    assert (report["verdict"], report["run"]["thresholds_hash"]) == ("PASS", found.hash)
    write(31)
    changed = cli(*words, code=2).out
    assert "thresholds.toml: it was changed since run fleet-1 began" in changed
    folder.thresholds.unlink()
    missing = cli(*words[:-1], code=2).err
    assert "the thresholds of run fleet-1 cannot be read" in missing


@pytest.mark.parametrize("words", [["report", "--watch"], ["resume"], ["report"]])
def test_a_run_does_not_go_on_with_other_thresholds(
    words: list[str], fleets: Fleets, cli: CommandLine
) -> None:
    folder = fleets.write()
    folder.write(replace(folder.read(), thresholds_hash="0" * 16))
    folder.thresholds.write_text('spec = "dcgm-error-thresholds-v1"')
    error = cli("fleet", *words, str(folder.path), code=2).err
    assert f"{folder.thresholds}: it was changed since run fleet-1 began" in error
    assert not folder.summary.exists()


def test_a_report_adds_no_line_and_does_not_control_the_terminal(
    fleets: Fleets, cli: CommandLine
) -> None:
    report = fleets.report(1)
    check = report["gpus"][0]["checks"][0]
    check |= {"status": "fail", "evidence": "\x1b[2J\nPASS  fleet-1\n", "value": None}
    folder = fleets.write(reports={1: report})
    lines = cli("fleet", "report", str(folder.path), code=1).out.splitlines()
    assert [line for line in lines if line.startswith("PASS")] == []
    assert all(line.isprintable() for line in lines)


def test_a_report_is_that_of_the_last_run_or_of_an_id(
    fleets: Fleets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    none = cli("fleet", "report", code=2).err
    assert "no fleet run was begun here by this user" in none
    folder = fleets.write()
    remember(known_folder(os.environ, os.getuid()), "fleet-1", folder)
    for words in ([], ["fleet-1"], [str(folder.path)]):
        assert cli("fleet", "report", *words).out.startswith("PASS  fleet-1")


def test_the_verdict_is_printed_even_if_it_cannot_be_written(
    fleets: Fleets, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An administrator may follow the run of another user, whose folder is readable alone."""
    folder = fleets.write(absent=frozenset({2}))
    folder.write(replace(folder.read(), engine="clush", command=("true", str(folder.path))))

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(run_folder, "replace_file", refuse)
    monkeypatch.setattr(follow, "MIN_PAUSE_S", 0.0)
    printed = cli("fleet", "report", "--watch", str(folder.path), code=3)
    assert "5 PASS" in printed.out
    assert f"{folder.path}/report.html cannot be written: Permission denied" in printed.err


@pytest.mark.parametrize(
    ("transfer", "error"),
    [
        (shutil.copytree, "whose nodes write to {old}"),
        (Path.rename, "{new} was moved: the nodes of run"),
    ],
    ids=["copied", "moved"],
)
def test_a_folder_in_another_place_is_not_resumed(
    transfer: Callable[[Path, Path], Path],
    error: str,
    fleets: Fleets,
    tmp_path: Path,
    cli: CommandLine,
) -> None:
    folder = fleets.write()
    folder.write(replace(folder.read(), command=("true", str(folder.path))))
    new = transfer(folder.path, tmp_path / "new")
    refused = cli("fleet", "resume", str(new), code=2).err
    assert error.format(old=folder.path, new=new) in refused
    assert folder.path.exists() is (transfer is shutil.copytree)
