"""What holds for every command: --json, errors under it, closed pipes, encodings, crashes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pytest

from sentinel.cli.main import sentinel_command
from sentinel.errors import ExitCode
from tests.harness.command_line import CommandLine, CommandOutput
from tests.harness.example_run import ExampleRun
from tests.harness.gpu_environment import ROOT
from tests.harness.parameters import mostly_long
from tests.harness.programs import run_program
from tests.harness.stub_daemon import GPU, RESERVATION, STATUS, Reply, StubDaemon, stub_daemon
from tests.harness.timing import TIMEOUT_S

#: Commands that print no data of their own.
NO_DATA = {
    "completion",  # a script
    "config init",  # a file
    "demo",  # shows other commands
    "exec",  # becomes another command
    "install-unit",  # a file
    "mcp",  # speaks JSON-RPC alone
    *("slurm epilog", "slurm healthcheck", "slurm prolog"),  # a line for slurmd
    "top",  # draws a screen
}
#: Words by which each command fails without an effect, where nothing else is wrong.
WRONG: dict[str, Sequence[str]] = {
    "allocate": ("x", "much"),
    "reserve": ("--for", "soon"),
    "workloads goldens merge": ("/nowhere/x",),
    "workloads goldens check": ("/nowhere/x",),
    "config check": ("/nowhere/x",),
    "workloads try": ("nope",),
    "report": ("/nowhere/x",),
    "burnin attach": ("/nowhere/x",),
    "fleet burnin": ("--report", "/nowhere/x", "--batch", "0"),
    "fleet cancel": ("/nowhere/x",),
    "fleet report": ("/nowhere/x",),
    "fleet resume": ("/nowhere/x",),
    "fleet undrain": ("/nowhere/x",),
    "logs": ("--lines", "-1"),
    "demo job": ("--for", "soon"),
    "set": ("utl=50%",),
    "session start": ("train",),
    "session stop": ("train",),
}
OUTCOME = {"text": "so be it", "gpus": [GPU["uuid"]]}
#: Commands that print what a daemon replies, with the words that they need.
REPLIES: dict[str, Reply] = {
    "status": Reply(STATUS),
    "burnin status": Reply(STATUS),
    "free": Reply(STATUS),
    "reserve --list": Reply({"reservations": [RESERVATION]}),
    "pause --wait 0": Reply(OUTCOME),
    "resume": Reply(OUTCOME),
    "stop --wait 0": Reply(OUTCOME),
    "reload": Reply(OUTCOME),
    "reserve 0 --for 1h --wait 0": Reply(RESERVATION),
    "reserve --cancel 1a2b3c4d": Reply(OUTCOME),
    "set util=50%": Reply({**OUTCOME, "settings": []}),
    "session list": Reply({"sessions": []}),
}
ROUTES = {
    "status": "GET /v1/status",
    "burnin": "GET /v1/status",
    "free": "GET /v1/status",
    "reserve --list": "GET /v1/reservations",
    "reserve --cancel": "DELETE /v1/reservations/1a2b3c4d",
    "reserve 0": "PUT /v1/reservations/*",
    "set": "PATCH /v1/settings",
    "session": "GET /v1/sessions",
}


def leaves(command: click.Command, name: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield the commands that do something, with their names."""
    context = click.Context(command, info_name=name)
    if isinstance(command, click.Group):
        if name and command.invoke_without_command:
            yield name, command
        for one in command.list_commands(context):
            found = command.get_command(context, one)
            assert found is not None
            if not found.hidden:
                yield from leaves(found, f"{name} {one}".strip())
    else:
        yield name, command


COMMANDS = dict(leaves(sentinel_command))
FLAGS = {
    name: {option for param in command.params for option in param.opts}
    for name, command in COMMANDS.items()
}
WITH_JSON = sorted(set(COMMANDS) - NO_DATA)


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No daemon, and no folder of this user."""
    monkeypatch.setenv("SENTINEL_SOCKET", str(tmp_path / "s"))
    for name in ("STATE_DIRECTORY", "LOGS_DIRECTORY", "RUNTIME_DIRECTORY", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("SENTINEL_SIM_DIR", raising=False)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_that_prints_data_has_json(name: str) -> None:
    assert ("--json" in FLAGS[name]) is (name not in NO_DATA)


@pytest.mark.parametrize("section", ["Exit codes", "Other commands"])
def test_the_document_names_commands_that_exist(section: str) -> None:
    _, _, text = (ROOT / "docs/reference/commands.md").read_text().partition(f"\n## {section}\n")
    text, _, _ = text.partition("\n## ")
    named = {name.removeprefix("sentinel ") for name in re.findall(r"`([a-z][a-z ]+)`", text)}
    groups = {name.rpartition(" ")[0] for name in COMMANDS}
    assert named <= {*COMMANDS, *groups}


def test_the_document_lists_the_commands_that_take_a_number_of_simulated_gpus() -> None:
    text = (ROOT / "docs/reference/commands.md").read_text()
    _, _, listed = text.partition("take `--simulate N`:")
    listed, _, _ = listed.partition(". ")
    assert set(re.findall(r"`([^`]+)`", listed)) == {
        name for name, flags in FLAGS.items() if "--simulate" in flags
    }
    assert not any({"--simulate", "--simulated"} <= flags for flags in FLAGS.values())


@pytest.mark.parametrize("name", WITH_JSON)
def test_wrong_usage_under_json_is_one_object(name: str, cli: CommandLine) -> None:
    output = cli(*name.split(), "--json", "--no-such-option", code=None)
    error = only_object(output)
    assert error["code"] == "usage"
    message = f"`sentinel {name}` has no option --no-such-option"
    assert (error["exit_code"], error["error"]) == (output.code, message)
    assert output.code == 2
    assert "--json" in error["allowed"]


@pytest.mark.parametrize(
    "name", sorted({*WRONG, "status", "history", "restart", "reload", "pause"})
)
def test_a_failure_under_json_is_one_object(name: str, cli: CommandLine) -> None:
    output = cli(*name.split(), *WRONG.get(name, ()), "--json", code=None)
    error = only_object(output)
    assert error["exit_code"] == output.code
    assert output.code != 0
    assert error["error"]
    assert error["code"] in {"usage", "invalid", "not_running", "workload"}


def test_an_unknown_gpu_under_json_has_the_gpus_that_there_are(
    tmp_path: Path, cli: CommandLine
) -> None:
    with stub_daemon(tmp_path / "s"):
        error = only_object(cli("status", "7", "--json", code=4))
    assert (error["code"], error["allowed"]) == ("no_such_gpu", ["all", GPU["uuid"]])


@pytest.mark.parametrize("typed", sorted(REPLIES))
def test_a_success_under_json_is_one_object(typed: str, tmp_path: Path, cli: CommandLine) -> None:
    words = typed.split()
    route = ROUTES.get(words[0]) or ROUTES.get(" ".join(words[:2]), f"POST /v1/{words[0]}")
    with stub_daemon(tmp_path / "s") as daemon:
        daemon.replies[route] = REPLIES[typed]
        assert only_object(cli(*words, "--json"))["schema_version"] == 1


def only_object(output: CommandOutput) -> dict[str, Any]:
    """Return the only line of standard output, and see that standard error is empty."""
    assert output.err == ""
    (line,) = output.out.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


# --- pipes and encodings ---------------------------------------------------------------------


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[StubDaemon]:
    foreign = {"pid": 7, "name": "tr\u00e4in\u2026", "user": "j\u00fcrgen"}
    gpu = {**GPU, "name": "G\u00fcltig \u65e5", "stressor": "STOPPED", "processes": [foreign]}
    with stub_daemon(tmp_path / "s") as daemon:
        daemon.replies["GET /v1/status"] = Reply({**STATUS, "gpus": [gpu]})
        yield daemon


PRINTING = ["status", "status --json", "config show --offline", "completion bash", "--help"]


def run_into_closed_pipe(*words: str) -> tuple[int, str]:
    """Run Python with an output that is closed; return the exit code and the errors."""
    reader, writer = os.pipe()
    os.close(reader)
    done = run_program(sys.executable, *words, stdout=writer)
    os.close(writer)
    return done.returncode, done.stderr


@mostly_long("typed", PRINTING, quick=2)
def test_a_closed_pipe_ends_a_command_quietly(daemon: StubDaemon, typed: str) -> None:
    assert run_into_closed_pipe("-m", "sentinel", *typed.split()) == (0, "")


@pytest.mark.long
def test_a_pipe_that_closes_within_the_output_ends_a_command_quietly(daemon: StubDaemon) -> None:
    program = (
        "import sys; sys.stdout.reconfigure(line_buffering=True);"
        "from sentinel.cli.main import run_command_line;"
        "sys.exit(run_command_line(['config', 'show', '--offline']))"
    )
    assert run_into_closed_pipe("-c", program) == (0, "")


def test_a_verdict_that_found_no_reader_is_no_success(tmp_path: Path) -> None:
    """``sentinel report DIR > >(head -1)`` ended with 0 for a FAIL."""
    ExampleRun(wrong={1: 3}).write(tmp_path / "run")
    program = (
        "import sys; sys.stdout.reconfigure(line_buffering=True);"
        "from sentinel.cli.main import run_command_line;"
        f"sys.exit(run_command_line(['report', {str(tmp_path / 'run')!r}]))"
    )
    assert run_into_closed_pipe("-c", program) == (ExitCode.INCOMPLETE, "")


@pytest.mark.long
def test_a_full_disk_ends_a_report_that_had_no_stressors(tmp_path: Path) -> None:
    folder = ExampleRun().write(tmp_path / "run").path
    with Path("/dev/full").open("w") as full:
        done = run_program(sys.executable, "-m", "sentinel", "report", str(folder), stdout=full)
    assert done.returncode == ExitCode.USAGE
    assert "No space left on device" in done.stderr
    assert "stressors" not in done.stderr


@mostly_long(
    "typed, environment",
    [
        ("status", {"PYTHONIOENCODING": "ascii"}),
        ("status --list", {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}),
    ],
)
def test_what_the_encoding_does_not_have_is_replaced(
    daemon: StubDaemon, typed: str, environment: dict[str, str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sentinel", *typed.split()],
        env={**os.environ, **environment},
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"G?ltig ?" in done.stdout


# --- crashes ---------------------------------------------------------------------------------


def test_a_crash_of_a_client_does_not_say_that_stressors_have_ended(
    monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.delitem(sys.modules, "sentinel.supervisor.loop", raising=False)
    monkeypatch.setattr("sentinel.cli.daemon.status._lines", lambda *_, **__: 1 / 0)
    error = cli("status", code=2).err
    assert error.startswith("Traceback")
    assert error.endswith("sentinel: this command failed by a bug in sentinel\n")


def test_a_crash_beside_a_supervisor_says_that_stressors_have_ended(
    monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    import sentinel.supervisor.loop  # noqa: F401 - as `run` has it

    monkeypatch.setattr("sentinel.cli.daemon.status._lines", lambda *_, **__: 1 / 0)
    assert cli("status", code=2).err.endswith("bug in sentinel; all its stressors have ended\n")


def test_a_crash_under_json_is_an_object_and_a_traceback(
    monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setattr("sentinel.cli.daemon.status._print_json", lambda *_, **__: 1 / 0)
    output = cli("status", "--json", code=2)
    assert json.loads(output.out)["code"] == "internal"
    assert "ZeroDivisionError" in output.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("completion tcsh", "SHELL: 'tcsh' is not one of bash, zsh, fish"),
        ("completion bsh", "SHELL: 'bsh' is not one of bash, zsh, fish; did you mean bash?"),
        ("completion", "SHELL is missing; it is one of bash, zsh, fish"),
        ("status --color offf", "--color: 'offf' is not one of auto, always, never"),
    ],
)
def test_a_wrong_word_is_answered_with_those_that_are_allowed(
    arguments: str, text: str, cli: CommandLine
) -> None:
    assert cli(*arguments.split(), code=2).err.splitlines()[0] == f"sentinel: {text}"


# --- simulated GPUs, and lists of GPUs --------------------------------------------------------

#: Every command, with those that only group others: `sentinel session --simulated` is typed, too.
ALL = [*COMMANDS, *sorted({name.rpartition(" ")[0] for name in COMMANDS if " " in name})]
#: What each command says of an option for simulated GPUs that it does not have.
INSTEAD = {
    "--simulate": "; for the daemon with simulated GPUs, whatever their number: --simulated",
    "--simulated": "; for N simulated GPUs: --simulate N",
}


def _refusal(name: str, flag: str) -> str:
    other = next(one for one in INSTEAD if one != flag)
    if name == "run":
        return f"; it follows a command, as in `sentinel status {flag}`"
    if other in FLAGS.get(name, ()):
        return INSTEAD[flag]
    below = [one for one in COMMANDS if one.startswith(f"{name} ") and flag in FLAGS[one]]
    return "; it follows a command, as in `" if below else ", and none for simulated GPUs: omit it"


@pytest.mark.parametrize("flag", sorted(INSTEAD))
def test_both_options_for_simulated_gpus_are_taken_or_refused_with_what_to_give(
    flag: str, cli: CommandLine
) -> None:
    value = ["4"] if flag == "--simulate" else []
    wrong = [f"{flag}=x"] if flag == "--simulated" else [flag, "four"]
    expected = "takes no value" if flag == "--simulated" else ": 'four' is not a number; allowed is"
    for name in sorted(set(ALL)):
        if flag not in FLAGS.get(name, ()):
            output = cli(*name.split(), flag, *value, code=None)
            said = f"`sentinel {name}` has no option {flag}{_refusal(name, flag)}"
            assert said in output.err
            assert output.code == 2, name
            continue
        assert f"sentinel: {flag}{' ' * (expected[0] != ':')}{expected}" in (
            cli(*name.split(), *wrong, code=None).err
        ), name
        # It is taken: what is wrong is another option.
        assert "no option --no-such-option" in (
            cli(*name.split(), flag, *value, "--no-such-option", code=None).err
        ), name


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("start --simulate", "--simulate has no value; it is followed by N"),
        ("check --simulate", "--simulate has no value; it is followed by N"),
        ("start --simulate 65", "--simulate: 65 is out of range\nallowed is from 1 to 64"),
        (
            "--simulate 4 status",
            "options before the command status are of `sentinel run`: put them after it",
        ),
    ],
)
def test_a_number_of_simulated_gpus_that_is_wrong_is_explained(
    words: str, said: str, cli: CommandLine
) -> None:
    output = cli(*words.split(), code=None)
    assert output.err.startswith(f"sentinel: {said}\n")
    assert output.code == 2


@pytest.mark.parametrize("name", sorted(one for one, flags in FLAGS.items() if "--gpus" in flags))
def test_every_list_of_gpus_may_have_ranges(name: str, cli: CommandLine) -> None:
    words = {
        "workloads try": ["gemm"],
        "allocate": ["x", "1GiB"],
        "config show": ["--offline"],
    }.get(name, [])
    ended = ["--", "true"] if name == "exec" else []
    error = cli(*name.split(), *words, "--gpus", "3-0", *ended, code=None).err
    assert "the range '3-0' ends before it begins" in error
