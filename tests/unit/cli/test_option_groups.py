"""The help shows the options of settings in groups, and the rare ones with --help-all."""

from __future__ import annotations

import re
from collections import Counter

import click
import pytest

from sentinel.cli.main import sentinel_command
from sentinel.cli.options.command_classes import GROUPS
from sentinel.config.model import SETTINGS
from tests.harness.command_line import CommandLine

FLAGS = {setting.field: setting.flag for setting in SETTINGS}
RARE = {name for _, rare in GROUPS.values() for name in rare}


def test_every_setting_is_in_one_group() -> None:
    count = Counter(name for group in GROUPS.values() for names in group for name in names)
    assert set(count.values()) == {1}
    assert count.keys() == FLAGS.keys()
    assert len(FLAGS) - len(RARE) <= 28


def listed(cli: CommandLine, *words: str) -> set[str]:
    """Return the options that a help lists."""
    return set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", cli(*words).out, re.MULTILINE))


@pytest.mark.parametrize("command", ["run", "start"])
def test_the_rare_options_are_behind_help_all(cli: CommandLine, command: str) -> None:
    common, everything = listed(cli, command, "--help"), listed(cli, command, "--help-all")
    assert everything - common == {FLAGS[name] for name in RARE}
    assert everything >= set(FLAGS.values())
    assert len(common) <= 42


def test_every_option_of_a_command_with_groups_is_in_its_help(
    cli: CommandLine,
) -> None:
    context = click.Context(sentinel_command)
    for name in ("run", "start", "burnin", "session start"):
        command: click.Command | None = sentinel_command
        for word in name.split():
            assert isinstance(command, click.Group)
            command = command.get_command(context, word)
        assert command is not None
        options = {
            get_param.opts[-1] if get_param.opts[-1].startswith("--") else get_param.opts[0]
            for get_param in command.get_params(click.Context(command, info_name=name))
            if isinstance(get_param, click.Option) and not get_param.hidden
        }
        assert listed(cli, *name.split(), "--help-all") == options


def test_burnin_does_not_list_what_it_refuses(cli: CommandLine) -> None:
    options = listed(cli, "burnin", "--help-all")
    refused = {"--workload", "--util", "--util-every", "--util-samples", "--power", "--duty"}
    assert not options & refused
    assert "--memory" in options
    for flag in ("--workload", "--util"):
        cli("burnin", flag, "50%", code=64)


@pytest.mark.parametrize(
    "words",
    [
        ["check", "--simulate", "0"],
        ["check", "--simulate", "many"],
        ["check", "--gpus", "0,,1"],
        ["check", "--no-such-option"],
        ["burnin", "--simulate", "0"],
        ["burnin", "--poll", "1h"],
        ["burnin", "--level", "none"],
        ["burnin", "--no-such-option"],
    ],
)
def test_wrong_options_of_commands_with_verdicts_exit_with_64(
    cli: CommandLine, words: list[str]
) -> None:
    output = cli(*words, code=64)
    assert output.out == ""
    assert output.err.startswith("sentinel: ")


@pytest.mark.parametrize(
    "words", [["run", "--simulate", "0"], ["start", "--poll", "1h"], ["demo", "-x"]]
)
def test_wrong_options_of_other_commands_exit_with_2(words: list[str], cli: CommandLine) -> None:
    cli(*words, code=2)
