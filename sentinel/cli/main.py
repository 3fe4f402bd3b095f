"""The commands and what they have in common: errors in one shape, and flags that belong to run."""

from __future__ import annotations

import difflib
import importlib
import sys
import traceback
from collections.abc import Sequence

import click

from sentinel import __version__
from sentinel.errors import ExitCode, SentinelError

__all__ = ["run_command_line"]

#: Each command, the module that has it, and what it is for.
COMMANDS = {
    "run": ("sentinel.cli.run", "Keep idle GPUs busy in the foreground (the default)."),
    "start": ("sentinel.cli.start", "Start the daemon, or let the one that runs occupy."),
    "config": ("sentinel.cli.config", "Show what is set and by whom, or check a file."),
    "goldens": ("sentinel.cli.goldens", "List the golden checksums, or carry them over."),
    "doctor": ("sentinel.cli.doctor", "Say whether this host is safe for sentinel."),
    "workloads": ("sentinel.cli.workloads", "List the workloads and their options, or try one."),
    "selftest": ("sentinel.cli.selftest", "Prove on one GPU that flipped bits are found."),
    "simulate-job": ("sentinel.cli.simulate_job", "Be a foreign job on a simulated GPU."),
    "demo": ("sentinel.cli.demo", "Watch a hand-over on two simulated GPUs, half a minute."),
}


class _Commands(click.Group):
    """Commands imported on dispatch; what is no command belongs to ``run``."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        command: click.Command = module.command
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(COMMANDS)}"
            raise click.UsageError(f"there is no command {args[0]!r}{hint}")
        if not args or (args[0] not in COMMANDS and args[0] not in {"--help", "-h", "--version"}):
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])
        run = self.get_command(ctx, "run")
        if run is not None:
            with formatter.section("Options of run, which need no command"):
                records = [param.get_help_record(ctx) for param in run.params]
                formatter.write_dl([record for record in records if record])


@click.command(
    cls=_Commands,
    name="sentinel",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 doctor found warnings, goldens a conflict, a selftest a check "
    "that fails, or a workload misbehaved, 2 doctor found problems, or wrong usage, 3 a trial of "
    "a workload or a selftest could not be finished, 4 no such GPU or not allowed, 5 no driver, 7 "
    "something could not be killed, 75 another sentinel holds the GPU, 130 and 143 ended by a "
    "signal before it was ready or by a second Ctrl+C.",
)
@click.version_option(__version__, prog_name="sentinel")
def _sentinel() -> None:
    """Keep idle NVIDIA GPUs busy, and give each back the instant somebody else needs it."""


def run_command_line(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; an error is one message on standard error."""
    try:
        result = _sentinel.main(list(arguments), prog_name="sentinel", standalone_mode=False)
    except SentinelError as error:
        print(f"sentinel: {error}", file=sys.stderr)
        return int(error.exit_code)
    except click.ClickException as error:
        print(f"sentinel: {error.format_message()}", file=sys.stderr)
        print("Try: python -m sentinel --help", file=sys.stderr)
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
