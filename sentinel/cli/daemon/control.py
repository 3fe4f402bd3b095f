"""``sentinel stop``, ``reload``, ``pause`` and ``resume``."""

from __future__ import annotations

import click

from sentinel.cli.options.command_options import (
    duration,
    gpu_selection,
    json_option,
    show,
    wait_option,
    with_client,
)
from sentinel.client import Client


@click.command("stop")
@wait_option("Maximum wait for the end of the daemon")
@json_option
@with_client
def stop(client: Client, wait: float, as_json: bool) -> int:  # noqa: FBT001 - click's
    """Release every GPU and end the daemon; `sentinel pause` releases them only."""
    return show(client.stop(wait), as_json=as_json)


@click.command("reload")
@json_option
@with_client
def reload_(client: Client, as_json: bool) -> int:  # noqa: FBT001 - click's
    """Read the settings again, and apply all of them or none.

    Exit code 2 if a setting is invalid; then nothing has changed.
    """
    return show(client.reload(), as_json=as_json)


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
