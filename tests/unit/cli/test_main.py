"""Commands, their options by group in the help, and the manual page."""

from __future__ import annotations

import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import click
import pytest

from sentinel.__main__ import main
from sentinel.cli.main import COMMANDS, sentinel_command
from sentinel.cli.options.command_classes import GROUPS
from sentinel.config.model import SETTINGS
from sentinel.errors import ExitCode
from sentinel.protocol.shipped_tables import shipped_table
from tests.harness.command_line import CommandLine
from tests.harness.document_programs import document_program
from tests.harness.printed_commands import check_usage
from tests.harness.programs import run_program


def test_ctrl_c_while_the_commands_are_imported_ends_quietly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupted(ModuleType):
        def __getattr__(self, name: str) -> None:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "sentinel.cli.main", Interrupted("main"))
    assert main() == ExitCode.INTERRUPTED


def test_a_hidden_command_is_not_listed(cli: CommandLine) -> None:
    assert "'halt'; there are: attach, cancel, status\n" in cli("burnin", "halt", code=2).err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rum"], "there is no command 'rum'; did you mean run?"),
        (["session", "halt"], "there is no command 'halt'; there are: list, start, stop"),
        (["session"], "`sentinel session` needs a command; there are: list, start, stop\n"),
        (["session", "end"], "there is no command 'session end'; use: sentinel session stop NAME"),
        (
            ["session", "end", "x"],
            "there is no command 'session end'; use: sentinel session stop x",
        ),
        (["config", "set", "util=3%"], "there is no command 'config set'; use: sentinel set util="),
        (["burnin", "stop"], "there is no command 'burnin stop'; use: sentinel burnin cancel\n"),
        (
            ["--connect", "node7:8765", "status"],
            "`sentinel run` has no option --connect; it follows a command, as in `sentinel status",
        ),
        (["shutdown"], "there is no command 'shutdown'; use: sentinel stop\n"),
        (["deallocate"], "there is no command 'deallocate'; use: sentinel allocate --cancel ID\n"),
        (["drain", "0-1"], "there is no command 'drain'; use: sentinel pause 0-1\n"),
        (["try", "x y"], "there is no command 'try'; use: sentinel workloads try 'x y'\n"),
        (
            ["cancel", "1a2b"],
            (
                "there is no command 'cancel'; use: sentinel burnin cancel 1a2b or "
                "sentinel reserve --cancel 1a2b\n"
            ),
        ),
        (["unpause", "1"], "there is no command 'unpause'; use: sentinel resume 1\n"),
        (["shutdown", "now"], "there is no command 'shutdown'; use: sentinel stop\n"),
        (["release", "now"], "there is no command 'release'; use: sentinel pause\n"),
        (["release", "--all"], "there is no command 'release'; use: sentinel pause\n"),
        (["ls", "-l"], "there is no command 'ls'; use: sentinel status --list\n"),
        (["get", "util"], "there is no command 'get'; use: sentinel config show\n"),
        (["uninstall"], "there is no command 'uninstall'; `sentinel --help` lists all\n"),
        (["stat"], "there is no command 'stat'; did you mean start or status?\n"),
        (["ls"], "there is no command 'ls'; use: sentinel status --list\n"),
        (["ps"], "there is no command 'ps'; use: sentinel status\n"),
        (["st"], "there is no command 'st'; use: sentinel status\n"),
        (["STATUS"], "there is no command 'STATUS'; did you mean status?\n"),
        (["LS"], "there is no command 'LS'; use: sentinel status --list\n"),
        (["daemon"], "there is no command 'daemon'; use: sentinel start or sentinel status\n"),
        (
            ["reset", "util"],
            (
                "there is no command 'reset'; use: sentinel set --unset util or "
                "sentinel restart --help\n"
            ),
        ),
        (["queue"], "there is no command 'queue'; use: sentinel reserve --list\n"),
        (["help", "rum"], "there is no command 'rum'; did you mean run?"),
        (["start", "--gpus", "0", "1"], "--gpus takes one list; use: --gpus 0,1\n"),
        (["start", "--gpus", "0", "-", "1"], "--gpus takes one list; use: --gpus 0-1\n"),
        (["start", "--gpus", "0", "-", "1", "3"], "--gpus takes one list; use: --gpus 0-1,3\n"),
        (["--gpus=0", "1", "2"], "--gpus takes one list; use: --gpus 0,1,2\n"),
        (["burnin", "--gpus", "0", "1", "--strict"], "--gpus takes one list; use: --gpus 0,1\n"),
        (["burnin", "2", "3"], "GPUs follow --gpus; use: sentinel burnin --gpus 2,3\n"),
        (
            ["start", "--hours", "Mon-Fri", "22:00-07:00", "--simulate", "2"],
            "--hours takes one value; use: --hours 'Mon-Fri 22:00-07:00'\n",
        ),
        (
            ["set", "hours=Mon-Fri", "22:00-07:00"],
            (
                "'22:00-07:00' is no setting; quote a value with spaces: "
                "'hours=Mon-Fri 22:00-07:00'\n"
            ),
        ),
        (["kill", "3"], "there is no command 'kill'; use: sentinel pause 3\n"),
        (
            ["kill", "-9", "12345"],
            (
                "there is no command 'kill'; 12345 is no GPU, and sentinel never signals "
                "foreign processes; use: sentinel status\n"
            ),
        ),
        (
            ["stop", "12345"],
            (
                "`sentinel stop` ends the daemon; 12345 is no GPU, and sentinel never signals "
                "foreign processes; use: sentinel status\n"
            ),
        ),
        (
            ["serve", "--port", "8765"],
            "there is no command 'serve'; use: sentinel start --paused --tcp 127.0.0.1:8765\n",
        ),
        (["off", "0-1"], "there is no command 'off'; use: sentinel pause 0-1\n"),
        # What narrows the command is kept, or the command is not suggested.
        (["kill", "--gpus", "3"], "there is no command 'kill'; use: sentinel pause --gpus 3\n"),
        (["kill", "3", "--force"], "there is no command 'kill'; use: sentinel pause 3\n"),
        (["kill", "train"], "there is no command 'kill'; use: sentinel stop --help\n"),
        (["drain", "3", "-r", "ecc"], "there is no command 'drain'; use: sentinel pause --help\n"),
        (["unpause", "2", "-y"], "there is no command 'unpause'; use: sentinel resume 2\n"),
        (["hold", "0"], "there is no command 'hold'; use: sentinel start --gpus 0\n"),
        (["keep", "--mem", "2%"], "there is no command 'keep'; use: sentinel start --help\n"),
        (["kill", "--force"], "there is no command 'kill'; use: sentinel stop\n"),
        (["release", "3"], "there is no command 'release'; use: sentinel pause 3\n"),
        (["stop", "3"], "`sentinel stop` ends the daemon; use: sentinel pause 3\n"),
        (["check", "0-1", "3"], "GPUs follow --gpus; use: sentinel check --gpus 0-1,3\n"),
        (["stop", "now"], "`sentinel stop` does not take 'now'\n"),
        (["start", "0", "1"], "GPUs follow --gpus; use: sentinel start --gpus 0,1\n"),
        (
            ["free", "2"],
            (
                "`sentinel free` prints GPUs (to stop occupying one: sentinel pause 2); "
                "use: sentinel free --count 2\n"
            ),
        ),
        (
            ["reload", "--socket", "x", "1"],
            "`sentinel reload` does not take '1'\n",
        ),
        (
            ["start", "--quiet", "--simulate", "4"],
            "--quiet has no value; it is followed by HOURS,...\n",
        ),
        (["exec", "--gpus", "0", "1", "--", "true"], "'1' stands before `--`: write --gpus 0,1\n"),
        (["exec", "2", "3", "--", "true"], "'2 3' stands before `--`: write --gpus 2,3\n"),
        (["set", "--gpus", "0", "1", "util=30%"], "'1' is no setting; GPUs are one list, as in"),
        (["--memory", "4G"], "--memory: '4G' may be 4GB or 4GiB; write one of them"),
        (["--chunk", "1g"], "--chunk: '1g' may be 1GB or 1GiB; write one of them"),
        (["frobnicate"], "there is no command 'frobnicate'; `sentinel --help` lists all"),
        (["--stndby", "on"], "`sentinel run` has no option --stndby; did you mean --standby?"),
        (["--wrkload", "x"], "`sentinel run` has no option --wrkload; did you mean --workload?"),
        (
            ["start", "--temp-critical-form", "9"],
            "`sentinel start` has no option --temp-critical-f",
        ),
        (["run", "--mem", "4GiB"], "`sentinel run` has no option --mem; did you mean --memory?\n"),
        (
            ["start", "--utilization", "5%"],
            "`sentinel start` has no option --utilization; did you mean --util?\n",
        ),
        (
            ["session", "start", "--utilisation", "5%"],
            "`sentinel session start` has no option --utilisation; did you mean --util?\n",
        ),
        (["exec", "--ngpus", "1"], "`sentinel exec` has no option --ngpus; did you mean --count?"),
        (
            ["exec", "--n-gpus", "1"],
            "`sentinel exec` has no option --n-gpus; did you mean --count?",
        ),
        (
            ["free", "--num-gpus", "1"],
            "`sentinel free` has no option --num-gpus; did you mean --count?",
        ),
        (
            ["reserve", "--NGPUS", "1"],
            "`sentinel reserve` has no option --NGPUS; did you mean --count?\n",
        ),
        (["logs", "--lines", "-1"], "--lines: '-1' is not a whole number from 0 to 1000000\n"),
        (["burnin", "--plan", "/nope.toml"], "--plan /nope.toml cannot be read: No such file or"),
        (["pause", "--until", "3h"], "`sentinel pause` has no option --until; did you mean --for?"),
        (["status", "--until", "3h"], "`sentinel status` has no option --until\n"),
        (["status", "--workload", "x"], "`sentinel status` has no option --workload\n"),
        (["restart", "--tpc", "1"], "`sentinel restart` has no option --tpc\n"),
        (["run", "--simulate", "99"], "--simulate: 99 is out of range\nallowed is from 1 to 64"),
        (
            ["exec", "--quiet"],
            "`sentinel exec` has no option --quiet; it is called --silent, since",
        ),
        (["--memory", "150%"], "--memory: '150%' is not a share; write one"),
        (["--chunk", "1MiB"], "--chunk: '1MiB' is out of range\nallowed is from 2MiB to 16GiB"),
        (["--workload", "nope"], "--workload: there is no workload 'nope'; known are elementwise,"),
        (["workloads", "try", "nope"], "there is no workload 'nope'; known are elementwise,"),
        (["workloads", "try", "hold", "--for", "1ms"], "--for: '1ms' is out of range\nallowed is"),
        (["workloads", "try", "hold", "--memory", "2"], "--memory: '2' has no unit; write 2% for"),
        (["config", "check", "/nowhere"], "/nowhere: cannot be read: No such file"),
        (["demo", "job", "--for", "soon"], "--for: 'soon' is not a duration; write one such as"),
    ],
)
def test_a_usage_error_has_a_message_and_exit_code_2(
    arguments: list[str], message: str, cli: CommandLine
) -> None:
    output = cli(*arguments, code=2)
    assert output.out == ""
    assert output.err.startswith(f"sentinel: {message}")
    assert "Traceback" not in output.err


def test_a_former_command_is_a_remedy_for_programs(cli: CommandLine) -> None:
    found = cli.json("unreserve", "1a2b", "--json", code=2)
    assert found["error"] == "there is no command 'unreserve'"
    assert found["remedy"] == "sentinel reserve --cancel 1a2b --json"


def test_each_command_that_is_meant_for_another_word_exists() -> None:
    table = shipped_table("sentinel.cli", "elsewhere.toml")
    for word, meant in table["commands"].items():
        assert word not in COMMANDS
        for command in meant:
            check_usage(command)


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (["help"], ["--help"]),
        (["help", "pause"], ["pause", "--help"]),
        (["help", "session", "start"], ["session", "start", "--help"]),
        (["version"], ["--version"]),
        (["-V"], ["--version"]),
    ],
)
def test_words_of_other_programs_do_the_same(
    words: list[str], same: list[str], cli: CommandLine
) -> None:
    assert cli(*words) == cli(*same)


def test_mcp_without_its_package_reports_what_to_install(
    monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "mcp"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "sentinel.cli.mcp_server", raising=False)
    monkeypatch.setitem(sys.modules, "mcp", None)
    output = cli("mcp", "--socket", "/nowhere", code=2)
    assert output.out == ""
    assert "pip install 'gpu-sentry[mcp]'" in output.err


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


def test_every_option_of_a_command_with_groups_is_in_its_help(cli: CommandLine) -> None:
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


def test_the_help_of_burnin_fits_a_page_and_has_what_is_its_own(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = cli("burnin", "--help").out
    assert len(text.splitlines()) <= 40
    own = {
        "--level",
        "--plan",
        "--report",
        "--resume",
        "--gpus",
        "--for",
        "--expect",
        "--expect-gpus",
    }
    assert listed(cli, "burnin", "--help") >= own
    assert "sentinel burnin --help-all shows the rest, such as --memory" in text


def test_burnin_does_not_list_what_it_refuses(cli: CommandLine) -> None:
    options = listed(cli, "burnin", "--help-all")
    refused = {"--workload", "--util", "--util-every", "--util-samples", "--power", "--duty"}
    assert not options & refused
    assert "--memory" in options
    for flag in ("--workload", "--util"):
        cli("burnin", flag, "50%", code=2)


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
        ["report", "--no-such-option"],
        ["fleet", "report", "--no-such-option"],
        ["run", "--simulate", "0"],
        ["start", "--poll", "1h"],
        ["demo", "-x"],
    ],
)
def test_wrong_options_exit_with_2_whatever_the_command(cli: CommandLine, words: list[str]) -> None:
    output = cli(*words, code=2)
    assert output.out == ""
    assert output.err.startswith("sentinel: ")


@pytest.mark.skipif(shutil.which("groff") is None, reason="there is no groff")
def test_groff_formats_the_manual_page_without_warnings(tmp_path: Path) -> None:
    file = tmp_path / "sentinel.1"
    file.write_text(document_program("generate").manual_page())
    done = run_program("groff", "-man", "-Tutf8", "-ww", "-rLL=100n", str(file), check=True)
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
