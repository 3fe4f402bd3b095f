"""Generate the manual page from the commands."""

from __future__ import annotations

from collections.abc import Iterator

import click

from sentinel.cli.main import SECTIONS, sentinel_command
from sentinel.protocol import __version__

_ENVIRONMENT = {
    "SENTINEL_SOCKET": "The path of the daemon's socket, for the daemon and its clients.",
    "SENTINEL_CONFIG": "The configuration file, unless --config is given.",
    "SENTINEL_SIM_DIR": "The directory of the simulated GPUs and of their daemon.",
    "CUDA_VISIBLE_DEVICES": "The visible GPUs, as CUDA reads it.",
    "NO_COLOR": "Disables colours if not empty; so does TERM=dumb.",
}


def page() -> str:
    """Return the manual page as roff."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    top = sentinel_command
    yield f'.TH SENTINEL 1 "" "sentinel {__version__}" "User Commands"'
    yield ".SH NAME"
    yield "sentinel \\- keep idle NVIDIA GPUs busy, and yield each one at once"
    yield ".SH SYNOPSIS"
    yield ".B sentinel\n[\\fICOMMAND\\fR] [\\fIOPTION\\fR]..."
    yield ".SH DESCRIPTION"
    yield from _paragraphs(top.help or "")
    # A command keeps its help option, so its first context must have the settings.
    settings = dict(top.context_settings)
    context = click.Context(top, info_name="sentinel", **settings)
    for title, section in SECTIONS.items():
        yield f".SH {_escaped(title.upper())}"
        for name in section:
            command = top.get_command(context, name)
            if command is not None:
                yield from _command(command, click.Context(command, context, info_name=name))
    yield ".SH EXIT STATUS"
    yield from _paragraphs(top.epilog or "")
    yield ".SH ENVIRONMENT"
    for name, text in _ENVIRONMENT.items():
        yield from _item(name, text)


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield the section of a command and of its subcommands."""
    yield f".SS sentinel {_escaped(_usage(context))}"
    yield from _paragraphs(command.help or "")
    for option in command.get_params(context):
        record = option.get_help_record(context)
        if record is not None and "--help" not in option.opts:
            yield from _item(*record)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            sub = command.get_command(context, name)
            if sub is not None:
                yield from _command(sub, click.Context(sub, context, info_name=name))


def _usage(context: click.Context) -> str:
    """Return the usage of a command without the name of the program."""
    path = context.command_path.removeprefix("sentinel ")
    pieces = context.command.collect_usage_pieces(context)
    return " ".join([path, *pieces])


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in text.split("\n\n"):
        yield ".PP"
        yield _escaped(" ".join(paragraph.split()))


def _item(name: str, text: str) -> Iterator[str]:
    yield ".TP"
    yield f"\\fB{_escaped(name)}\\fR"
    yield _escaped(" ".join(text.split()))


def _escaped(text: str) -> str:
    """Escape the special characters of roff."""
    plain = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga")
    plain = plain.replace("'", "\\(aq").replace("^", "\\(ha").replace("~", "\\(ti")
    return f"\\&{plain}" if plain.startswith(".") else plain
