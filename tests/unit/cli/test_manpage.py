"""The manual page lists every command, and groff formats it without warnings."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from sentinel.cli.main import COMMANDS, sentinel_command
from sentinel.cli.manpage import page


@pytest.mark.skipif(shutil.which("groff") is None, reason="there is no groff")
def test_groff_formats_the_manual_page_without_warnings(tmp_path: Path) -> None:
    file = tmp_path / "sentinel.1"
    file.write_text(page())
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-rLL=100n", str(file)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    text = re.sub("\x1b\\[[0-9;]*m|.\b", "", done.stdout)  # bold is by overstrike or colour
    for name in COMMANDS:
        assert f"sentinel {name}" in text
    assert "--workload" in text


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_a_name_and_help_of_at_most_80_columns(name: str) -> None:
    context = click.Context(
        sentinel_command, info_name="sentinel", help_option_names=["-h", "--help"]
    )
    command = sentinel_command.get_command(context, name)
    assert command is not None
    assert command.name == name
    assert command.help
    with click.Context(command, context, info_name=name) as own:
        assert all(len(line) <= 80 for line in command.get_help(own).splitlines())
