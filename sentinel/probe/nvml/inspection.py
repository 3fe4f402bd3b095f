"""The process that asks the driver for everything that `doctor` looks at, once, and ends.

A process of its own, since each of these calls may hang for ever or take the process with it. It
says what it is about to ask before it asks, so that whoever listens knows where it ended.
"""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

from sentinel.host.child_setup import setup_child_process
from sentinel.probe.driver import DriverError, ReadError
from sentinel.probe.nvml.driver import NvmlDriver, as_text
from sentinel.probe.nvml.errors import ABSENT
from sentinel.protocol.codec import encode
from sentinel.protocol.gpu import ProcessKind
from sentinel.protocol.inspection import Answer, Asking, Examined

#: The call that a driver without persistence takes its time for.
OPENING = "nvmlInit"

_UNCORRECTED = 1  # NVML_MEMORY_ERROR_TYPE_UNCORRECTED
_VOLATILE, _AGGREGATE = 0, 1  # NVML_VOLATILE_ECC, NVML_AGGREGATE_ECC

#: What each GPU is asked in numbers: our name of the answer, NVML's function, more arguments.
CALLS: dict[str, tuple[str, tuple[int, ...]]] = {
    "minor": ("nvmlDeviceGetMinorNumber", ()),
    "persistence": ("nvmlDeviceGetPersistenceMode", ()),
    "compute_mode": ("nvmlDeviceGetComputeMode", ()),
    "mig": ("nvmlDeviceGetMigMode", ()),
    "display": ("nvmlDeviceGetDisplayActive", ()),
    "ecc": ("nvmlDeviceGetEccMode", ()),
    "volatile": ("nvmlDeviceGetTotalEccErrors", (_UNCORRECTED, _VOLATILE)),
    "aggregate": ("nvmlDeviceGetTotalEccErrors", (_UNCORRECTED, _AGGREGATE)),
    "remapped": ("nvmlDeviceGetRemappedRows", ()),
    "retiring": ("nvmlDeviceGetRetiredPagesPendingStatus", ()),
}

#: NVML's name of each call, for people who look for what hung.
FUNCTIONS = {name: function for name, (function, _) in CALLS.items()} | {
    "version": "nvmlSystemGetDriverVersion",
    "cuda": "nvmlSystemGetCudaDriverVersion",
    "count": "nvmlDeviceGetCount",
    "handle": "nvmlDeviceGetHandleByIndex",
    "uuid": "nvmlDeviceGetUUID",
    "name": "nvmlDeviceGetName",
    "compute": "nvmlDeviceGetComputeRunningProcesses",
    "mps": "nvmlDeviceGetMPSComputeRunningProcesses",
}

#: The lists of processes that each GPU is asked for, whose answers are PIDs.
LISTS = {"compute": ProcessKind.COMPUTE, "mps": ProcessKind.MPS}


class _Examined(NvmlDriver):
    """NVML, asked for what an examination needs and the probe does not; GPUs go by their index."""

    def cuda(self) -> int | None:
        """Return the newest CUDA that the driver supports: 1000 times its major, 10 its minor."""
        with self._translated():
            version = self._told(self._nvml.nvmlSystemGetCudaDriverVersion)
            return None if version is None else int(version)

    def count(self) -> int:
        """Return how many GPUs NVML counts, those that cannot be reached among them."""
        with self._translated():
            return int(self._nvml.nvmlDeviceGetCount())

    def reach(self, index: int) -> None:
        """Get hold of a GPU; by its index, which touches no other GPU."""
        with self._translated():
            self._handles[str(index)] = self._nvml.nvmlDeviceGetHandleByIndex(index)

    def uuid(self, index: int) -> str:
        """Return the UUID of a GPU."""
        with self._translated():
            return as_text(self._nvml.nvmlDeviceGetUUID(self._handles[str(index)]))

    def model(self, index: int) -> str:
        """Return the name of a GPU's model."""
        handle = self._handles[str(index)]
        return self._for_people("name", lambda: self._nvml.nvmlDeviceGetName(handle))

    def numbers(self, index: int, function: str, more: Iterable[int]) -> Sequence[int] | None:
        """Return what one of NVML's functions says; ``None`` where there is no such thing."""
        ask = getattr(self._nvml, function, None)
        if ask is None:  # a binding older than the function
            return None
        with self._translated():
            said = self._told(lambda: ask(self._handles[str(index)], *more))
        if said is None:
            return None
        return [int(number) for number in said] if isinstance(said, list | tuple) else [int(said)]

    def pids(self, index: int, kind: ProcessKind) -> Sequence[int]:
        """Return the PIDs in one of a GPU's lists."""
        with self._translated():
            return [pid for pid, _ in self._list(kind, str(index))]

    def _told(self, ask: Callable[[], Any]) -> Any:
        """Return an answer, or ``None`` where there is no such thing to tell."""
        try:
            return ask()
        except self._nvml.NVMLError as error:
            if error.value in ABSENT:
                return None
            raise


def run(skip: Sequence[int], channel: socket.socket, parent: int) -> None:
    """Ask the driver for everything; the target of a spawned process.

    Args:
        skip: The indices of GPUs that are not to be touched.
        channel: A socket of whole messages (SOCK_SEQPACKET); each call is an Asking and then an
            Answer, and Examined is the last word.
        parent: The PID of the process that listens.
    """
    setup_child_process(parent, "sentinel: doctor, asks the driver once")
    channel.settimeout(None)
    for message in _examination(_Examined(), frozenset(skip)):
        channel.sendall(encode(message))


def _examination(driver: _Examined, skip: frozenset[int]) -> Iterator[Asking | Answer | Examined]:
    """Yield each call before it is made, and what came of it."""
    opened = yield from _asked(OPENING, None, driver.open)
    if not opened.lost:
        yield from _asked("version", None, driver.version)
        yield from _asked("cuda", None, driver.cuda)
        count = yield from _asked("count", None, driver.count)
        for index in range(count.numbers[0] if count.numbers else 0):
            if index not in skip:
                yield from _examined(driver, index)
    yield Examined()


def _examined(driver: _Examined, index: int) -> Iterator[Asking | Answer]:
    """Yield everything that is asked of one GPU; a lost one is asked no further."""
    reached = yield from _asked("handle", index, functools.partial(driver.reach, index))
    if reached.error is not None:
        return
    questions: dict[str, Callable[[], Any]] = {
        "uuid": functools.partial(driver.uuid, index),
        "name": functools.partial(driver.model, index),
    }
    for name, (function, more) in CALLS.items():
        questions[name] = functools.partial(driver.numbers, index, function, more)
    for name, kind in LISTS.items():
        questions[name] = functools.partial(driver.pids, index, kind)
    for name, question in questions.items():
        answer = yield from _asked(name, index, question)
        if answer.lost:
            return


def _asked(
    call: str, gpu: int | None, ask: Callable[[], Any]
) -> Generator[Asking | Answer, None, Answer]:
    """Yield a call and its answer, and return the answer."""
    yield Asking(call=call, gpu=gpu)
    try:
        said = ask()
    except DriverError as error:
        lost = not isinstance(error, ReadError)
        answer = Answer(call=call, gpu=gpu, error=error.reason, lost=lost)
    else:
        match said:
            case None:
                answer = Answer(call=call, gpu=gpu)
            case str():
                answer = Answer(call=call, gpu=gpu, text=said)
            case int():
                answer = Answer(call=call, gpu=gpu, numbers=(said,))
            case _:
                answer = Answer(call=call, gpu=gpu, numbers=tuple(said))
    yield answer
    return answer
