"""``sentinel stop``, ``reload`` and ``shutdown``: orders to the daemon as a whole."""

from __future__ import annotations

from collections.abc import Mapping

import click

from sentinel.cli.client_options import duration, gpus, json_option, show, wait_option, with_client
from sentinel.cli.setting_options import flags
from sentinel.client import Client


@click.command("stop")
@wait_option("How long to wait until the memory of every GPU is back")
@json_option
@with_client
def stop(client: Client, wait: float, as_json: bool) -> int:  # noqa: FBT001 - click's
    """Let go of every GPU; the daemon stays, and `sentinel start` goes on.

    Exit code 1 if something is still held after that time.
    """
    return show(client.stop(wait), as_json=as_json)


@click.command("reload")
@json_option
@with_client
def reload_(client: Client, as_json: bool) -> int:  # noqa: FBT001 - click's
    """Read the settings anew; take over all of them, or none.

    Exit code 2 if one is not allowed; nothing has changed then.
    """
    return show(client.reload(), as_json=as_json)


@click.command("shutdown")
@wait_option("How long to wait until the daemon is gone")
@json_option
@with_client
def shutdown(client: Client, wait: float, as_json: bool) -> int:  # noqa: FBT001 - click's
    """Let go of every GPU and end the daemon."""
    return show(client.shutdown(wait), as_json=as_json)


@click.command("pause")
@gpus
@duration("--for", "seconds", "Resume by itself after so long; without it, by `sentinel resume`.")
@click.option(
    "--release",
    is_flag=True,
    help="Let go of the driver as well, for a GPU reset or a driver upgrade; for all GPUs at once.",
)
@wait_option("How long to wait until the memory is back")
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
    """Let go of these GPUs, of all without any, and keep off.

    A GPU is named by nvidia-smi's index, by its UUID or the beginning of it, or by its PCI
    address. Exit code 1 if something is still held after --wait.
    """
    outcome = client.pause(gpus, seconds=seconds, release=release, wait=wait)
    return show(outcome, as_json=as_json)


@click.command("resume")
@gpus
@json_option
@with_client
def resume(client: Client, gpus: tuple[str, ...], as_json: bool) -> int:  # noqa: FBT001 - click's
    """End the pause of these GPUs, of all without any."""
    return show(client.resume(gpus), as_json=as_json)


@click.command("restart")
@json_option
@with_client
@flags
def restart(
    client: Client,
    as_json: bool,  # noqa: FBT001 - click's
    given: Mapping[str, str],
) -> int:
    """Take over these settings, and occupy anew with them; the daemon stays.

    Settings given here replace all those that the daemon was started with. Without any, those
    stay, and the file is read anew.
    """
    return show(client.restart(given or None), as_json=as_json)
