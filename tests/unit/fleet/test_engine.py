"""The commands of an engine: what the user's variables and a node's texts must not change."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from sentinel.fleet.drain import parse_nodes
from sentinel.fleet.engine import EngineMissingError, run_tool


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a command that is found by its name."""
    path = tmp_path / "squeue"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return path


def write(tool: Path, script: bytes) -> None:
    tool.write_bytes(b"#!/bin/sh\n" + script)
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)


def test_variables_that_hide_jobs_are_not_passed_on(
    tool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUEUE_STATES", "RUNNING")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    write(tool, b'echo "${SQUEUE_STATES:-all} $SLURM_CONF"')
    assert run_tool(("squeue",)) == "all /etc/slurm.conf\n"


def test_a_reason_in_another_encoding_is_a_reason(tool: Path) -> None:
    write(tool, b"printf 'NodeName=n1 State=IDLE Reason=d\\351fectueux [a@b]'")
    assert dict(parse_nodes(run_tool(("squeue",))))["n1"].reason.startswith("d")


def test_a_command_that_is_missing_has_an_error_of_its_own() -> None:
    with pytest.raises(EngineMissingError, match="sentinel-has-none is not installed"):
        run_tool(("sentinel-has-none",))
