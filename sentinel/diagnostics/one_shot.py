"""Run a process that does one thing and ends; a call in it may hang or crash.

The process announces its calls on a board of in-flight calls, like the probe. So the caller knows
the call that hung or crashed, and can go on without it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait as wait_for_files
from typing import TypeVar

from sentinel.errors import WireError
from sentinel.host.log_file import KEPT_BYTES, BoundedOutput
from sentinel.host.process_setup import Inherited
from sentinel.protocol.shared_memory import InflightCalls, gpu_of
from sentinel.supervisor.child_process import ChildHandle
from sentinel.units import format_exit

T = TypeVar("T")

#: A spawn changes the variables and the standard error of this process: one thread at a time.
_SPAWN = threading.Lock()

#: More datagrams than a channel holds, so that the last ones are received before the exit.
_MAX_MESSAGES = 4096
#: How often the board is read, in seconds: an announcement wakes no reader.
_BOARD_INTERVAL_S = 0.25

#: The most of its output that is shown, in bytes.
MAX_OUTPUT_BYTES = 256 * 1024
#: The call that stands on the board until the process announces another.
START = "start"


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """How long a call of a one-shot process may take, in seconds."""

    #: For its start and for slow calls.
    opening: float
    #: For any other call.
    call: float

    def limit_s(self, slow: Collection[str], call: str) -> float:
        """Look up the limit of a call; ``slow`` are the names of slow calls."""
        return self.opening if call == START or call in slow else self.call


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A call that did not return."""

    #: The call under way, or START.
    call: str
    #: The index of the GPU that it was made for, or None.
    gpu: int | None
    #: What it did, as a predicate: "did not return within 5 s".
    what: str
    #: Whether it still ran when its time was over.
    has_hung: bool = False


@dataclass(frozen=True, kw_only=True)
class OneShotResult:
    """The result of a one-shot process."""

    #: Why its messages are incomplete, or None if they are complete.
    failure: Failure | None
    #: Whether the process survives SIGKILL; the interpreter's own exit would wait for it.
    stuck: bool


def run_one_shot(
    target: Callable[..., None],
    spec: object,
    environment: Mapping[str, str | None],
    *,
    kinds: Iterable[type[T]],
    take: Callable[[T], bool],
    timeout_s: Callable[[str], float],
) -> OneShotResult:
    """Spawn a process, take its messages until the last, and end it.

    What it prints is shown on standard error at its end, at most ``MAX_OUTPUT_BYTES`` of it.

    Args:
        target: The entry function: takes ``spec``, the channel, this process's PID and the board.
        spec: Its first argument.
        environment: Changes to the inherited variables; None removes one.
        kinds: The messages that it may send.
        take: Takes a message and returns whether it was the last; raises WireError if it is wrong.
        timeout_s: How long the named call may take, and how long the process may run without any.
    """
    try:
        board = InflightCalls.create()
    except OSError as error:
        failure = Failure(call=START, gpu=None, what=f"failed: {error}")
        return OneShotResult(failure=failure, stuck=False)
    board.announce(0, START)
    try:
        with _output_shown() as output:
            child = ChildHandle(
                target, kinds, max_messages=_MAX_MESSAGES, environment=environment, output=output
            )
            try:
                with _SPAWN:
                    child.start(1, spec, Inherited(board.fd))
                found = _receive(child, board, take, timeout_s)
            finally:
                stuck = not child.close()
    finally:
        board.close()
    return OneShotResult(failure=found, stuck=stuck)


@contextmanager
def _output_shown() -> Iterator[int]:
    """Provide a file in memory for the output of a process, and show the output in the end."""
    memory = os.memfd_create("sentinel-output", os.MFD_CLOEXEC)
    try:
        # Opened again, to append: after a cut, the writers go on at the new end.
        file = os.open(f"/proc/self/fd/{memory}", os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    finally:
        os.close(memory)
    try:
        with closing(BoundedOutput(file, MAX_OUTPUT_BYTES)):
            yield file
        output = os.pread(file, MAX_OUTPUT_BYTES + KEPT_BYTES, 0)
        if output:
            sys.stderr.write(output.decode(errors="replace"))
    finally:
        os.close(file)


def run_past_faults(
    target: Callable[..., None],
    spec: Callable[[tuple[int, ...]], object],
    *,
    kinds: Iterable[type[T]],
    take: Callable[[T], bool],
    seen: Callable[[], Iterable[int]],
    listed: Callable[[], Iterable[int]],
    timeout_s: Callable[[str, bool], float],
) -> tuple[dict[int | None, Failure], bool]:
    """Run one process after another, each of which skips the GPUs that the others have seen.

    If a process does not come back from a GPU, the next one goes on with the GPUs after it. If a
    call hangs on a second GPU, one process for each other GPU does, at the same time: a call that
    hangs on all GPUs of a host costs its timeout once, and a short one twice.

    Args:
        target: The entry function of the process; see ``run_one_shot``.
        spec: Builds its first argument from the indices of the GPUs to skip.
        kinds: The messages that it may send.
        take: Takes a message and returns whether it was the last; called by several threads.
        seen: Lists the indices of the GPUs that messages were about.
        listed: Lists the indices of all GPUs, as far as messages had them.
        timeout_s: How long the named call may take, and if it did not return for another GPU.

    Returns:
        The calls that did not return, by the index of the GPU or None, and whether a process
        survives SIGKILL.
    """
    faults: dict[int | None, Failure] = {}
    stuck = False

    def limit_s(call: str) -> float:
        return timeout_s(call, any(one.call == call for one in faults.values()))

    def run(skipped: Iterable[int]) -> OneShotResult:
        given = spec(tuple(sorted(skipped)))
        return run_one_shot(target, given, {}, kinds=kinds, take=take, timeout_s=limit_s)

    while None not in faults:
        known = {*seen(), *(gpu for gpu in faults if gpu is not None)}
        done = run(known)
        stuck = stuck or done.stuck
        failure = done.failure
        if failure is None or failure.gpu in faults:  # the latter should have been skipped
            break
        has_repeated = any(one.call == failure.call for one in faults.values())
        faults[failure.gpu] = failure
        gpus = {*listed()}
        left = sorted(gpus - {*known, *seen(), failure.gpu})
        if failure.has_hung and has_repeated and left:
            with ThreadPoolExecutor(len(left)) as pool:
                others = list(pool.map(run, (gpus - {gpu} for gpu in left)))
            stuck = stuck or any(other.stuck for other in others)
            found = {gpu: other.failure for gpu, other in zip(left, others, strict=True)}
            faults |= {gpu: failure for gpu, failure in found.items() if failure is not None}
            break
    return faults, stuck


def _receive(
    child: ChildHandle[T],
    board: InflightCalls,
    take: Callable[[T], bool],
    timeout_s: Callable[[str], float],
) -> Failure | None:
    """Take messages until the last one or a failure."""
    active_at = time.monotonic()
    while True:
        wait_for_files(child.files(), _BOARD_INTERVAL_S)
        received = child.collect()
        if received is None:
            raise RuntimeError("the exit of the process was collected twice")
        slot, call, since = max(
            board.outstanding(), key=lambda found: found[2], default=(0, START, active_at)
        )
        garbage = received.garbage
        for message in received.messages:
            active_at = time.monotonic()
            try:
                if take(message):
                    return None
            except WireError as error:
                garbage = error.what
                break
        limit_s = timeout_s(call)
        if received.spawn_error is not None:
            what = f"failed: {received.spawn_error}"
        elif garbage is not None:
            what = f"sent garbage: {garbage}"
        elif received.exit is not None:
            what = f"did not return: its process {format_exit(received.exit.code)}"
        elif time.monotonic() - max(since, active_at) >= limit_s:
            what = f"did not return within {limit_s:g} s"
            return Failure(call=call, gpu=gpu_of(slot), what=what, has_hung=True)
        else:
            continue
        return Failure(call=call, gpu=gpu_of(slot), what=what)
