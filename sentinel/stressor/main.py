"""The life of a stressor child, from birth to exit code.

The supervisor imports this module to name :func:`run`, so nothing here imports torch or a plugin
before the child has its leash on.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from sentinel.errors import ConfigError, SentinelError, WorkloadError
from sentinel.host.child_setup import setup_child_process
from sentinel.host.golden_store import Goldens
from sentinel.protocol.stressor import (
    ChildExitCode,
    CreatingContext,
    Failed,
    FailureKind,
    MemoryContention,
    StressorSpec,
)
from sentinel.stressor.lease import LeaseKeeper
from sentinel.stressor.loader import describe, load_workload
from sentinel.stressor.options import bind_options, start

if TYPE_CHECKING:
    from sentinel.stressor.context import WorkloadContext


#: How much is passed on of an error's text that a plugin may have written.
_LONGEST = 2000

_GO_ON = "a workload goes on until ctx.pace() says False"
_LATE = (
    "; the workload allocated after Ready: take all memory, and do each kind of work once, before "
    "the second call of ctx.pace()"
)


class _Descriptor(Protocol):
    """A file descriptor on its way into this process; multiprocessing's DupFd."""

    def detach(self) -> int: ...


def run(spec: StressorSpec, channel: socket.socket, parent: int, locks: tuple[object, ...]) -> None:
    """Live as the stressor that ``spec`` describes; never returns.

    Ends by ``os._exit``: the driver frees everything in one piece, and no destructor, exit hook or
    full pipe can delay that.

    Args:
        spec: The GPU, the memory and the workload.
        channel: The SOCK_SEQPACKET socket to the supervisor.
        parent: The PID of the supervisor.
        locks: Descriptors, as multiprocessing's DupFd, whose locks last as long as this process.
    """
    code = ChildExitCode.FAILED
    try:
        lease_keeper = LeaseKeeper(channel, spec.lease)
        last = _live(spec, lease_keeper, parent, locks)
        if last is None:
            code = ChildExitCode.DONE
        else:
            lease_keeper.say(last)
    finally:
        os._exit(code)


def _live(
    spec: StressorSpec, lease_keeper: LeaseKeeper, parent: int, locks: tuple[object, ...]
) -> Failed | MemoryContention | None:
    """Go through the stages of a child's life; return its last words, or None after a stop."""
    stage = "the start of the stressor"
    ctx: WorkloadContext | None = None
    try:
        setup_child_process(
            parent, f"sentinel: keeps idle GPU {spec.gpu.uuid[:12]} warm, yields at once"
        )
        _be_first_to_go()
        for lock in locks:
            cast("_Descriptor", lock).detach()
        lease_keeper.start()
        version = _import_torch()
        workload = load_workload(spec.workload)
        options = bind_options(workload, spec.options)
        lease_keeper.say(CreatingContext(torch=version))
        stage = f"the context on {spec.gpu.uuid}"
        if spec.clearing:
            _open_context(spec)
            return None
        ctx = _attach(spec, lease_keeper)
        stage = f"workload {spec.workload}"
        start(workload, ctx, options)
        ctx.finish()
    except BaseException as error:  # noqa: BLE001 - a workload may raise anything, even SystemExit
        return _last_words(error, stage, ready=ctx is not None and ctx.ready)
    if lease_keeper.stopped.is_set():
        return None
    reason = f"{stage} returned after {ctx.iterations} iterations; {_GO_ON}"
    return Failed(kind=FailureKind.RETURNED, reason=reason)


def _import_torch() -> str:
    """Import torch with everything of ours that needs it; return its version.

    Raises:
        ConfigError: It cannot be imported.
    """
    try:
        import torch  # only the child may, on its leash

        import sentinel.stressor.context  # noqa: F401 - it imports torch, too

        # One thread: the CPU belongs to the jobs of others.
        torch.set_num_threads(1)
        return str(torch.__version__)
    except Exception as error:
        what = f"torch cannot be imported: {describe(error)}"
        raise ConfigError(what, "Install torch, 2.6 or later, for this Python.") from error


def _open_context(spec: StressorSpec) -> None:
    """Create a context; the end of this process closes it."""
    from sentinel.stressor.device import open_device

    open_device(spec)


def _attach(spec: StressorSpec, lease_keeper: LeaseKeeper) -> WorkloadContext:
    """Create the context, tighten the leash and take the memory."""
    # All of these import torch, so the parent must not.
    from sentinel.stressor.contention import Lookout
    from sentinel.stressor.context import WorkloadContext
    from sentinel.stressor.device import open_device
    from sentinel.stressor.memory import fill

    device = open_device(spec)
    lease_keeper.arm()
    lookout = Lookout(device) if spec.check_contention else None
    if lookout is not None:
        lookout.wait_for_calm()
    filling = fill(device, spec.memory, spec.chunk, spec.reserve, lookout)
    goldens = Goldens(Path(spec.goldens)) if spec.goldens is not None else None
    return WorkloadContext(
        device=device, filling=filling, lease_keeper=lease_keeper, lookout=lookout, goldens=goldens
    )


def _last_words(error: BaseException, stage: str, *, ready: bool) -> Failed | MemoryContention:
    """Return what to tell the supervisor of ``error``."""
    contention = _crowded(error)
    if contention is not None:
        return contention
    if isinstance(error, SentinelError):
        reason = f"{error.what}. {error.remedy}" if error.remedy else error.what
        malformed = isinstance(error, WorkloadError)
        kind = FailureKind.MALFORMED if malformed else FailureKind.UNUSABLE
        return Failed(kind=kind, reason=" ".join(reason.split())[:_LONGEST])
    reason = f"{stage} raised {describe(error)}"
    if _is_out_of_memory(error):
        return Failed(kind=FailureKind.OUT_OF_MEMORY, reason=reason + (_LATE if ready else ""))
    return Failed(kind=FailureKind.WORKLOAD, reason=reason)


def _is_out_of_memory(error: BaseException) -> bool:
    """Return whether the device has no memory left; without torch it cannot have been asked."""
    if "torch" not in sys.modules:
        return False
    from sentinel.stressor.device import is_out_of_memory

    return is_out_of_memory(error)


def _crowded(error: BaseException) -> MemoryContention | None:
    """Return that somebody else came meanwhile, if so; nobody looked out before torch was there."""
    if "torch" not in sys.modules:
        return None
    from sentinel.stressor.contention import CrowdedError

    return MemoryContention(grown=error.grown) if isinstance(error, CrowdedError) else None


def _be_first_to_go() -> None:
    """Offer this process to the kernel when the host runs out of memory."""
    with contextlib.suppress(PermissionError, FileNotFoundError):  # no such right, or no such file
        Path("/proc/self/oom_score_adj").write_text("1000")
