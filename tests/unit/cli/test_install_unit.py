"""The unit has the paths of the installation, and an administrator's changes are kept."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from sentinel.cli.tools import install_unit
from sentinel.errors import ConfigError
from tests.harness.command_line import CommandLine
from tests.harness.gpu_environment import ROOT


@pytest.fixture
def unit_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the unit be written in a folder of the test, by root."""
    file = tmp_path / "sentinel.service"
    monkeypatch.setattr(install_unit, "UNIT", file)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return file


def started(text: str) -> str:
    """Return the command of a unit."""
    (line,) = (line for line in text.splitlines() if line.startswith("ExecStart="))
    return line.removeprefix("ExecStart=")


def test_the_printed_unit_starts_this_installation(cli: CommandLine) -> None:
    printed = cli("install-unit", "--print").out
    *command, run, flag = shlex.split(started(printed))
    assert (run, flag) == ("run", "--daemon")
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("sentinel, version ")
    shipped = (ROOT / "deploy" / "sentinel.service").read_text()
    assert printed.replace(started(printed), started(shipped)) == shipped


@pytest.mark.parametrize(
    ("word", "written"),
    [
        ("/opt/venv/bin/sentinel", "/opt/venv/bin/sentinel"),
        ("/opt/my venv/sentinel", '"/opt/my venv/sentinel"'),
        ("/opt/100%/x", "/opt/100%%/x"),
    ],
)
def test_special_characters_of_a_path_are_escaped(word: str, written: str) -> None:
    assert started(install_unit.unit((word,))) == f"{written} run --daemon"


@pytest.mark.parametrize("word", ["/opt/new\nline", '/opt/a"b', "/opt/it's", "/opt/$x", r"/opt/\x"])
def test_a_path_that_a_unit_cannot_have_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="character that systemd refuses"):
        install_unit.unit((word,))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_reads_an_escaped_path(tmp_path: Path) -> None:
    script = tmp_path / "50% of it" / "sentinel"
    script.parent.mkdir()
    script.touch(0o755)
    unit = tmp_path / "sentinel.service"
    unit.write_text(install_unit.unit((str(script),)))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, check=False)
    assert "is not executable" not in done.stderr.decode()
    script.chmod(0o644)
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, check=False)
    assert f"{script} is not executable" in done.stderr.decode()


def test_root_installs_the_unit_once_and_keeps_changes(unit_file: Path, cli: CommandLine) -> None:
    assert "is written\nsystemctl daemon-reload\n" in cli("install-unit").out
    ours = unit_file.read_text()
    assert (ours, unit_file.stat().st_mode & 0o777) == (install_unit.unit(_command()), 0o644)
    assert "is up to date" in cli("install-unit").out

    unit_file.write_text(f"{ours}# a change\n")
    assert "has another text" in cli("install-unit", code=1).err
    assert unit_file.read_text().endswith("# a change\n")
    cli("install-unit", "--force")
    assert unit_file.read_text() == ours


def _command() -> tuple[str, ...]:
    return install_unit.this_command()


def test_another_user_than_root_installs_nothing(
    unit_file: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "sentinel install-unit --print" in cli("install-unit", code=4).err
    assert not unit_file.exists()
