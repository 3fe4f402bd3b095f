"""``sentinel completion``: what makes a shell complete commands, options and their values."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from sentinel.errors import ExitCode

__all__ = ["command"]


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> int:
    """Print the completion for a shell.

    For bash, write `eval "$(sentinel completion bash)"` into ~/.bashrc; for zsh, the same with zsh
    into ~/.zshrc, after compinit.

    For fish, once: sentinel completion fish > ~/.config/fish/completions/sentinel.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"this version of click knows no completion for {shell}")
    click.echo(kind(ctx.find_root().command, {}, "sentinel", "_SENTINEL_COMPLETE").source())
    return int(ExitCode.OK)
