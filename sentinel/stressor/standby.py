"""A stressor without a GPU yet: it loads torch and the built-in workloads, and waits.

It creates no context and opens no driver, so it is in the way of no job. When a stressor is to be
started, this process becomes it, and saves the seconds that the import of torch takes.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import threading
import time
from pathlib import Path

from sentinel.config.specs import registered
from sentinel.errors import ChildExitCode
from sentinel.host.process_setup import (
    STANDBY,
    STRESSOR,
    set_process_title,
    setup_child_process,
)
from sentinel.host.small_process import give_back
from sentinel.host.unprivileged import become
from sentinel.protocol.codec import MAX_DATAGRAM_BYTES, decode, encode
from sentinel.protocol.stressor import Activate, Failed, FailureKind, Prepared, StandbySpec
from sentinel.stressor.loader import describe
from sentinel.stressor.main import load_torch, occupy, prefer_for_oom_kill, title_of

_LOADING_TITLE = "sentinel: standby, loads torch"
_TITLE = "sentinel: standby, becomes the next stressor"

#: The nice value of the thread that loads everything: the CPU belongs to other jobs.
_NICE = 19
_ENDING_POLL_S = 0.01
#: The package of Sentinel's own workloads.
_BUILT_IN = "sentinel.stressor."
#: The most descriptors that come with Activate.
_MAX_FDS = 16


def run(spec: StandbySpec, channel: socket.socket, parent: int) -> None:
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
    set_process_title(_TITLE, STANDBY)
    channel.send(encode(Prepared()))
    data, fds, *_rest = socket.recv_fds(channel, MAX_DATAGRAM_BYTES, _MAX_FDS)
    if not data:
        os._exit(ChildExitCode.ORPHANED)
    activated = decode(data, [Activate]).spec
    os.environ["CUDA_VISIBLE_DEVICES"] = activated.gpu.uuid
    set_process_title(title_of(activated), STRESSOR)
    occupy(activated, channel, lambda: fds[0])  # the other descriptors keep the locks


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
        for entry in registered():
            if entry.module.startswith(_BUILT_IN):
                importlib.import_module(entry.module)
        results.append(_why_unusable())
    except BaseException as error:  # noqa: BLE001 - an import may raise anything, even SystemExit
        results.append(describe(error) if not str(error) else str(error))
    give_back()


def _why_unusable() -> str | None:
    """Return why this process cannot take any GPU, or None."""
    import torch

    # By a plugin of torch; CUDA sees no GPU from now on. torch declares no types for it.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return "CUDA was initialised while torch was imported"
    return None
