"""Dispatch the commands, and report errors; options without a command belong to ``run``."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from sentinel.cli import elsewhere, failures
from sentinel.cli.display.output import degrade_streams
from sentinel.errors import ConfigError, ExitCode, SentinelError
from sentinel.host.process_setup import open_missing_streams
from sentinel.protocol import __version__

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


#: The section of the commands that are not for people.
_FOR_PROGRAMS = "For other programs"
#: The commands by section: the module in this package with the name in it, and a summary.
SECTIONS = {
    "Burn-in": {
        "burnin": ("daemon.burnin:command", "Burn GPUs in, with a verdict for each."),
        "health": (
            "daemon.health:command",
            "Show when each GPU was last proved good, and by what.",
        ),
        "report": ("tools.report:command", "Print the report of a burn-in, or compare two."),
        "fleet": ("tools.fleet:command", "Burn many hosts in, and judge them together."),
    },
    "The daemon": {
        "run": ("daemon.run:command", "Occupy idle GPUs in the foreground (the default)."),
        "start": ("daemon.start:command", "Start the daemon."),
        "stop": ("daemon.control:stop", "Release every GPU and end the daemon."),
        "restart": (
            "daemon.start:restart",
            "End the daemon, and start it again as it was started.",
        ),
        "reload": ("daemon.control:reload_", "Read the settings again."),
        "set": ("daemon.control:set_", "Change settings of the daemon or of some GPUs."),
        "session": ("daemon.control:session", "Give some GPUs settings of their own under a name."),
        "install-unit": (
            "tools.install_unit:command",
            "Install the systemd unit of the daemon, or print it.",
        ),
    },
    "Status": {
        "status": (
            "daemon.status:status",
            "Show every GPU, its processes and the daemon; or its web page.",
        ),
        "top": ("daemon.status:top", "Show every GPU live; pause, resume and reserve."),
        "free": ("daemon.free:free", "Print the GPUs that a job would get now."),
        "history": ("daemon.history:history", "Show past use and readings of the GPUs."),
        "logs": ("daemon.history:logs", "Show the end of the daemon's log, and follow it."),
    },
    "Hand-over": {
        "pause": ("daemon.control:pause", "Release GPUs and do not occupy them."),
        "resume": ("daemon.control:resume", "End a pause."),
        "reserve": ("daemon.reserve:reserve", "Reserve GPUs; list and cancel reservations."),
        "allocate": (
            "daemon.reserve:allocate",
            "Allocate memory of a GPU to a process; list and cancel that.",
        ),
        "exec": ("daemon.reserve:exec_", "Run a command on reserved GPUs."),
    },
    "Configuration and tests": {
        "config": ("tools.config:command", "Show the settings, check a file, or write one."),
        "doctor": ("tools.doctor:command", "Check whether sentinel can run on this host."),
        "check": ("tools.check:command", "Check the health of the GPUs in seconds, idle or not."),
        "workloads": (
            "tools.workloads:command",
            "List the workloads, try one, or prove what their checks find.",
        ),
        "demo": ("tools.demo:command", "Show a hand-over on two simulated GPUs."),
    },
    _FOR_PROGRAMS: {
        "slurm": (
            "tools.programs:slurm_command",
            "Serve the prolog, epilog and health check of Slurm.",
        ),
        "mcp": ("tools.programs:mcp_command", "Serve tools for agents (Model Context Protocol)."),
        "completion": ("completion:completion", "Print the completion for a shell."),
    },
}
#: The options of the program itself; all others are those of `run`.
_OWN_OPTIONS = ("--help", "-h", "--version", "-V")
COMMANDS = {name: row for section in SECTIONS.values() for name, row in section.items()}
#: The commands whose exit code is a verdict: without a reader, none was given.
_JUDGING = frozenset({"check", "burnin", "report", "fleet", "health"})


def _unknown_command(word: str, rest: Sequence[str]) -> failures.UnknownCommandError:
    """Return the error that names the command that was meant.

    Args:
        word: What is no command.
        rest: What follows it.
    """
    what = f"there is no command {word!r}"
    if meant := elsewhere.commands_for(word, rest, sentinel_command):
        stops = meant[0].split()[1] in {"pause", "stop"}
        pid = failures.for_pid(what, rest) if stops else None
        what, remedy = pid or (what, " or ".join(meant))
        return failures.UnknownCommandError(what, tuple(COMMANDS), remedy)
    from sentinel.config.sources import nearest  # slow to import

    near = nearest(word, COMMANDS) or [name for name in COMMANDS if _differ_in_one(name, word)]
    hint = f"did you mean {' or '.join(near)}?" if near else "`sentinel --help` lists all"
    return failures.UnknownCommandError(f"{what}; {hint}", tuple(COMMANDS))


def _differ_in_one(one: str, other: str) -> bool:
    """Check for one wrong letter, which makes short words less similar than long ones."""
    return len(one) == len(other) and sum(map(str.__ne__, one, other)) == 1


class _ReaderGoneError(Exception):
    """The reader of the output has ended, such as `head -1`."""


@contextlib.contextmanager
def _quiet_end() -> Iterator[None]:
    """Translate a closed pipe, for which click would exit with 1."""
    try:
        yield
    except BrokenPipeError as error:
        raise _ReaderGoneError from error


class _Commands(click.Group):
    """A group that imports a command on dispatch; ``run`` is the default."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(f"sentinel.cli.{module}"), name)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # for the completion
            options_of_run = args[:1] and args[0].startswith("-") and args[0] not in _OWN_OPTIONS
            return super().parse_args(ctx, ["run", *args] if options_of_run else args)
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        elif args[:1] == ["version"]:
            args = ["--version", *args[1:]]
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            raise _unknown_command(args[0], args[1:])
        if not args or (args[0] not in COMMANDS and args[0] not in _OWN_OPTIONS):
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:  # prints --help
        with _quiet_end():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _quiet_end():
            return super().invoke(ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):  # options of run
            run = self.get_command(ctx, "run")
            assert run is not None  # noqa: S101 - it is in COMMANDS
            return [
                *click.Command.shell_complete(self, ctx, incomplete),
                *run.shell_complete(ctx, incomplete),
            ]
        return [
            CompletionItem(name, help=text)
            for name, (_, text) in COMMANDS.items()
            if name.startswith(incomplete)
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for title, section in SECTIONS.items():
            if title == _FOR_PROGRAMS:
                continue
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in section.items()])


@click.command(
    cls=_Commands,
    name="sentinel",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, passed or running; 1 a negative result: warnings of doctor, a "
    "failed trial or self-test, a conflict of goldens, or GPUs that are not available in time; "
    "2 wrong usage or configuration, or problems found by doctor; 3 no daemon runs, an "
    "incomplete trial or self-test, or an untested GPU of health; 4 no such GPU, or not permitted; "
    "5 no driver or NVML; 7 a child could not be killed; 75 another sentinel holds the GPU; "
    "130, 143 a signal before the start was complete, or a second signal. Those of check: "
    "0 passed, maybe with warnings; 1 failed; 2 sentinel failed; 3 incomplete.",
)
@click.version_option(__version__, "-V", "--version", prog_name="sentinel")
def sentinel_command() -> None:
    """Keep idle NVIDIA GPUs busy, and yield each one as soon as a foreign process appears.

    Options without a command are those of `run`: see `sentinel run --help`. A GPU is selected by
    nvidia-smi index or a range of them (0-3), UUID or a unique prefix of it, or PCI address.

    For other programs: `slurm` (prolog and epilog of Slurm), `mcp` (agents) and `completion`
    (shells).
    """


def run_command_line(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; report an error."""
    open_missing_streams()
    degrade_streams()
    try:
        code = _run(list(arguments))
        failures.flush_or_discard()
    except _ReaderGoneError:
        failures.discard_output()
        judges = bool(_JUDGING.intersection(arguments[:1]))
        return int(ExitCode.INCOMPLETE if judges else ExitCode.OK)
    except OSError:
        return int(ExitCode.USAGE)
    return code


def _check_texts() -> None:
    """Refuse to run without docstrings: they are the texts of commands and of checks.

    Raises:
        ConfigError: Python has removed them.
    """
    if sys.flags.optimize > 1:
        what = "python -OO, or PYTHONOPTIMIZE=2, removes the texts of commands and checks"
        raise ConfigError(what, "Run it with -O at most.")


def _run(arguments: list[str]) -> int:
    try:
        _check_texts()
        result = sentinel_command.main(arguments, prog_name="sentinel", standalone_mode=False)
    except SentinelError as error:
        return failures.report_error(error, arguments)
    except click.ClickException as error:
        return failures.report_usage(error, arguments, sentinel_command)
    except click.exceptions.Abort:
        return int(ExitCode.INTERRUPTED)
    except _ReaderGoneError:
        raise
    except Exception as error:  # noqa: BLE001 - a bug of sentinel is exit code 2
        return failures.report_bug(error, arguments)
    return int(result or 0)
