"""The commands that messages name: found in the source, and in what a command prints."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click

from sentinel.cli.main import COMMANDS, sentinel_command

ROOT = Path(__file__).resolve().parents[2]
#: What a value of the program is replaced by.
VALUE = "{}"
#: A command is quoted, or comes after one of these.
_NAMED = re.compile(r"(?:`|: |\(|; |, |until |use |with )sentinel ((?:[^\s`|()]+ ?)+)")
#: Or it is the whole text, and has an option: `sentinel top` alone is a reason.
_WHOLE = re.compile(r"sentinel (\S+ --\S+(?: \S+)*)")
_END = re.compile(r"[.,;:)]+$")


def commands_in(text: str) -> list[str]:
    """List the commands that a message names, without `sentinel`."""
    if whole := _WHOLE.fullmatch(text):
        return [whole[1]]
    found = []
    for match in _NAMED.finditer(text):
        words = []
        for word in match[1].split():
            words.append(_END.sub("", word))
            if words[-1] != word:
                break
        if words[0] in COMMANDS:
            found.append(" ".join(words))
    return found


def commands_of_source() -> dict[str, str]:
    """Map each command that a message of the source names to one of its places."""
    found: dict[str, str] = {}
    for place, text in messages_of_source():
        for command in commands_in(text):
            found.setdefault(command, place)
    return found


def messages_of_source() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each string of the source."""
    for path in sorted((ROOT / "sentinel").rglob("*.py")):
        for line, text in _messages(ast.parse(path.read_text())):
            yield f"{path.relative_to(ROOT)}:{line}", text


def _messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the strings of a module, those in docstrings and parts of others left out."""
    nodes = [*ast.walk(tree)]
    inner = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    inner |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts = (one.value if isinstance(one, ast.Constant) else VALUE for one in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and id(node) not in inner:
            yield node.lineno, str(node.value)


def check_usage(command: str) -> None:
    """Check that a command, its subcommand and its options exist.

    Raises:
        UsageError: One does not.
    """
    words, found = command.split(), click.Context(sentinel_command)
    while isinstance(found.command, click.Group) and words and not words[0].startswith("-"):
        inner = found.command.get_command(found, words[0])
        if inner is None:
            raise click.UsageError(f"there is no command {words[0]}")
        found, words = click.Context(inner, parent=found, info_name=words[0]), words[1:]
    found.command.make_parser(found).parse_args(words)
