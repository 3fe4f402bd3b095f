"""``sentinel fleet resume`` runs the command of a folder: only of one that is the user's own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sentinel.cli.main import run_command_line
from sentinel.fleet.run_folder import FleetFolder
from tests.harness.example_fleet import fleet_run
from tests.harness.isolation import STRANGER

CHANGES = [
    ("fleet.json", lambda path: path.chmod(0o666)),
    ("plan.toml", lambda path: path.chmod(0o666)),
    pytest.param(
        "fleet.json",
        lambda path: os.chown(path, STRANGER, STRANGER),
        marks=pytest.mark.skipif(os.getuid() != 0, reason="needs root, to give a file away"),
    ),
]


@pytest.mark.parametrize(("name", "change"), CHANGES)
def test_the_run_of_another_user_is_not_resumed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    change: Callable[[Path], None],
) -> None:
    clush = tmp_path / "clush"
    clush.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/begun\n')
    clush.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    folder = FleetFolder(path=tmp_path / "run")
    folder.create()
    command = ("/tmp/evil", str(folder.path))  # noqa: S108 - it is not run
    run = fleet_run("node1", engine="clush", command=command)
    folder.write(run)
    folder.plan.write_text("")
    folder.plan.chmod(0o644)
    change(folder.path / name)
    assert run_command_line(["fleet", "resume", str(folder.path)]) == 2
    assert "says what is run, and" in capsys.readouterr().err
    assert not (tmp_path / "begun").exists()
    assert folder.read() == run
