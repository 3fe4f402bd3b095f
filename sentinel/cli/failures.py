"""Report how a command failed: on standard error, or as the JSON object that --json promised."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
import sys
from collections.abc import Container, Iterator, Sequence
from typing import Any

import click

from sentinel.cli import elsewhere
from sentinel.cli.display.output import print_json
from sentinel.cli.options.command_classes import PluginCommand
from sentinel.errors import ExitCode, SentinelError
from sentinel.host.process_setup import explain_exhaustion

#: How click's message for an unknown command of a group begins.
_NO_COMMAND = "No such command "
#: How it begins for an argument that a command does not take.
_EXTRA = "Got unexpected extra argument"

#: The options that name a daemon.
_OF_CLIENTS = {"--connect", "--token", "--socket", "--simulated"}
#: The options for simulated GPUs: each command has at most one of them.
_SIMULATED = {"--simulate", "--simulated"}
#: A module that is loaded exactly where stressors are children of this process.
_SUPERVISOR = "sentinel.supervisor.loop"


class UnknownCommandError(click.UsageError):
    """There is no such command.

    Args:
        message: The error.
        known: The commands that there are.
        remedy: The command line that was meant, if that is known.
    """

    def __init__(self, message: str, known: Sequence[str], remedy: str = "") -> None:
        super().__init__(message)
        self.known = tuple(known)
        self.remedy = remedy


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


def report_usage(
    error: click.ClickException, arguments: Sequence[str], program: click.Group
) -> int:
    """Report wrong usage of the program and return the exit code."""
    context = getattr(error, "ctx", None)  # a usage error has its command
    if isinstance(error, click.BadOptionUsage) and context is None:  # but for this one
        context = error.ctx = _context_of(arguments, program)
    path = context.command_path if context else "sentinel"
    code = int(ExitCode.USAGE)
    what, allowed = _explain(error)
    meant = error.remedy if isinstance(error, UnknownCommandError) else ""
    words = _refused_words(error, arguments)
    if context is not None and words:
        what, meant = _extra_words(what, words, context, list(arguments))
        if not meant and (word := _no_command(error)):
            rest = list(arguments)[list(arguments).index(word) + 1 :]
            name = f"{context.info_name} {word}"
            if found := elsewhere.commands_for(name, rest, program):
                what, meant = f"there is no command {name!r}", " or ".join(found)
        elif what.startswith(_EXTRA):
            what = f"`{path}` does not take {' '.join(words)!r}"
    if context is not None and isinstance(context.command, PluginCommand):
        if "--nagios" in arguments:  # Nagios shows the standard output
            from sentinel.burnin.checks.node_formats import nagios_unknown  # slow to import

            print(nagios_unknown(what))
        code = context.command.usage_exit_code(arguments)
    allowed = [] if words and meant else allowed
    remedy = meant or f"{path} --help"
    fields = _fields(what, "usage", remedy, allowed, code)
    text = f"{what}; use: {remedy}" if meant else f"{what}\nTry: {remedy}"
    return _report(fields, text, arguments)


def _context_of(arguments: Sequence[str], program: click.Group) -> click.Context:
    """Find the command that a command line names."""
    context = click.Context(program, info_name="sentinel")
    words = ["run"] if not arguments or arguments[0].startswith("-") else arguments
    for word in words:
        command = context.command
        found = command.get_command(context, word) if isinstance(command, click.Group) else None
        if found is None:
            break
        context = click.Context(found, parent=context, info_name=word)
    return context


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


def _explain(error: click.ClickException) -> tuple[str, list[str]]:
    """Return the message of a usage error, and what could have been given instead."""
    match error:
        case click.BadParameter(param=click.Parameter() as param):
            name = param.human_readable_name
            if isinstance(param, click.Option):
                name = max(param.opts, key=len)  # `--lines`, and not `-n`
            allowed = list(map(str, getattr(param.type, "choices", ())))
            if isinstance(error, click.MissingParameter):
                words = f"; it is one of {', '.join(allowed)}" if allowed else ""
                return f"{name} is missing{words}", allowed
            return f"{name}: {error.message}", allowed
        case UnknownCommandError():
            return error.format_message(), list(error.known)
        case click.NoSuchOption(ctx=click.Context() as context):
            return _unknown_option(error.option_name, context)
        case click.BadOptionUsage(ctx=click.Context() as context):
            return _wrong_value(error.option_name, context), []
        case click.UsageError(ctx=click.Context(info_name="run") as context):
            return _words_of_run(error.format_message(), context.find_root()), []
        case click.UsageError(ctx=click.Context(command=click.Group() as group) as context):
            word = _no_command(error)
            if word or error.message == context.get_help():  # click's error for no word at all
                commands = {
                    name: group.get_command(context, name) for name in group.list_commands(context)
                }
                known = [name for name, one in commands.items() if one and not one.hidden]
                what = f"there is no command {word!r}"
                what = what if word else f"`{context.command_path}` needs a command"
                return f"{what}; there are: {', '.join(known)}", known
    return error.format_message(), []


def _no_command(error: click.ClickException) -> str:
    """Return the word that is no command of a group; empty for another error."""
    found = error.message.startswith(_NO_COMMAND)
    return error.message.removeprefix(_NO_COMMAND).rstrip(".").strip("'\"") if found else ""


def _wrong_value(name: str, context: click.Context) -> str:
    """Return the message for an option without its value, or with one that it does not take."""
    option = next((param for param in context.command.params if name in param.opts), None)
    if isinstance(option, click.Option) and not option.is_flag:
        return f"{name} has no value; it is followed by {option.make_metavar(context)}"
    return f"{name} takes no value"


def _words_of_run(message: str, program: click.Context) -> str:
    """Return the message for wrong usage of `run`, to which options before a command belong."""
    (word, *more) = _extra(message) or ["", ""]
    group = program.command
    if not more and isinstance(group, click.Group) and word in group.list_commands(program):
        return f"options before the command {word} are of `sentinel run`: put them after it"
    return message


def _extra(message: str) -> list[str]:
    """Return the words that a command does not take, from click's message."""
    return message.partition("(")[2].rstrip(")").split() if message.startswith(_EXTRA) else []


def _refused_words(error: click.ClickException, arguments: Sequence[str]) -> list[str]:
    """Return the words that a command does not take; a group takes the first for a command."""
    word = _no_command(error)
    if not word or isinstance(error, UnknownCommandError):
        return _extra(error.format_message())
    rest = arguments[arguments.index(word) :] if word in arguments else ()
    return list(itertools.takewhile(lambda text: not text.startswith("-"), rest))


def _extra_words(
    message: str, words: list[str], context: click.Context, arguments: list[str]
) -> tuple[str, str]:
    """Return the message for words that a command does not take, and what was meant.

    Args:
        message: The message so far.
        words: The words.
        context: That of the command.
        arguments: The command line.
    """
    command = context.command
    ends = range(len(words), len(arguments) + 1)
    at = next((end - len(words) for end in ends if arguments[end - len(words) : end] == words), 0)
    before = [part for text in arguments[:at] for part in text.split("=", 1)][-2:]
    by_flag = {
        name: param
        for param in command.params
        if isinstance(param, click.Option)
        for name in param.opts
    }
    flag, value = before if len(before) == 2 else ("", "")  # noqa: PLR2004 - option and value
    option = by_flag.get(flag)
    if option is None or option.is_flag:
        return _numbers_alone(words, by_flag, context.command_path) or (message, "")
    if value in by_flag:  # it was taken for the value
        return _wrong_value(flag, click.Context(command)), ""
    spaced = " ".join([value, *words])
    listed = re.sub(" ?- ?", "-", spaced).replace(" ", ",")  # `0 - 1` is a range
    if option.multiple and (_is_value(flag, listed) or not _is_value(flag, spaced)):
        return f"{flag} takes one list", f"{flag} {listed}"
    if _is_value(flag, spaced):  # such as hours with their days
        return f"{flag} takes one value", shlex.join([flag, spaced])
    return message, ""


def _is_value(flag: str, text: str) -> bool:
    """Check whether a text is a value of the setting with this flag."""
    from sentinel.config.model import SETTINGS  # slow to import

    form = next((setting.form for setting in SETTINGS if setting.flag == flag), None)
    with contextlib.suppress(ValueError):
        return form is not None and form.parse(text) is not None
    return False


def for_pid(what: str, words: Sequence[str]) -> tuple[str, str] | None:
    """Return the message and what helps if a word is a PID; no GPU has four digits."""
    pid = next((word for word in words if word.isdecimal() and len(word) > 3), None)  # noqa: PLR2004
    if pid is None:
        return None
    what = f"{what}; {pid} is no GPU, and sentinel never signals foreign processes"
    return what, "sentinel status"


def _numbers_alone(words: list[str], flags: Container[str], path: str) -> tuple[str, str] | None:
    """Return the message and what was meant if all words are numbers of GPUs; else None."""
    if not words or not all(word.replace(",", "").replace("-", "").isdecimal() for word in words):
        return None
    if path == "sentinel stop":
        what = f"`{path}` ends the daemon"
        return for_pid(what, words) or (what, f"sentinel pause {','.join(words)}")
    if "--gpus" in flags:
        return "GPUs follow --gpus", f"{path} --gpus {','.join(words)}"
    if path == "sentinel free":
        what = f"`{path}` prints GPUs (to stop occupying one: sentinel pause {','.join(words)})"
        return what, f"{path} --count {words[0]}"
    return None


def _unknown_option(name: str, context: click.Context) -> tuple[str, list[str]]:
    """Return the message for an option that a command does not have, and its options."""
    from sentinel.config.sources import key_elsewhere, nearest  # slow to import

    shown = [
        text
        for option in context.command.get_params(context)
        if isinstance(option, click.Option) and not option.hidden
        for text in (*option.opts, *option.secondary_opts)
    ]
    what = f"`{context.command_path}` has no option {name}"
    near = elsewhere.option_for(name, shown) or nearest(name, shown)
    if name in _SIMULATED and (hint := _simulated_hint(name, context)):
        what += hint
    elif context.info_name == "run" and name in _OF_CLIENTS:  # before a command, options are of run
        what += f"; it follows a command, as in `sentinel status {name}`"
    elif context.info_name in {"set", "start", "restart", "reload"} and (how := _change_of(name)):
        what += f"; to change it: {how}"
    elif name == "--quiet" and "--silent" in shown:
        what += "; it is called --silent, since --quiet HOURS is a setting of the daemon"
    elif near:
        what += f"; did you mean {' or '.join(near)}?"
    elif context.info_name == "set" and (meant := key_elsewhere(name)):
        what += f"; to change it: sentinel set {meant}=VALUE"
    return what, [text for text in shown if text.startswith("--")]


def _simulated_hint(name: str, context: click.Context) -> str:
    """Explain which of the options for simulated GPUs a command has instead of this one."""
    command = context.command
    has = {option for parameter in command.params for option in parameter.opts}
    if "--simulated" in has:
        return "; for the daemon with simulated GPUs, whatever their number: --simulated"
    if "--simulate" in has and context.info_name != "run":
        return "; for N simulated GPUs: --simulate N"
    if first := next(_commands_with(name, command, context), None):
        value = " N" if name == "--simulate" else ""
        return f"; it follows a command, as in `{context.command_path} {first} {name}{value}`"
    return "" if context.info_name == "run" else ", and none for simulated GPUs: omit it"


def _commands_with(flag: str, command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield the commands below a group that have an option."""
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        if found is not None and any(flag in parameter.opts for parameter in found.params):
            yield name
        elif found is not None:
            yield from (f"{name} {below}" for below in _commands_with(flag, found, context))


def _change_of(flag: str) -> str | None:
    """Return the commands that change the setting with this flag; None for another flag."""
    from sentinel.config.model import SETTINGS  # slow to import
    from sentinel.config.setting import Scope

    setting = next((one for one in SETTINGS if one.flag == flag), None)
    if setting is None:
        return None
    change = f"{flag.removeprefix('--')}=VALUE"
    if setting.scope is Scope.START:
        return f"`sentinel set --save {change}`, then `sentinel restart`"
    return f"sentinel set {change}"
