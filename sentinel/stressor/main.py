"""The stressor process: setup, context, memory, workload, exit code; and the standby.

The supervisor imports this module to name :func:`run` and :func:`run_standby`. So it imports
neither torch nor a plugin until the lease is running.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
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
from sentinel.host.process_setup import (
    STANDBY,
    STRESSOR,
    InheritedFd,
    give_back,
    set_process_title,
    settle_heap,
    setup_child_process,
)
from sentinel.host.trusted_code import leave_out_untrusted
from sentinel.host.unprivileged import become, check_devices
from sentinel.protocol.codec import MAX_DATAGRAM_BYTES, decode, encode
from sentinel.protocol.shared_memory import FORKED, STRESSOR_STAMPS, Stamps
from sentinel.protocol.stressor import (
    Activate,
    CreatingContext,
    Failed,
    FailureKind,
    MemoryContention,
    Prepared,
    StandbySpec,
    StartStage,
    StressorSpec,
    size_in_chunks,
)
from sentinel.stressor import self_watch
from sentinel.stressor.forked_children import DEVICES, detach_forks
from sentinel.stressor.lease import LeaseKeeper
from sentinel.stressor.loader import (
    bind,
    bind_options,
    describe,
    import_torch,
    is_out_of_memory,
    load_built_in,
    load_workload,
)

if TYPE_CHECKING:
    from sentinel.stressor.context import WorkloadContext
    from sentinel.stressor.device import Device, Filling
    from sentinel.stressor.loader import BoundWorkload


#: The maximum length of a reason, which may contain a plugin's text.
_MAX_REASON_LENGTH = 2000

_RETURN_RULE = "a workload goes on until ctx.pace() returns False"
_ALLOCATION_RULE = (
    "; the workload allocated after Ready: take all memory, and do each kind of work once, before "
    "the second call of ctx.pace()"
)

_LOADING_TITLE = "sentinel: standby, loads torch"
_STANDBY_TITLE = "sentinel: standby, becomes the next stressor"

#: The nice value of the thread that loads everything: the CPU belongs to other jobs.
_NICE = 19
_ENDING_POLL_S = 0.01
#: The most descriptors that come with Activate.
_MAX_FDS = 16


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

    def set_up() -> Sequence[int]:
        setup_child_process(parent, title_of(spec), STRESSOR)
        prefer_for_oom_kill()
        held = [lock.detach() for lock in locks]
        if spec.account is not None:
            become(spec.account, parent, needed=spec.files)
        return (stamps.detach(), *held)

    occupy(spec, channel, set_up)


def occupy(spec: StressorSpec, channel: socket.socket, set_up: Callable[[], Sequence[int]]) -> None:
    """Occupy the GPU of ``spec`` until the stop; never returns.

    Ends by ``os._exit``: the driver frees everything at once, and no destructor, exit hook or full
    pipe can delay that.

    Args:
        spec: The GPU, the memory and the workload.
        channel: The SOCK_SEQPACKET socket to the supervisor.
        set_up: Prepares this process; returns the descriptors of its stamps and its locks.
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
    spec: StressorSpec, lease_keeper: LeaseKeeper, set_up: Callable[[], Sequence[int]]
) -> Failed | MemoryContention | None:
    """Run all stages; return the final message, or None after a stop."""
    stage = "the start of the stressor"
    ctx: WorkloadContext | None = None
    try:
        files = set_up()
        stamps = Stamps(files[0], STRESSOR_STAMPS)
        own = (*files[1:], lease_keeper.fileno())
        for file in (files[0], *own):
            os.set_inheritable(file, False)  # not for programs that a workload starts
        devices = DEVICES if spec.simulation is None else os.path.realpath(spec.simulation)
        detach_forks(own, devices, lambda: stamps.set(FORKED, time.monotonic()))
        lease_keeper.start()
        if spec.self_watch and not spec.clearing:
            self_watch.start(spec, lease_keeper, stamps)
        version = load_torch()
        if spec.account is not None and spec.simulation is None:
            check_devices(spec.account)
        workload = load_workload(spec.workload, spec.chosen_by)
        options = bind_options(workload, spec.options)
        lease_keeper.send(CreatingContext(torch=version))
        stage = f"the context on {spec.gpu.uuid}"
        bound = None if spec.clearing else bind(workload, options)
        device = _open_device(spec)
        if bound is None:
            return None
        stage = f"workload {spec.workload}"
        ctx = _take_memory(spec, device, lease_keeper, bound)
        bound.run(ctx)
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
    gc.disable()  # nothing of an import is garbage, and each search for it takes up to 0.1 s
    leave_out_untrusted()
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
    finally:
        gc.freeze()  # as does settle_heap, which comes after the context and the first kernels
        gc.enable()


def _open_device(spec: StressorSpec) -> Device:
    """Create a context on the GPU of ``spec``, or attach to it if it is simulated.

    The exit of this process closes it.

    Raises:
        DriverUnavailableError: torch cannot use the GPU, and a retry cannot help.
        torch.cuda.OutOfMemoryError: There is no room for a context.
    """
    if spec.simulation is None:
        from sentinel.stressor.device import CudaDevice

        return CudaDevice(spec.gpu)
    from sentinel.host.simulation import Registry
    from sentinel.stressor.simulated_device import SimulatedDevice

    return SimulatedDevice(Registry(Path(spec.simulation)), spec.gpu.uuid)


def _take_memory(
    spec: StressorSpec, device: Device, lease_keeper: LeaseKeeper, workload: BoundWorkload
) -> WorkloadContext:
    """Arm the kernel timer, rehearse the workload and take the memory.

    All that takes long comes before the memory: a newcomer must never wait for a process that holds
    much and dies late.
    """
    # All of these import torch, so they are not imported at module level.
    from sentinel.stressor.context import WorkloadContext
    from sentinel.stressor.device import fill, plan
    from sentinel.stressor.rehearsal import run_rehearsal
    from sentinel.stressor.start_watch import StartWatch

    lease_keeper.arm()
    device.follow()
    # Before a rehearsal: what that leaves in libraries is not part of the target.
    planned = plan(device.free_bytes(), spec.memory, spec.chunk, spec.reserve)
    watch = StartWatch(spec, lease_keeper, device)

    def context(filling: Filling) -> WorkloadContext:
        ctx = WorkloadContext(
            device=device, filling=filling, lease_keeper=lease_keeper, watch=watch
        )
        ctx.index, ctx.group = spec.gpu.index, spec.group
        ctx.pci_bus_id = spec.gpu.pci_bus_id if spec.simulation is None else ""
        if spec.goldens is not None:
            ctx.goldens = Goldens(Path(spec.goldens))
        ctx.inject_faults = spec.inject_faults
        if spec.rendezvous is not None:
            ctx.rendezvous = Path(spec.rendezvous)
        return ctx

    ctx = None
    if workload.rehearse is not None:
        ctx = run_rehearsal(workload.rehearse, device, planned, context, watch)
    settle_heap()  # host memory is unmapped before the driver frees that of the device
    watch.keep_still()
    watch.announce(StartStage.TAKING, size_in_chunks(planned.asked, planned.chunk))
    filling = fill(device, planned, watch)
    if ctx is None:
        ctx = context(filling)
    else:
        ctx.hold(filling)
    device.follow()
    ctx.prepare()
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


def run_standby(spec: StandbySpec, channel: socket.socket, parent: int) -> None:
    """Prepare, wait for a GPU, and run as its stressor; never returns.

    A plugin's module is imported once the GPU is known: many choose a device while they are
    imported, and CUDA keeps what it sees then.

    Args:
        spec: The user to become.
        channel: The SOCK_SEQPACKET socket to the supervisor.
        parent: The PID of the supervisor.
    """
    setup_child_process(parent, _LOADING_TITLE, STANDBY)
    prefer_for_oom_kill()
    if spec.account is not None:
        become(spec.account, parent, needed=spec.files)
    channel.settimeout(None)
    failure = _load_in_thread()
    if failure is not None:
        channel.send(encode(Failed(kind=FailureKind.UNUSABLE, reason=failure)))
        os._exit(ChildExitCode.FAILED)
    set_process_title(_STANDBY_TITLE, STANDBY)
    channel.send(encode(Prepared()))
    data, fds, *_rest = socket.recv_fds(channel, MAX_DATAGRAM_BYTES, _MAX_FDS)
    if not data:
        os._exit(ChildExitCode.ORPHANED)
    activated = decode(data, [Activate]).spec
    os.environ["CUDA_VISIBLE_DEVICES"] = activated.gpu.uuid
    set_process_title(title_of(activated), STRESSOR)
    occupy(activated, channel, lambda: fds)


def _load_in_thread() -> str | None:
    """Load everything at a low priority; return why that failed, or None.

    A nice value cannot be lowered again without privileges, and a stressor with a high one would
    free its memory late. It is one of a thread, so a thread does the work and ends.
    """
    results: list[str | None] = []
    loader = threading.Thread(target=_load, args=(results,), name="loader")
    loader.start()
    loader.join()
    while Path(f"/proc/self/task/{loader.native_id}").exists():  # the kernel ends it a little later
        time.sleep(_ENDING_POLL_S)
    if not results or results[0] is not None:
        return results[0] if results else "its loader ended without a result"
    late = _niced_threads()
    if not late:
        return None
    return f"the import of torch left {late} threads of a low priority, which would end late"


def _niced_threads() -> int:
    """Count the threads with a higher nice value than the main one."""
    own, count = os.getpriority(os.PRIO_PROCESS, 0), 0
    for entry in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            count += os.getpriority(os.PRIO_PROCESS, int(entry.name)) > own
    return count


def _load(results: list[str | None]) -> None:
    """Load everything that needs no GPU; append why that failed, or None."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    try:
        load_torch()
        load_built_in()
        _load_slow_parts()
        results.append(_why_unusable())
    except BaseException as error:  # noqa: BLE001 - an import may raise anything, even SystemExit
        results.append(describe(error) if not str(error) else str(error))
    give_back()


def _load_slow_parts() -> None:
    """Do what takes 0.1 s each, and is needed only once a GPU is known."""
    from sentinel.stressor.matmul import draw_usual
    from sentinel.stressor.workloads import UNIT_SEEDS

    self_watch.load_nvml()
    draw_usual(UNIT_SEEDS)


def _why_unusable() -> str | None:
    """Return why this process cannot take any GPU, or None."""
    import torch

    # By a plugin of torch; CUDA sees no GPU from now on. torch declares no types for it.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return "CUDA was initialised while torch was imported"
    return None
