"""``sentinel free``: the GPUs that a job would get now, for scripts that choose one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

import click

from sentinel.cli.display import gpu_table, output
from sentinel.cli.options import command_options as options
from sentinel.client.requester import JsonView
from sentinel.errors import ExitCode
from sentinel.protocol.rules import has_stressor
from sentinel.units import format_count

if TYPE_CHECKING:
    from sentinel.client import GpuStatus, Status
    from sentinel.client.requester import Requester


@click.command("free")
@options.count_option("Print this many, or none if fewer are free.")
@options.prints
@options.with_requester
def free(client: Requester, count: int | None) -> options.Printed:
    """Print the GPUs that a job would get now, as CUDA_VISIBLE_DEVICES has them.

    Empty ones come first, then those with a stressor, which yields to the job; within both those
    without findings. By default all are printed. Nothing keeps them free until the job starts: only
    `exec` and `reserve` do. Exit code 1 if none are free, or fewer than --count, and 4 if there are
    not so many; then nothing is printed on standard output.
    """
    status = cast("Status", JsonView(client.request("GET", "/v1/status")))
    visible, ignored = _visible(client, status, count or 0)
    found = sorted((gpu for gpu in visible if not _why_not(gpu, status)), key=_preference)
    notes = [f"sentinel: warning: {ignored}"] if ignored else []
    if len(found) < (count or 1):
        few = f"{len(found) or 'none'} {'is' if len(found) < 2 else 'are'} free"  # noqa: PLR2004
        wanted = f"{format_count(count, 'GPU')} requested, {few}" if count else "no GPU is free"
        blocked = ((gpu.index, _why_not(gpu, status)) for gpu in visible)
        notes.append(f"sentinel: {wanted}")
        notes += [f"GPU {index}: {reason}" for index, reason in blocked if reason]
        found = []
    found = found[:count]
    names = [gpu.uuid for gpu in found]
    held = [gpu.uuid for gpu in found if has_stressor(gpu)]
    return options.Printed(
        json={"gpus": names, "held": held, "notes": notes},
        lines=[",".join(names)] if names else [],
        notes=map(output.printable, notes),
        code=ExitCode.OK if names else ExitCode.FAIL,
    )


def _why_not(gpu: GpuStatus, status: Status) -> str:
    """Explain why a job would not get a GPU; empty if it would."""
    if gpu_table.is_stale(status):
        return "unknown: the supervisor does not answer"
    if gpu.reservation or gpu.occupancy != "IDLE":
        return gpu_table.why(gpu)
    if any(gpu.uuid == allocation.gpu for allocation in status.allocations or ()):
        return "partly allocated"
    queued = (one for one in status.queue or () if not one.indices or gpu.index in one.indices)
    first = next(queued, None)
    return f"for an earlier request ({first.id})" if first else ""


def _preference(gpu: GpuStatus) -> tuple[bool, bool, int]:
    """Sort key: empty, then without findings or faults, then lowest index."""
    is_suspect = bool(gpu.faults) or (gpu.findings or 0) > (gpu.findings_acknowledged or 0)
    return has_stressor(gpu), is_suspect, gpu.index


def _visible(
    client: Requester, status: Status, count: int
) -> tuple[tuple[GpuStatus, ...], str | None]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES of this command shows, and what CUDA ignores of it.

    Raises:
        ConfigError: It has numbers, and CUDA does not report which GPUs they are.
        NoSuchGpuError: They are fewer than ``count``.
    """
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = value is not None and not client.address.host
    # A daemon has no GPUs until it has found them.
    if not hidden and (len(status.gpus) >= count or not status.gpus):
        return tuple(status.gpus), None
    from sentinel.cli.daemon.visible import read_shown, too_few, too_many  # slow to import
    from sentinel.config.gpu_selection import gpus_of

    if status.gpus and len(status.gpus) < count:
        raise too_many(count, len(status.gpus))
    value = value or ""
    shown, ignored = read_shown(
        value, gpus_of(status.gpus), simulated=bool(status.daemon.simulated)
    )
    visible = tuple(gpu for gpu in status.gpus if gpu.uuid in shown)
    if len(visible) < count:
        indices = [gpu.index for gpu in visible]
        raise too_few(format_count(count, "GPU"), value, indices, ignored)
    return visible, ignored
