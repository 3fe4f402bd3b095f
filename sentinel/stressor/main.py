"""The stressor process: setup, context, memory, workload, exit code.

The supervisor imports this module to name :func:`run`, so it imports neither torch nor a plugin
until the lease is running.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sentinel.errors import (
    ChildExitCode,
    ConfigError,
    MemoryContentionError,
    PeersError,
    SentinelError,
    WorkloadError,
)
from sentinel.host.golden_store import Goldens
from sentinel.host.process_setup import STRESSOR, InheritedFd, setup_child_process
from sentinel.host.unprivileged import become, check_devices
from sentinel.protocol.shared_memory import Stamps
from sentinel.protocol.stressor import (
    CreatingContext,
    Failed,
    FailureKind,
    MemoryContention,
    Preparing,
    StressorSpec,
)
from sentinel.stressor import self_watch
from sentinel.stressor.lease import LeaseKeeper
from sentinel.stressor.loader import (
    bind_options,
    describe,
    import_torch,
    is_out_of_memory,
    load_workload,
    start,
)

if TYPE_CHECKING:
    from sentinel.stressor.context import WorkloadContext


#: The maximum length of a reason, which may contain a plugin's text.
_MAX_REASON_LENGTH = 2000

_RETURN_RULE = "a workload goes on until ctx.pace() returns False"
_ALLOCATION_RULE = (
    "; the workload allocated after Ready: take all memory, and do each kind of work once, before "
    "the second call of ctx.pace()"
)


def run(
    spec: StressorSpec,
    channel: socket.socket,
    parent: int,
    stamps: InheritedFd,
    locks: tuple[InheritedFd, ...],
) -> None:
    """Run as the stressor that ``spec`` describes; never returns.

    Args:
        spec: The GPU, the memory and the workload.
        channel: The SOCK_SEQPACKET socket to the supervisor.
        parent: The PID of the supervisor.
        stamps: Shared memory for the time of the last own look at the GPU's memory.
        locks: Descriptors whose locks last as long as this process.
    """

    def set_up() -> int:
        setup_child_process(parent, title_of(spec), STRESSOR)
        prefer_for_oom_kill()
        for lock in locks:
            os.set_inheritable(lock.detach(), False)  # not for programs that a workload starts
        if spec.account is not None:
            become(spec.account, parent, needed=spec.files)
        return stamps.detach()

    occupy(spec, channel, set_up)


def occupy(spec: StressorSpec, channel: socket.socket, set_up: Callable[[], int]) -> None:
    """Occupy the GPU of ``spec`` until the stop; never returns.

    Ends by ``os._exit``: the driver frees everything at once, and no destructor, exit hook or full
    pipe can delay that.

    Args:
        spec: The GPU, the memory and the workload.
        channel: The SOCK_SEQPACKET socket to the supervisor.
        set_up: Prepares this process; returns the descriptor of its stamps.
    """
    code = ChildExitCode.FAILED
    try:
        lease_keeper = LeaseKeeper(channel, spec.lease)
        last = _run_stages(spec, lease_keeper, set_up)
        if last is None:
            code = ChildExitCode.DONE
        else:
            lease_keeper.send(last)
    finally:
        os._exit(code)


def title_of(spec: StressorSpec) -> str:
    """Return the process title, which nvidia-smi shows."""
    return f"sentinel: keeps idle GPU {spec.gpu.uuid[:12]} warm, yields at once"


def _run_stages(
    spec: StressorSpec, lease_keeper: LeaseKeeper, set_up: Callable[[], int]
) -> Failed | MemoryContention | None:
    """Run all stages; return the final message, or None after a stop."""
    stage = "the start of the stressor"
    ctx: WorkloadContext | None = None
    try:
        stamps = Stamps(set_up(), 1)
        lease_keeper.start()
        if spec.self_watch and not spec.clearing:
            self_watch.start(spec, lease_keeper, stamps)
        version = load_torch()
        if spec.account is not None and spec.simulation is None:
            check_devices(spec.account)
        workload = load_workload(spec.workload)
        options = bind_options(workload, spec.options)
        lease_keeper.send(CreatingContext(torch=version))
        stage = f"the context on {spec.gpu.uuid}"
        if spec.clearing:
            _open_context(spec)
            return None
        ctx = _attach(spec, lease_keeper)
        stage = f"workload {spec.workload}"
        lease_keeper.send(Preparing())
        start(workload, ctx, options)
        ctx.finish()
    except BaseException as error:  # noqa: BLE001 - a workload may raise anything, even SystemExit
        return _failure_message(error, stage, ready=ctx is not None and ctx.ready)
    if lease_keeper.stopped.is_set():
        return None
    reason = f"{stage} returned after {ctx.iterations} iterations; {_RETURN_RULE}"
    return Failed(kind=FailureKind.RETURNED, reason=reason)


def load_torch() -> str:
    """Import torch and the modules that depend on it, and return torch's version.

    Raises:
        ConfigError: It cannot be imported.
    """
    try:
        import_torch()
        import torch

        import sentinel.stressor.context  # noqa: F401 - it imports torch, too

        # One thread: the CPU belongs to other jobs.
        torch.set_num_threads(1)
        return str(torch.__version__)
    except Exception as error:
        what = f"torch cannot be imported: {describe(error)}"
        raise ConfigError(what, "See: sentinel doctor") from error


def _open_context(spec: StressorSpec) -> None:
    """Create a context; the exit of this process closes it."""
    from sentinel.stressor.device import open_device

    open_device(spec)


def _attach(spec: StressorSpec, lease_keeper: LeaseKeeper) -> WorkloadContext:
    """Create the context, arm the kernel timer and take the memory."""
    # All of these import torch, so they are not imported at module level.
    from sentinel.stressor.context import WorkloadContext
    from sentinel.stressor.device import ContentionMonitor, fill, open_device

    device = open_device(spec)
    lease_keeper.arm()
    monitor = ContentionMonitor(device) if spec.check_contention else None
    if monitor is not None:
        monitor.wait_until_quiet()
    filling = fill(device, spec.memory, spec.chunk, spec.reserve, monitor)
    device.follow(filling.chunks)
    ctx = WorkloadContext(
        device=device, filling=filling, lease_keeper=lease_keeper, monitor=monitor
    )
    ctx.index, ctx.group = spec.gpu.index, spec.group
    if spec.goldens is not None:
        ctx.goldens = Goldens(Path(spec.goldens))
    if spec.rendezvous is not None:
        ctx.rendezvous = Path(spec.rendezvous)
    return ctx


def _failure_message(error: BaseException, stage: str, *, ready: bool) -> Failed | MemoryContention:
    """Return the message that describes ``error``."""
    if isinstance(error, MemoryContentionError):
        return MemoryContention(grown=error.grown)
    if isinstance(error, SentinelError):
        reason = f"{error.what}. {error.remedy}" if error.remedy else error.what
        malformed = isinstance(error, WorkloadError)
        kind = FailureKind.MALFORMED if malformed else FailureKind.UNUSABLE
        kind = FailureKind.PEERS if isinstance(error, PeersError) else kind
        return Failed(kind=kind, reason=" ".join(reason.split())[:_MAX_REASON_LENGTH])
    reason = f"{stage} raised {describe(error)}"
    if is_out_of_memory(error):
        return Failed(
            kind=FailureKind.OUT_OF_MEMORY, reason=reason + (_ALLOCATION_RULE if ready else "")
        )
    return Failed(kind=FailureKind.WORKLOAD, reason=reason)


def prefer_for_oom_kill() -> None:
    """Make this process the first choice of the kernel's out-of-memory killer."""
    with contextlib.suppress(PermissionError, FileNotFoundError):  # no such right, or no such file
        Path("/proc/self/oom_score_adj").write_text("1000")
