"""``sentinel stop``, ``reload``, ``shutdown``, ``pause``, ``resume`` and ``restart``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import click

from sentinel.cli.options.client_options import (
    duration,
    json_option,
    show,
    wait_option,
    with_client,
)
from sentinel.cli.options.gpu_options import gpu_selection
from sentinel.cli.options.option_groups import GroupedOptions
from sentinel.cli.options.setting_options import (
    changeable_flags,
    flag_of,
    for_daemon,
    key_of,
)
from sentinel.client import Client
from sentinel.config.model import SETTINGS
from sentinel.config.setting import Scope
from sentinel.errors import ConfigError


@click.command("stop")
@wait_option("Maximum wait until the memory of every GPU is free")
@json_option
@with_client
def stop(client: Client, wait: float, as_json: bool) -> int:  # noqa: FBT001 - click's
    """Drain: release every GPU; the daemon stays, and `sentinel start` enables it again.

    Exit code 1 if a GPU is still held after --wait.
    """
    return show(client.stop(wait), as_json=as_json)


@click.command("reload")
@json_option
@with_client
def reload_(client: Client, as_json: bool) -> int:  # noqa: FBT001 - click's
    """Read the settings again, and apply all of them or none.

    Exit code 2 if a setting is invalid; then nothing has changed.
    """
    return show(client.reload(), as_json=as_json)


@click.command("shutdown")
@wait_option("Maximum wait for the end of the daemon")
@json_option
@with_client
def shutdown(client: Client, wait: float, as_json: bool) -> int:  # noqa: FBT001 - click's
    """Release every GPU and end the daemon."""
    return show(client.shutdown(wait), as_json=as_json)


@click.command("pause")
@gpu_selection
@duration("--for", "seconds", "Resume after this time; the default is never.")
@click.option(
    "--release",
    is_flag=True,
    help="Release the driver as well, for a GPU reset or a driver upgrade; only for all GPUs.",
)
@wait_option("Maximum wait for free memory")
@json_option
@with_client
def pause(
    client: Client,
    gpus: tuple[str, ...],
    seconds: float | None,
    release: bool,  # noqa: FBT001 - click's
    wait: float,
    as_json: bool,  # noqa: FBT001
) -> int:
    """Release these GPUs, by default all, and do not occupy them until the pause ends.

    A GPU is selected by nvidia-smi index, UUID or a unique prefix of it, or PCI address. Exit code
    1 if a GPU is still held after --wait.
    """
    outcome = client.pause(gpus, seconds=seconds, release=release, wait=wait)
    return show(outcome, as_json=as_json)


@click.command("resume")
@gpu_selection
@json_option
@with_client
def resume(client: Client, gpus: tuple[str, ...], as_json: bool) -> int:  # noqa: FBT001 - click's
    """End the pause of these GPUs, by default all."""
    return show(client.resume(gpus), as_json=as_json)


@click.command("restart", cls=GroupedOptions)
@click.option(
    "--unset",
    metavar="OPTION,...",
    multiple=True,
    help="Remove options that were given before: the value of the file or the default applies."
    " `all` removes every one.",
)
@json_option
@with_client
@changeable_flags
def restart(
    client: Client,
    unset: tuple[str, ...],
    as_json: bool,  # noqa: FBT001 - click's
    given: Mapping[str, str],
) -> int:
    """Change these settings, and enable occupying; the daemon stays.

    All other options that were given before stay, and the file is read again. Stressors whose
    settings change start again. Settings that are fixed at the start of the daemon, such as --gpus
    and --tcp, need a shutdown and a start.
    """
    removed = dict.fromkeys(_unset_keys(client, unset))
    both = given.keys() & removed.keys()
    if both and "all" not in unset:
        raise ConfigError(f"{flag_of(min(both))} is given and removed by --unset")
    changed = {key: for_daemon(key, text) for key, text in given.items()}
    return show(client.restart({**removed, **changed} or None), as_json=as_json)


def _unset_keys(client: Client, names: Sequence[str]) -> Iterator[str]:
    """Yield the key of each setting to remove, named by its key or its flag.

    Raises:
        ConfigError: There is no such setting, or it is fixed at the start.
    """
    changeable = [one.key for one in SETTINGS if one.scope is not Scope.START]
    for name in (part.strip() for text in names for part in text.split(",")):
        if name != "all":
            yield key_of(name, "--unset: ")
            continue
        common = [value for value in client.settings().settings if value.gpu is None]
        flagged = {value.key for value in common if value.source.startswith("--")}
        yield from (key for key in changeable if key in flagged)
