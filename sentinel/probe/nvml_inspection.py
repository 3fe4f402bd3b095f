"""The process that makes every driver call that ``doctor`` needs, once, and ends.

It is a process of its own because each call may hang for ever or crash. It announces each call on a
board, so that the reader of the board knows where it ended.
"""

from __future__ import annotations

import contextlib
import functools
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from sentinel.host.processes.child_setup import InheritedFd, setup_child_process
from sentinel.probe.driver import DriverError, ReadError
from sentinel.probe.nvml_driver import NvmlDriver
from sentinel.probe.nvml_errors import ABSENT, as_text
from sentinel.protocol.codec import encode
from sentinel.protocol.counters import CallResult, InspectionDone
from sentinel.protocol.gpu import ProcessKind
from sentinel.protocol.shared_memory import MAX_GPUS, InflightCalls, slots_of

#: The call that is slow on a driver without persistence mode.
OPENING = "nvmlInit"

_UNCORRECTED = 1  # NVML_MEMORY_ERROR_TYPE_UNCORRECTED
_VOLATILE, _AGGREGATE = 0, 1  # NVML_VOLATILE_ECC, NVML_AGGREGATE_ECC

#: The calls for each GPU that return numbers: the call's name, NVML's function, more arguments.
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

#: NVML's name of each call, for people who search for what hung.
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

#: The calls for each GPU that return the PIDs in a list of processes.
LISTS = {"compute": ProcessKind.COMPUTE, "mps": ProcessKind.MPS}


class InspectedDriver(NvmlDriver):
    """NVML with the calls that the probe does not need; a GPU is named by its index."""

    def cuda(self) -> int | None:
        """Read the newest supported CUDA: 1000 times the major version and 10 times the minor."""
        with self._translated():
            version = self._or_none(self._nvml.nvmlSystemGetCudaDriverVersion)
            return None if version is None else int(version)

    def count(self) -> int:
        """Count the GPUs, those that cannot be reached among them."""
        with self._translated():
            return int(self._nvml.nvmlDeviceGetCount())

    def reach(self, index: int) -> None:
        """Open the handle of a GPU by its index, which touches no other GPU."""
        with self._translated():
            self._handles[str(index)] = self._nvml.nvmlDeviceGetHandleByIndex(index)

    def uuid(self, index: int) -> str:
        """Read the UUID of a GPU."""
        with self._translated():
            return as_text(self._nvml.nvmlDeviceGetUUID(self._handles[str(index)]))

    def model(self, index: int) -> str:
        """Read the name of a GPU's model."""
        handle = self._handles[str(index)]
        return self._text(lambda: self._nvml.nvmlDeviceGetName(handle)) or "unreadable name"

    def numbers(self, index: int, function: str, more: Iterable[int]) -> Sequence[int] | None:
        """Call a function that returns numbers; None if it is not supported."""
        call = getattr(self._nvml, function, None)
        if call is None:  # the binding is older than the function
            return None
        with self._translated():
            value = self._or_none(lambda: call(self._handles[str(index)], *more))
        if value is None:
            return None
        return [int(item) for item in value] if isinstance(value, list | tuple) else [int(value)]

    def pids(self, index: int, kind: ProcessKind) -> Sequence[int]:
        """Read the PIDs in one of a GPU's lists."""
        with self._translated():
            return [pid for pid, _ in self._list(kind, str(index))]

    def _or_none(self, call: Callable[[], Any]) -> Any:
        """Make a call; None if it is not supported."""
        try:
            return call()
        except self._nvml.NVMLError as error:
            if error.value in ABSENT:
                return None
            raise


def run(skip: Sequence[int], channel: socket.socket, parent: int, board: InheritedFd) -> None:
    """Make every call and send its CallResult, then InspectionDone; for a spawned process.

    Args:
        skip: The indices of GPUs that must not be touched.
        channel: A socket of whole messages (SOCK_SEQPACKET).
        parent: The PID of the process that reads the channel.
        board: Where each call is announced before it is made.
    """
    setup_child_process(parent, "sentinel: doctor, inspects the driver once")
    channel.settimeout(None)
    inspection = _Inspection(channel, InflightCalls.attach(board.detach()))
    inspection.inspect_all(frozenset(skip))
    channel.sendall(encode(InspectionDone()))


class _Inspection:
    """All calls, each announced before it is made and its result sent after."""

    def __init__(self, channel: socket.socket, board: InflightCalls) -> None:
        self._driver = InspectedDriver()
        self._channel = channel
        self._board = board

    def inspect_all(self, skip: frozenset[int]) -> None:
        """Inspect the driver, then each GPU."""
        driver = self._driver
        if self._call(OPENING, None, driver.open).lost:
            return
        self._call("version", None, driver.version)
        self._call("cuda", None, driver.cuda)
        count = self._call("count", None, driver.count)
        for index in range(min(MAX_GPUS, count.numbers[0] if count.numbers else 0)):
            if index not in skip:
                self._inspect_gpu(index)

    def _inspect_gpu(self, index: int) -> None:
        """Make every call for one GPU, until it is lost."""
        driver = self._driver
        if self._call("handle", index, functools.partial(driver.reach, index)).error is not None:
            return
        calls: dict[str, Callable[[], Any]] = {
            "uuid": functools.partial(driver.uuid, index),
            "name": functools.partial(driver.model, index),
        }
        for name, (function, more) in CALLS.items():
            calls[name] = functools.partial(driver.numbers, index, function, more)
        for name, kind in LISTS.items():
            calls[name] = functools.partial(driver.pids, index, kind)
        for name, call in calls.items():
            if self._call(name, index, call).lost:
                return

    def _call(self, name: str, gpu: int | None, call: Callable[[], Any]) -> CallResult:
        """Announce and make a call, then send its result and return it."""
        try:
            with announced(self._board, name, gpu):
                value = call()
        except DriverError as error:
            lost = not isinstance(error, ReadError)
            result = CallResult(call=name, gpu=gpu, error=error.reason, lost=lost)
        else:
            match value:
                case None:
                    result = CallResult(call=name, gpu=gpu)
                case str():
                    result = CallResult(call=name, gpu=gpu, text=value)
                case int():
                    result = CallResult(call=name, gpu=gpu, numbers=(value,))
                case _:
                    result = CallResult(call=name, gpu=gpu, numbers=tuple(value))
        self._channel.sendall(encode(result))
        return result


@contextlib.contextmanager
def announced(board: InflightCalls, name: str, gpu: int | None) -> Iterator[None]:
    """Announce a call on the board while it is made."""
    slot = 0 if gpu is None else slots_of(gpu)[0]
    board.announce(slot, name)
    try:
        yield
    finally:
        board.finish(slot)
