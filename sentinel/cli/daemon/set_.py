"""``sentinel set``: change settings of the running daemon, of all GPUs or of some."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from sentinel.cli.display.output import print_json
from sentinel.cli.options import value_completion
from sentinel.cli.options.command_options import gpus_flag, json_option, with_client
from sentinel.cli.options.setting_options import for_daemon, key_of
from sentinel.cli.tools.config import setting_line, settings_as_json
from sentinel.config.model import SETTINGS
from sentinel.config.setting import Scope
from sentinel.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from sentinel.client import Client

#: In place of a key, it removes every setting that an option gave.
_ALL = "all"


@click.command("set")
@click.argument(
    "changes", metavar="[KEY=VALUE]...", nargs=-1, shell_complete=value_completion.changes
)
@click.option(
    "--unset",
    metavar="KEY,...",
    multiple=True,
    shell_complete=value_completion.keys,
    help="Remove what was set: the value of the file or the default applies. The same as KEY=."
    " `all` removes all that was set by options.",
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
    """Change settings of the running daemon; print what is in effect, and from where.

    KEY is that of the configuration file, such as memory.target, or the name of the option, such as
    memory. All other settings stay, and stressors with the same settings continue. Without --save
    the change ends with the daemon. Exit code 2 if a setting is invalid; then nothing has changed.
    """
    names = [part.strip() for text in unset for part in text.split(",")]
    wanted = _changes(changes, [name for name in names if name != _ALL])
    if _ALL in names:
        wanted = {**dict.fromkeys(_given(client)), **wanted}
    if not wanted:
        raise ConfigError("give at least one KEY=VALUE", "Such as: sentinel set memory=50%")
    result = client.set(wanted, gpus, save=save)
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
    for name in unset:
        yield key_of(name, "--unset: "), None


def _given(client: Client) -> list[str]:
    """List the keys of the settings that options gave, and that a running daemon can change."""
    changeable = {setting.key for setting in SETTINGS if setting.scope is not Scope.START}
    common = [value for value in client.settings().settings if value.gpu is None]
    flagged = [value.key for value in common if value.source.startswith("--")]
    return [key for key in flagged if key in changeable]
