"""A command that a message names is a command that works, in the situation that prints it."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.harness.burnin_run import CHECKED, BurninRun, plan_of
from tests.harness.command_line import CommandOutput
from tests.harness.daemon_harness import Daemon
from tests.harness.printed_commands import (
    check_usage,
    commands_in,
    commands_of_source,
    messages_of_source,
)
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

PLAN = plan_of("short", ("first", CHECKED, "seconds = 2"), ("second", CHECKED, "seconds = 3000"))


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What prints commands."""

    #: The words of the command that prints them, or what runs it.
    what: str | Callable[[Daemon], CommandOutput]
    #: The commands, as the source has them.
    named: tuple[str, ...]
    #: Whether a daemon with two GPUs runs, and its further flags.
    daemon: tuple[str, ...] | None = ()
    #: What stands for the words that a user fills in.
    filled: tuple[tuple[str, str], ...] = ()
    #: Their exit codes.
    codes: tuple[int, ...] = (0,)


def _during_a_burnin(daemon: Daemon, *words: str, ends: bool = False) -> CommandOutput:
    """Run a command while the daemon burns its GPUs in; or end that first."""
    burnin = BurninRun(daemon.host, PLAN, gpus=2, settings=())
    with daemon.start_command(*burnin.command()[3:]) as process:
        eventually(lambda: burnin.events("burnin.phase_started"))
        output = daemon.run_unchecked(*words)
        if ends:
            process.send_signal(signal.SIGINT)
            output = CommandOutput(0, process.communicate(timeout=2 * TIMEOUT_S)[0], "")
        else:
            process.kill()  # the run goes on without this terminal
    return output


def _resumed_with_other_memory(daemon: Daemon) -> CommandOutput:
    cut = _cut_short(daemon)
    daemon.run("set", "memory=20%")
    (line,) = commands_in(cut.out)
    return daemon.run_unchecked(*shlex.split(line))


def _cut_short(daemon: Daemon) -> CommandOutput:
    output = _during_a_burnin(daemon, "status", ends=True)
    text = output.out.partition("go on with: ")[2].partition("\n")[0]
    return CommandOutput(0, text, "")


def _burnin(*flags: str) -> Callable[[Daemon], CommandOutput]:
    def run(daemon: Daemon) -> CommandOutput:
        words = BurninRun(daemon.host, PLAN, gpus=2, settings=()).command()[3:]
        return daemon.run_unchecked(*words, *flags)

    return run


SITUATIONS = [
    Situation(what="status", named=("start --simulate N",), daemon=None, filled=(("N", "2"),)),
    Situation(what="logs", named=("start",), daemon=None),
    Situation(what="start --simulate 2 --paused", named=("pause",)),
    Situation(what="start --simulate 2 --rearm 1s", named=("set",), codes=(2,)),
    Situation(what="start --config /dev/null", named=("reload",)),
    Situation(what="pause 0", named=("resume",)),
    Situation(what="set", named=("set memory=50%",)),
    Situation(what="start --simulate 3", named=("stop --socket {}",)),
    Situation(what="set --save access-users=operate", named=("restart",)),
    Situation(
        what="set poll=2s", named=("set --save {}=VALUE",), filled=(("poll=VALUE", "poll=2s"),)
    ),
    Situation(what="reserve 0 --for 1m", named=("reserve --cancel {}",)),
    Situation(what="allocate", named=("allocate llm 40GiB",), codes=(1,)),  # it has 16 GiB
    Situation(what="session start mine --gpus 0 memory=50%", named=("session stop {}",)),
    Situation(
        what="session start mine --gpus 0 memory=50%", named=("resume {}",), daemon=("--paused",)
    ),
    Situation(what=_burnin("--memory", "50%"), named=("stop",)),
    Situation(what=_burnin("--simulate", "3"), named=("stop",)),
    Situation(what=_resumed_with_other_memory, named=("stop",)),
    Situation(
        what=lambda one: _during_a_burnin(one, "set", "memory=50%"), named=("burnin cancel",)
    ),
    Situation(what="run --simulated", named=("status {}",)),
    Situation(
        what="restart --memory 50%",
        named=("set {}=VALUE",),
        filled=(("memory=VALUE", "memory=50%"),),
    ),
    Situation(
        what=lambda one: one.run_unchecked(
            "config", "init", str(one.host.folder / "new file.toml")
        ),
        named=("config check {}",),
        daemon=None,
    ),
]

#: The other commands of the source, and why they are not run here.
OF_CLUSTERS, TORCH, BUG = "of many hosts", "needs torch to be missing", "needs a bug"
ELSEWHERE = {
    "session start --help-all": "of the API alone: a command refuses the setting itself",
    "health": "of a check's result",
    "health --acknowledge GPU": "of a check's action; integration/api/test_control.py acknowledges",
    "history --events": "of a check's result",
    "health --acknowledge GPU --reason TEXT": "of a check's result",
    "burnin attach {}": "integration/burnin/test_daemon_burnin.py",
    "burnin attach DIR": "integration/burnin/test_daemon_burnin.py",
    "burnin attach": "follows to the end; integration/burnin/test_daemon_burnin.py",
    "burnin --resume {}": "runs a plan to its end; integration/burnin/test_burnin_command.py",
    "burnin": "takes ten minutes",
    "report {}": "needs a recording process that has failed",
    "run": "names what has the options; integration/cli/test_every_command.py has the message",
    "pause {}": "answers words that are no command; unit/cli/test_main.py has the rows",
    "session stop": "of a help text",
    "start --simulate 2": "needs a missing driver; integration/cli/test_set_and_session.py",
    "set --save {}": "of a client of another user; integration/api/test_access.py",
    "reserve --list": "needs a queue of many requests",
    "allocate --cancel {}": "the holder is the process that prints it",
    "set --save api.tcp=127.0.0.1:8765": "opens a port that another test may have",
    "set --save": "of a help text",
    "set --save --unset KEY": "of a help text",
    "status --watch 2s": "does not end",
    "status --list": "needs numbers that CUDA does not explain; integration/cli/test_reserve.py",
    "status": BUG,
    "logs": BUG,
    "config check": "of a help text",
    "config init": "writes the file of the user, or of the host as root",
    "config show --offline": "needs a daemon of another user",
    "config init -": "of a long list",
    "report DIR --json --output NODE.json": OF_CLUSTERS,
    "fleet report --watch {}": OF_CLUSTERS,
    "fleet cancel {}": OF_CLUSTERS,
    "fleet resume {}": OF_CLUSTERS,
    "fleet report --drain": OF_CLUSTERS,
    "fleet cancel": OF_CLUSTERS,
    "install-unit --print": "not as root",
    "workloads": "a workload that fails",
    "doctor": TORCH,
    "run --monitor": TORCH,
}


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda one: " ".join(one.named))
def test_each_command_that_is_printed_works_there(
    daemon: Daemon, situation: Situation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SENTINEL_WORKLOAD", "hold")
    if situation.daemon is not None:
        daemon.start(2, *situation.daemon)
    what = situation.what
    output = daemon.run_unchecked(*what.split()) if isinstance(what, str) else what(daemon)
    verbs = {command.split()[0] for command in situation.named}
    found = commands_in(f"{output.out}\n{output.err}")
    printed = [command for command in found if command.split()[0] in verbs]
    assert len(printed) >= len(situation.named), output
    for command in printed:
        words = dict(situation.filled)
        done = daemon.run_unchecked(*(words.get(word, word) for word in shlex.split(command)))
        assert done.code in situation.codes, (command, done)


def test_each_command_that_the_source_names_exists_and_has_a_row() -> None:
    """Otherwise add a situation that prints it."""
    places = commands_of_source()
    assert len(places) > 40
    for command in places:
        check_usage(command)
    run = {name for situation in SITUATIONS for name in situation.named}
    wrong = {one: place for one, place in places.items() if (one in run) == (one in ELSEWHERE)}
    assert not wrong


@pytest.mark.long
def test_no_message_names_an_interpreter() -> None:
    """`python` is often another one than that of sentinel; what the demo runs, it shows."""
    named = [place for place, text in messages_of_source() if "python -m sentinel" in text]
    assert all(place.startswith("sentinel/cli/tools/demo.py:") for place in named), named
