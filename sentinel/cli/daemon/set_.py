"""``sentinel set``: change single settings of the running daemon, of all GPUs or of some."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from sentinel.cli.display.json_output import print_json
from sentinel.cli.options import value_completion
from sentinel.cli.options.client_options import json_option, with_client
from sentinel.cli.options.gpu_options import gpus_flag
from sentinel.cli.options.setting_options import for_daemon, key_of
from sentinel.cli.tools.config import setting_line, settings_as_json
from sentinel.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from sentinel.client import Client


@click.command("set")
@click.argument(
    "changes", metavar="[KEY=VALUE]...", nargs=-1, shell_complete=value_completion.changes
)
@click.option(
    "--unset",
    metavar="KEY,...",
    multiple=True,
    shell_complete=value_completion.keys,
    help="Remove what was set: the value of the file or the default applies. The same as KEY=.",
)
@gpus_flag()
@click.option(
    "--save", is_flag=True, help="Keep the change over a restart, in a file of the daemon's own."
)
@json_option
@with_client
def command(
    client: Client,
    changes: Sequence[str],
    unset: Sequence[str],
    gpus: tuple[str, ...],
    save: bool,  # noqa: FBT001 - click's
    as_json: bool,  # noqa: FBT001
) -> int:
    """Change single settings of the running daemon; print what is in effect, and from where.

    KEY is that of the configuration file, such as memory.target, or the name of the option, such as
    memory. All other settings stay, and stressors with the same settings continue. Without --save
    the change ends with the daemon. Exit code 2 if a setting is invalid; then nothing has changed.
    """
    wanted = _changes(changes, unset)
    if not wanted:
        raise ConfigError("give at least one KEY=VALUE", "Such as: sentinel set memory=50%")
    result = client.configure(wanted, gpus, save=save)
    if as_json:
        values = settings_as_json(result.settings)
        print_json({**values, "saved": result.saved, "notes": result.notes})
        return int(ExitCode.OK)
    single = any(value.gpu for value in result.settings)
    indices = {gpu.uuid: gpu.index for gpu in client.status().gpus} if single else {}
    for value in result.settings:
        gpu = f"GPU {indices.get(value.gpu, value.gpu)}: " if value.gpu else ""
        click.echo(gpu + setting_line(value, value.key).removeprefix("# "))
    if result.saved is not None:
        click.echo(f"saved in {result.saved}", err=True)
    for note in result.notes:
        click.echo(f"sentinel: warning: {note}", err=True)
    return int(ExitCode.OK)


def _changes(changes: Sequence[str], unset: Sequence[str]) -> dict[str, str | None]:
    """Return the new texts by key; None removes a setting.

    Raises:
        ConfigError: A setting does not exist, has no value, or is given twice.
    """
    wanted: dict[str, str | None] = {}
    for key, text in _pairs(changes, unset):
        if key in wanted:
            raise ConfigError(f"{key} is given twice")
        wanted[key] = text
    return wanted


def _pairs(changes: Sequence[str], unset: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    for text in changes:
        name, equals, value = text.partition("=")
        key = key_of(name.strip())
        if not equals:
            raise ConfigError(f"{text!r} has no value", f"Write {text}=VALUE, or --unset {text}.")
        yield key, for_daemon(key, value.strip()) if value.strip() else None
    for name in (part.strip() for text in unset for part in text.split(",")):
        yield key_of(name, "--unset: "), None
