"""The lists of commands in the help of each group have whole sentences."""

from __future__ import annotations

import click
import pytest

from sentinel.cli.main import COMMANDS, sentinel_command

CONTEXT = click.Context(sentinel_command, info_name="sentinel")
FOUND = {name: sentinel_command.get_command(CONTEXT, name) for name in COMMANDS}
GROUPS = {name: command for name, command in FOUND.items() if isinstance(command, click.Group)}


@pytest.mark.parametrize("name", [*GROUPS, "workloads goldens"])
def test_no_line_of_a_list_of_commands_is_cut_off(name: str) -> None:
    group: click.Command | None = sentinel_command
    for word in name.split():
        assert isinstance(group, click.Group)
        group = group.get_command(CONTEXT, word)
    assert isinstance(group, click.Group)
    context = click.Context(group, info_name=name, terminal_width=80)
    _, _, listed = group.get_help(context).partition("\nCommands:\n")
    assert listed
    assert "..." not in listed
