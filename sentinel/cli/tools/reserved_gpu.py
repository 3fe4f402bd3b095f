"""Let a tool use one GPU beside a daemon: reserve the GPU there, bound to this process."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace

from sentinel.client import Client, GpuStatus, connect
from sentinel.diagnostics.survey import inventory
from sentinel.errors import (
    AccessDeniedError,
    ConflictError,
    IncompleteError,
    NotRunningError,
    SentinelError,
    TimedOutError,
)
from sentinel.host import simulation
from sentinel.supervisor.discovery import Options


@contextlib.contextmanager
def reserved_gpu(
    options: Options, reason: str, wait: float, *, any_idle: bool = False
) -> Iterator[Options]:
    """Reserve the GPU of ``options`` at the daemon that holds it, if there is one.

    The reservation is bound to this process, so that it ends even if the process is killed.

    Args:
        options: The selection of GPUs; the first one is taken.
        reason: The purpose, shown to other users.
        wait: Seconds until the GPU must be available and free.
        any_idle: Prefer one that the daemon can free at once to the first.

    Yields:
        The options to use: with the reserved GPU only, or unchanged without such a daemon.

    Raises:
        IncompleteError: The daemon cannot free the GPU in time.
        SentinelError: No GPU can be selected, or the daemon refuses.
    """
    client, managed = _daemon(options)
    if client is None:
        yield options
        return
    uuids = [gpu.uuid for gpu in inventory(options)]
    uuid = uuids[0]
    if any_idle:
        idle = [one for one in uuids if one in managed and _is_available(managed[one])]
        free = [one for one in uuids if one not in managed]
        uuid = (*idle, *free, uuid)[0]
    options = replace(options, config=replace(options.config, gpus=(uuid,)))
    if uuid not in managed:  # the daemon neither holds nor locks it
        yield options
        return
    try:
        made = client.reserve((uuid,), reason=reason, wait=wait, bound=True)
    except (ConflictError, TimedOutError) as error:
        raise IncompleteError(
            f"the daemon cannot free the GPU: {error.what}",
            "Choose another GPU, or wait longer: --wait. Nothing was started.",
        ) from error
    try:
        yield replace(options, lent=True)
    finally:
        try:
            client.cancel_reservation(made.id)
        except SentinelError as error:  # it ends with this process anyway
            print(f"sentinel: reservation {made.id}: {error.what}", file=sys.stderr)


def _daemon(options: Options) -> tuple[Client | None, dict[str, GpuStatus]]:
    """Find the daemon of these GPUs, real or simulated, and the GPUs that it manages."""
    folder = simulation.default_folder() if options.simulate is not None else None
    client = connect(simulated=folder)
    try:
        status = client.status()
    except (NotRunningError, AccessDeniedError):  # the locks tell who holds a GPU
        return None, {}
    if status.daemon.simulated != (options.simulate is not None):
        return None, {}
    return client, {gpu.uuid: gpu for gpu in status.gpus}


def _is_available(gpu: GpuStatus) -> bool:
    """Check whether the daemon could reserve a GPU now."""
    return gpu.occupancy == "IDLE" and gpu.reservation is None
