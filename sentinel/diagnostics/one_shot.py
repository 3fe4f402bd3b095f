"""Run a process that does one thing and ends; a call in it may hang or crash.

The process announces its calls on a board of in-flight calls, like the probe. So the caller knows
the call that hung or crashed, and can go on without it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
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
    timeout_s: Callable[[str], float],
    again_s: Callable[[str], float],
) -> tuple[dict[int | None, Failure], bool]:
    """Run one process after another, each of which skips the GPUs that the others have seen.

    If a process does not come back from a GPU, the next one goes on with the GPUs after it, so the
    worst case is one timeout for each call, and a short one for each other GPU.

    Args:
        target: The entry function of the process; see ``run_one_shot``.
        spec: Builds its first argument from the indices of the GPUs to skip.
        kinds: The messages that it may send.
        take: Takes a message and returns whether it was the last.
        seen: Lists the indices of the GPUs that messages were about.
        timeout_s: How long the named call may take.
        again_s: How long it may take once it did not return for another GPU.

    Returns:
        The calls that did not return, by the index of the GPU or None, and whether a process
        survives SIGKILL.
    """
    faults: dict[int | None, Failure] = {}
    stuck = False

    def limit_s(call: str) -> float:
        return (again_s if any(one.call == call for one in faults.values()) else timeout_s)(call)

    while None not in faults:
        known = {*seen(), *(gpu for gpu in faults if gpu is not None)}
        done = run_one_shot(
            target,
            spec(tuple(sorted(known))),
            {},
            kinds=kinds,
            take=take,
            timeout_s=limit_s,
        )
        stuck = stuck or done.stuck
        failure = done.failure
        if failure is None or failure.gpu in faults:  # the latter should have been skipped
            break
        faults[failure.gpu] = failure
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
        else:
            continue
        return Failure(call=call, gpu=gpu_of(slot), what=what)
