"""The commands and what they have in common: errors in one shape, and flags that belong to run."""

from __future__ import annotations

import difflib
import importlib
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from sentinel.errors import ExitCode, SentinelError
from sentinel.protocol.version import __version__

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


#: Each command by what it is for, with the module that has it, under a name where it has several.
SECTIONS = {
    "The daemon": {
        "run": ("sentinel.cli.daemon.run", "Keep idle GPUs busy in the foreground (the default)."),
        "start": (
            "sentinel.cli.daemon.start",
            "Start the daemon, or let the one that runs occupy.",
        ),
        "stop": ("sentinel.cli.daemon.control:stop", "Let go of every GPU; the daemon stays."),
        "restart": (
            "sentinel.cli.daemon.control:restart",
            "Begin anew with other settings; the daemon stays.",
        ),
        "reload": ("sentinel.cli.daemon.control:reload_", "Read the settings anew: all or none."),
        "shutdown": (
            "sentinel.cli.daemon.control:shutdown",
            "Let go of every GPU and end the daemon.",
        ),
    },
    "Looking": {
        "status": ("sentinel.cli.daemon.status", "Show every GPU, the daemon and its last words."),
        "top": (
            "sentinel.cli.daemon.top",
            "The same live, with keys to pause, resume and reserve.",
        ),
        "page": (
            "sentinel.cli.tools.web",
            "Print the address of the web page, to open in a browser.",
        ),
        "history": ("sentinel.cli.daemon.history", "Show who used which GPU when, and how it did."),
        "logs": ("sentinel.cli.daemon.logs", "Show the end of the daemon's log, and follow it."),
    },
    "Handing over": {
        "pause": ("sentinel.cli.daemon.control:pause", "Let go of GPUs and keep off for a while."),
        "resume": ("sentinel.cli.daemon.control:resume", "End a pause."),
        "reserve": ("sentinel.cli.daemon.reserve:reserve", "Have GPUs kept free for you."),
        "unreserve": ("sentinel.cli.daemon.reserve:unreserve", "Give back what you reserved."),
        "reservations": ("sentinel.cli.daemon.reserve:reservations", "List what is reserved."),
        "allocate": (
            "sentinel.cli.daemon.reserve:allocate",
            "Have memory of a GPU kept for a process.",
        ),
        "deallocate": ("sentinel.cli.daemon.reserve:deallocate", "Give that memory back."),
        "exec": ("sentinel.cli.daemon.exec_", "Run a command on GPUs that are kept free for it."),
        "mcp": ("sentinel.cli.tools.mcp", "Give agents tools to see, pause and reserve GPUs."),
    },
    "Setting up and proving": {
        "config": ("sentinel.cli.tools.config", "Show what is set and by whom, or check a file."),
        "doctor": ("sentinel.cli.tools.doctor", "Say whether this host is safe for sentinel."),
        "workloads": (
            "sentinel.cli.tools.workloads",
            "List the workloads and options, or try one.",
        ),
        "selftest": (
            "sentinel.cli.tools.selftest",
            "Prove on one GPU that flipped bits are found.",
        ),
        "goldens": ("sentinel.cli.tools.goldens", "List the golden checksums, or carry them over."),
        "completion": ("sentinel.cli.manpage:completion", "Print the completion for a shell."),
    },
    "Trying it out": {
        "simulate-job": ("sentinel.cli.tools.simulate_job", "Be a foreign job on a simulated GPU."),
        "demo": ("sentinel.cli.tools.demo", "Watch a hand-over on two simulated GPUs."),
    },
}
COMMANDS = {name: row for section in SECTIONS.values() for name, row in section.items()}


class _Commands(click.Group):
    """Commands imported on dispatch; what is no command belongs to ``run``."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name or "command")
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # for the completion, which asks what could be typed
            return super().parse_args(ctx, args)
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(COMMANDS)}"
            raise click.UsageError(f"there is no command {args[0]!r}{hint}")
        if not args or (args[0] not in COMMANDS and args[0] not in {"--help", "-h", "--version"}):
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):  # run's, which need no command
            run = self.get_command(ctx, "run")
            assert run is not None  # noqa: S101 - it stands above
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
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in section.items()])


@click.command(
    cls=_Commands,
    name="sentinel",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 doctor found warnings, goldens a conflict, a selftest a check "
    "that fails, a workload misbehaved, or GPUs were not to be had or not free in time, 2 doctor "
    "found problems, or wrong usage, 3 no daemon runs, or a trial or a selftest could "
    "not be finished, 4 no such GPU or not allowed, 5 no driver, 7 something could not be killed, "
    "75 another sentinel holds the GPU, 130 and 143 ended by a signal before it was ready or by a "
    "second Ctrl+C.",
)
@click.version_option(__version__, prog_name="sentinel")
def sentinel_command() -> None:
    """Keep idle NVIDIA GPUs busy, and give each back the instant somebody else needs it.

    Options without a command are those of `run`: see `sentinel run --help`. A GPU is named by
    nvidia-smi's index, by its UUID or the beginning of it, or by its PCI address.
    """


def run_command_line(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; an error is one message on standard error."""
    try:
        result = sentinel_command.main(list(arguments), prog_name="sentinel", standalone_mode=False)
    except SentinelError as error:
        print(f"sentinel: {error}", file=sys.stderr)
        return int(error.exit_code)
    except click.ClickException as error:
        print(f"sentinel: {error.format_message()}", file=sys.stderr)
        context = getattr(error, "ctx", None)  # an error of usage knows its command
        print(f"Try: {context.command_path if context else 'sentinel'} --help", file=sys.stderr)
        return int(ExitCode.USAGE)
    except click.exceptions.Abort:
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        return int(ExitCode.OK)
    except Exception:  # noqa: BLE001 - a bug of ours is exit code 2, whatever it is
        traceback.print_exc()
        print("sentinel: this is a bug in sentinel; all its stressors are gone", file=sys.stderr)
        return int(ExitCode.USAGE)
    return int(result or 0)
