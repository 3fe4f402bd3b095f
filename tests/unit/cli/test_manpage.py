"""The manual page says what the commands say, and a reader of manual pages has no complaint."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from sentinel.cli.main import COMMANDS, sentinel_command
from sentinel.cli.manpage import page

FILE = Path(__file__).resolve().parents[3] / "docs" / "sentinel.1"


def test_the_manual_page_is_what_the_commands_say() -> None:
    """If not: python -m sentinel.cli.manpage > docs/sentinel.1."""
    assert FILE.read_text() == page()


@pytest.mark.skipif(shutil.which("groff") is None, reason="there is no groff")
def test_the_manual_page_is_read_without_a_complaint() -> None:
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-rLL=100n", str(FILE)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    shown = re.sub("\x1b\\[[0-9;]*m|.\b", "", done.stdout)  # bold is struck twice, or coloured
    for name in COMMANDS:
        assert f"sentinel {name}" in shown
    assert "--workload" in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_listed_with_what_it_is_for(name: str) -> None:
    context = click.Context(sentinel_command, info_name="sentinel")
    command = sentinel_command.get_command(context, name)
    assert command is not None
    assert command.name == name
    assert command.help
    with click.Context(command, context, info_name=name) as own:
        assert all(len(line) <= 80 for line in command.get_help(own).splitlines())
