"""Report how a command failed: on standard error, or as the JSON object that --json promised."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from sentinel.cli.display.output import print_json
from sentinel.cli.options.command_classes import VerdictCommand
from sentinel.errors import ExitCode, SentinelError
from sentinel.host.process_setup import explain_exhaustion

#: How click's message for an unknown command of a group begins.
_NO_COMMAND = "No such command "


class UnknownCommandError(click.UsageError):
    """There is no such command.

    Args:
        message: The error.
        known: The commands that there are.
    """

    def __init__(self, message: str, known: Sequence[str]) -> None:
        super().__init__(message)
        self.known = tuple(known)


#: The options that name a daemon.
_OF_CLIENTS = {"--connect", "--token", "--socket", "--simulated"}
#: A module that is loaded exactly where stressors are children of this process.
_SUPERVISOR = "sentinel.supervisor.loop"


def wants_json(arguments: Sequence[str]) -> bool:
    """Check whether a command line asks for JSON; what follows ``--`` is of another program."""
    words = list(arguments)
    own = words[: words.index("--")] if "--" in words else words
    return "--json" in own and own[0] != "exec"


def error_fields(error: SentinelError) -> dict[str, Any]:
    """Return the fields by which every command with --json reports an error."""
    fields = _fields(error.what, error.code, error.remedy, error.allowed, error.exit_code)
    if error.parts:
        fields["errors"] = [error_fields(part) for part in error.parts]
    return fields


def _fields(
    what: str, code: str, remedy: str = "", allowed: Sequence[str] = (), exit_code: int = 2
) -> dict[str, Any]:
    return {
        "error": what,
        "code": code,
        "remedy": remedy or None,
        "allowed": list(allowed) or None,
        "exit_code": int(exit_code),
    }


def _report(fields: dict[str, Any], text: str, arguments: Sequence[str]) -> int:
    """Report an error as its JSON object or as a text, and return its exit code."""
    if wants_json(arguments):
        print_json(fields)
    else:
        print(f"sentinel: {text}", file=sys.stderr)
    return int(fields["exit_code"])


def report_error(error: SentinelError, arguments: Sequence[str]) -> int:
    """Report an error of sentinel and return the exit code."""
    return _report(error_fields(error), str(error), arguments)


def report_usage(error: click.ClickException, arguments: Sequence[str]) -> int:
    """Report wrong usage and return the exit code."""
    context = getattr(error, "ctx", None)  # a usage error has its command
    path = context.command_path if context else "sentinel"
    code, what = int(ExitCode.USAGE), _usage_text(error)
    if context is not None and isinstance(context.command, VerdictCommand):
        if "--nagios" in arguments:  # Nagios shows the standard output
            from sentinel.burnin.checks.node_checks import nagios_unknown  # slow to import

            print(nagios_unknown(what))
        code = context.command.usage_exit_code(arguments)
    fields = _fields(what, "usage", f"{path} --help", _allowed(error), code)
    return _report(fields, f"{what}\nTry: {path} --help", arguments)


def report_bug(error: Exception, arguments: Sequence[str]) -> int:
    """Report an unexpected exception, or a resource that ran out; return the exit code.

    Only a process that ran a supervisor had stressors: a client that fails changes nothing.
    """
    ended = "; all its stressors have ended" if _SUPERVISOR in sys.modules else ""
    why = what = explain_exhaustion(error)
    if why is None:
        import traceback  # slow to import

        traceback.print_exception(error)
        why = "this is a bug in sentinel" if ended else "this command failed by a bug in sentinel"
        what = f"{why}: {type(error).__name__}: {error}"
    return _report(_fields(what or "", "internal"), f"{why}{ended}", arguments)


def flush_or_discard() -> None:
    """Flush standard output; discard the rest if its reader is gone."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
    except (OSError, ValueError) as error:  # a full disk, or a stream that was closed
        with contextlib.suppress(OSError, ValueError):
            print(f"sentinel: the output cannot be written: {error}", file=sys.stderr)
        discard_output()
        raise


def discard_output() -> None:
    """Lead standard output to /dev/null, because its reader is gone."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def _usage_text(error: click.ClickException) -> str:
    """Return the message of a usage error, for an unknown option with the nearest names."""
    if isinstance(error, click.BadParameter) and error.param is not None:
        param = error.param
        name = param.opts[0] if isinstance(param, click.Option) else param.human_readable_name
        if not isinstance(error, click.MissingParameter):
            return f"{name}: {error.message}"
        words = ", ".join(_allowed(error))
        return f"{name} is missing{f'; it is one of {words}' if words else ''}"
    if known := _commands_of_group(error):
        unknown = error.message.removeprefix(_NO_COMMAND).rstrip(".")
        return f"there is no command {unknown}; there are: {', '.join(known)}"
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return error.format_message()
    return _unknown_option(error.option_name, error.ctx)


def _unknown_option(name: str, context: click.Context) -> str:
    """Return the message for an option that a command does not have, with the nearest ones."""
    from sentinel.config.model import SETTINGS  # slow to import
    from sentinel.config.sources import nearest

    what = f"`{context.command_path}` has no option {name}"
    if context.info_name == "run" and name in _OF_CLIENTS:  # before a command, options are of run
        return f"{what}; it follows a command, as in `sentinel status {name}`"
    changeable = context.info_name in {"set", "start", "restart", "reload"}
    if changeable and any(setting.flag == name for setting in SETTINGS):
        return f"{what}; to change it: sentinel set {name.removeprefix('--')}=VALUE"
    shown = [
        text
        for option in context.command.get_params(context)
        if isinstance(option, click.Option) and not option.hidden
        for text in (*option.opts, *option.secondary_opts)
    ]
    near = nearest(name, shown)
    return f"{what}; did you mean {' or '.join(near)}?" if near else what


def _commands_of_group(error: click.ClickException) -> list[str]:
    """List the commands of a group if the error is that it has no such command."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None or not error.message.startswith(_NO_COMMAND):
        return []
    group = context.command
    if not isinstance(group, click.Group):
        return []
    found = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return [name for name, one in found.items() if one is not None and not one.hidden]


def _allowed(error: click.ClickException) -> list[str]:
    """Return what could have been given instead."""
    if known := _commands_of_group(error):
        return known
    if isinstance(error, UnknownCommandError):
        return list(error.known)
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        params = error.ctx.command.get_params(error.ctx)
        shown = [param for param in params if not getattr(param, "hidden", False)]
        return [name for param in shown for name in param.opts if name.startswith("--")]
    if isinstance(error, click.BadParameter) and error.param is not None:
        return list(map(str, getattr(error.param.type, "choices", ())))
    return []
