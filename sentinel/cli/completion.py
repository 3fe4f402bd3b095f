"""``sentinel completion``: generate the completion for a shell from the commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from sentinel.cli.display.output import Word
from sentinel.cli.main import sentinel_command
from sentinel.errors import ExitCode


def completion_script(shell: str) -> str:
    """Return the completion for a shell.

    Raises:
        UsageError: There is none for it.
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"this version of click has no completion for {shell}")
    return kind(sentinel_command, {}, "sentinel", "_SENTINEL_COMPLETE").source()


@click.command("completion")
@click.argument("shell", type=Word(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print the completion for a shell.

    For bash, put `eval "$(sentinel completion bash)"` into ~/.bashrc; for zsh, the same with zsh
    into ~/.zshrc, after compinit.

    For fish, once: sentinel completion fish > ~/.config/fish/completions/sentinel.fish
    """
    click.echo(completion_script(shell))
    return int(ExitCode.OK)
