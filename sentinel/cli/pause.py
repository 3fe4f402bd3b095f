"""``sentinel pause`` and ``resume``: let go of GPUs and keep off, and the end of that."""

from __future__ import annotations

import click

from sentinel.cli.talking import duration, gpus, json_option, show, talks, waits
from sentinel.client import Client

__all__ = ["pause", "resume"]


@click.command("pause")
@gpus
@duration("--for", "seconds", "Resume by itself after so long; without it, by `sentinel resume`.")
@click.option(
    "--release",
    is_flag=True,
    help="Let go of the driver as well, for a GPU reset or a driver upgrade; for all GPUs at once.",
)
@waits("How long to wait until the memory is back")
@json_option
@talks
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
@talks
def resume(client: Client, gpus: tuple[str, ...], as_json: bool) -> int:  # noqa: FBT001 - click's
    """End the pause of these GPUs, of all without any."""
    return show(client.resume(gpus), as_json=as_json)
