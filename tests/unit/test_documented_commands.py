"""Every fenced command of the documents is run by a test, or listed with a reason."""

from __future__ import annotations

import ast
import re
import shlex
from collections import Counter
from functools import cache

import click
import pytest

from sentinel.cli.main import sentinel_command
from tests.harness.documented_commands import (
    HERE,
    NOT_COMMANDS,
    PROOFS,
    ROOT,
    Because,
    Command,
    blocks,
    commands,
    inline_commands,
    proof_of,
)

#: Those of the documents; read once.
COMMANDS = cache(commands)


def test_a_block_has_commands_or_is_listed_as_something_else() -> None:
    others = {block.lines[0].strip() for block in blocks() if not block.has_commands}
    assert others == set(NOT_COMMANDS)
    assert len(COMMANDS()) > 150


def test_every_command_is_run_by_a_test_or_has_a_reason() -> None:
    """Otherwise add it to PROOFS, with the test that runs it or why none can."""
    assert not [str(command) for command in COMMANDS() if proof_of(command.text) is None]


def test_every_proof_is_of_a_command_that_there_is() -> None:
    used = Counter(
        next(pattern for pattern in PROOFS if re.fullmatch(pattern, one.text)) for one in COMMANDS()
    )
    assert set(PROOFS) == set(used), set(PROOFS) - set(used)


def test_every_test_that_is_a_proof_exists() -> None:
    tree = cache(lambda path: ast.parse((ROOT / "tests" / path).read_text()))
    missing = []
    for proof in {one for one in PROOFS.values() if not isinstance(one, Because) and one != HERE}:
        path, _, name = proof.partition("::")
        if name not in {getattr(node, "name", None) for node in tree(path).body}:
            missing.append(proof)
    assert not missing


def test_a_reason_is_a_sentence() -> None:
    for pattern, proof in PROOFS.items():
        if isinstance(proof, Because):
            assert re.fullmatch(r"[A-Z].{15,}\.", proof.reason), pattern


def words_of_sentinel(text: str) -> list[str] | None:
    """Return the words of a command of sentinel, or None for another program."""
    text = re.sub(
        r"^(?:sudo )?(?:python -m sentinel|(?:/\S+/)?sentinel)(?![\w/.-])", "sentinel", text
    )
    if not text.startswith("sentinel"):
        return None
    return shlex.split(re.split(r" (?:&&|\|\|?) |; ", text)[0])


#: A word for any command, an option without its value, and the title of a process.
NOT_PARSED = re.compile(r"sentinel COMMAND --help|sentinel set --gpus|sentinel hold \[train\]")


def test_every_command_of_sentinel_has_its_options() -> None:
    found = [
        command
        for command in [*COMMANDS(), *inline_commands()]
        if words_of_sentinel(command.text) and not NOT_PARSED.fullmatch(command.text)
    ]
    assert len(found) > 300
    for command in found:
        try:
            check_usage(command)
        except click.UsageError as error:
            pytest.fail(f"{command}: {error.message}")


def check_usage(command: Command) -> None:
    """Check that a command, its subcommand and its options exist.

    Raises:
        UsageError: One does not.
    """
    words = words_of_sentinel(command.text)
    assert words is not None
    context = click.Context(sentinel_command, info_name="sentinel")
    rest, group = words[1:], sentinel_command
    if not rest or rest[0].startswith("-"):
        rest = rest if rest in (["--help"], ["--version"]) else ["run", *rest]
    if rest in (["--help"], ["--version"]):
        return
    name, found, rest = group.resolve_command(context, rest)
    assert found is not None
    if isinstance(found, click.Group) and rest and not rest[0].startswith("-"):
        context = click.Context(found, info_name=name, parent=context)
        name, found, rest = found.resolve_command(context, rest)
        assert found is not None
    # Files of the examples do not exist here, so values are not converted.
    parser = found.make_parser(click.Context(found, info_name=name, parent=context))
    parser.parse_args(list(rest))
