"""``sentinel allocate`` and ``deallocate``: memory of a GPU that is kept for a process."""

from __future__ import annotations

import os

import click

from sentinel.cli.talking import json_option, printed, show, talks, waits
from sentinel.client import Client
from sentinel.errors import ExitCode
from sentinel.units import format_size

__all__ = ["allocate", "deallocate"]


@click.command("allocate")
@click.argument("id_", metavar="ID")
@click.argument("size")
@click.option("--gpu", metavar="GPU", default="0", show_default=True, help="Of this GPU.")
@click.option(
    "--pid",
    metavar="PID",
    type=click.IntRange(1, 2**31 - 1),
    help="For this process and its children.  [default: the one that runs this command]",
)
@waits("How long to wait until the memory is free")
@json_option
@talks
def allocate(
    client: Client,
    id_: str,
    size: str,
    gpu: str,
    pid: int | None,
    wait: float,
    as_json: bool,  # noqa: FBT001
) -> int:
    """Have SIZE of a GPU's memory, such as 40GiB, kept for a process; print the GPU's UUID.

    It is free when this returns, and the process and its children may take it without a yield. It
    is kept until `sentinel deallocate ID`, or until that process ends: a shell, a script. Exit code
    1 if it is not to be had, or not free within --wait; nothing is kept then.
    """
    # Over TCP there is no process: it lasts until it is given back.
    holder = pid if pid is not None or client.address.host else os.getppid()
    got = client.allocate(id_, size, gpu, wait=wait, pid=holder)
    if as_json:
        holds = {"uid": got.holder.uid, "pid": got.holder.pid, "name": got.holder.name}
        fields = {"id": got.id, "gpu": got.gpu, "index": got.index, "size": got.size}
        printed({"allocation": {**fields, "since": got.since.isoformat(), "holder": holds}})
        return int(ExitCode.OK)
    click.echo(got.gpu)
    end = f"until process {got.holder.pid} ends" if got.holder.pid else "until it is given back"
    click.echo(f"GPU {got.index}: {format_size(got.size)} kept as {got.id}, {end}", err=True)
    click.echo(f"To give back: sentinel deallocate {got.id}", err=True)
    return int(ExitCode.OK)


@click.command("deallocate")
@click.argument("id_", metavar="ID")
@json_option
@talks
def deallocate(client: Client, id_: str, as_json: bool) -> int:  # noqa: FBT001 - click's
    """Give back what `allocate` had kept."""
    return show(client.deallocate(id_), as_json=as_json)
