"""Name the command or option that is meant by one of another program, or by a misspelled one."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import Any

import click

from sentinel.protocol.shipped_tables import shipped_table

#: Commands that act on all GPUs, or a whole run, without further words.
_ACTING = frozenset({"stop", "pause", "resume", "start", "restart", "burnin cancel"})
#: Words that narrow no command, and those before the name of a GPU.
_HARMLESS = frozenset({"now", "--now", "--all", "--force", "-f", "--yes", "-y", "--"})
_BEFORE_GPUS = frozenset({"--gpus", "--gpu", "gpus", "gpu"})


@functools.cache
def _table(name: str) -> dict[str, Any]:
    table: dict[str, Any] = shipped_table("sentinel.cli", "elsewhere.toml")[name]
    return table


def commands_for(word: str, rest: Sequence[str], program: click.Group) -> list[str]:
    """Return the command lines that do what a command of another program does.

    Args:
        word: What is no command, or the name of a group and what is no command of it.
        rest: What follows it. A command line has it only if the command takes it.
        program: The program.
    """
    found = _table("commands").get(word.lower(), [])
    if found == ["stop"] and _gpus_of(rest):
        found = ["pause"]  # of these GPUs: stop ends the daemon
    return [_with(command.split(), rest, program) for command in found]


def option_for(name: str, known: Collection[str]) -> list[str]:
    """Return those of the known options that have the meaning of an option elsewhere."""
    option: str = _table("options").get(name.lower() if name.startswith("--") else name, "")
    return [option] if option in known else []


def _with(command: list[str], rest: Sequence[str], program: click.Group) -> str:
    """Return the command line of a command with what it takes."""
    import shlex  # slow to import

    named, gpus = [word for word in command if not word.isupper()], _gpus_of(rest)
    for words in (list(rest), gpus, ["--gpus", ",".join(gpus)]):
        is_value = words[:1] and words[0].startswith("-") and named[-1].startswith("-")
        if any(words) and not is_value and _takes(named, words, program):
            return shlex.join(["sentinel", *named, *words])
        if not gpus:
            break
    if " ".join(named) in _ACTING and not _HARMLESS.issuperset(rest):
        command = [*named, "--help"]  # it would act on more than the words say
    return shlex.join(["sentinel", *command])


def _gpus_of(words: Sequence[str]) -> list[str]:
    """Return the GPUs that words name; empty if they have anything else."""
    parts = [part for word in words for part in word.split("=", 1)]
    named = [part for part in parts if part not in _HARMLESS | _BEFORE_GPUS]
    return named if _are_gpus(named) and not any("%" in word for word in named) else []


def _takes(command: Sequence[str], rest: Sequence[str], program: click.Group) -> bool:
    """Check whether a command takes these words; run nothing and print nothing."""
    context, words = click.Context(program), [*command, *rest]
    while isinstance(context.command, click.Group) and words:
        inner = context.command.get_command(context, words[0])
        if inner is None:
            break
        context, words = click.Context(inner, parent=context), words[1:]
    try:
        values, left, _ = context.command.make_parser(context).parse_args(words)
    except click.UsageError:
        return False
    arguments = [one.name for one in context.command.params if isinstance(one, click.Argument)]
    gpus = values.get("gpus") if "gpus" in arguments else ()
    return not left and (not isinstance(gpus, Sequence) or _are_gpus(gpus))


def _are_gpus(words: Sequence[str]) -> bool:
    """Check whether words may select GPUs: indices, UUIDs and addresses have digits."""
    options = any(word.startswith("-") for word in words)
    return not options and all(word == "all" or any(map(str.isdecimal, word)) for word in words)
