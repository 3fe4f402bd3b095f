"""A foreign job that requests nearly all of a GPU in its first allocation, and reports the outcome.

It is started early, loads everything, prints ``ready`` and waits for a line on its standard input.
With that line it starts to use the GPU. It knows nothing of sentinel. All times are seconds of the
monotonic clock; the GPU is the one that CUDA_VISIBLE_DEVICES leaves visible.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import io
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from benchmarks.die_with_parent import end_with_parent
from benchmarks.measured_line import write_line

#: How long, and at what interval, the free memory is watched after the allocation.
_WATCH = 0.3
_WATCH_EVERY = 0.02
#: How long a brief newcomer keeps the memory of a simulated GPU.
_BRIEF = 0.01

#: CUDA_ERROR_OUT_OF_MEMORY
_OUT_OF_MEMORY = 2

Result = dict[str, Any]


def wait_for_start() -> float:
    """Report that everything is loaded, and return the time of the starting line."""
    write_line(ready=True, pid=os.getpid())
    if not sys.stdin.readline():
        os._exit(0)
    return time.monotonic()


def grown(first: int, free: Callable[[], int]) -> int:
    """Return by how many bytes the free memory grew beyond ``first``."""
    most = first
    until = time.monotonic() + _WATCH
    while time.monotonic() < until:
        most = max(most, free())
        time.sleep(_WATCH_EVERY)
    return most - first


class Driver:
    """CUDA's driver library, loaded but not initialized, which opens no device."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")

    def call(self, name: str, *arguments: Any) -> int:
        """Return the status of a call."""
        return int(getattr(self._cuda, name)(*arguments))

    def do(self, name: str, *arguments: Any) -> None:
        """Make a call; raise if it fails."""
        status = self.call(name, *arguments)
        if status != 0:
            raise RuntimeError(f"{name} failed with {status}")

    def memory(self) -> tuple[int, int]:
        """Return free and total bytes, as the context sees them."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.do("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value


def allocate(driver: Driver, number: int, size: int, go: float) -> tuple[Result, ctypes.c_uint64]:
    """Create a context on GPU ``number``, read the free memory, and allocate once."""
    initialised = time.monotonic()
    device, context = ctypes.c_int(), ctypes.c_void_p()
    driver.do("cuDeviceGet", ctypes.byref(device), number)
    driver.do("cuCtxCreate_v2", ctypes.byref(context), 0, device)
    attached = time.monotonic()
    free, total = driver.memory()
    pointer = ctypes.c_uint64()
    requested_at = time.monotonic()
    count = ctypes.c_size_t(size)
    status = driver.call("cuMemAlloc_v2", ctypes.byref(pointer), count) if size else 0
    done = time.monotonic()
    if status not in {0, _OUT_OF_MEMORY}:
        raise RuntimeError(f"cuMemAlloc failed with {status}")
    result: Result = {
        "go": go,
        "got": status == 0,
        "free": free,
        "total": total,
        "init_s": initialised - go,
        "context_s": attached - initialised,
        "allocation_s": done - requested_at,
        "memory_s": done - go,
    }
    return result, pointer


def bare(size: int, stay: float, *, brief: bool = False) -> None:
    """Run as a bare CUDA program: create a context, read the free memory, allocate once.

    Args:
        size: How many bytes to allocate.
        stay: How many seconds to keep them.
        brief: Leave at once, without a watch of the free memory.
    """
    driver = Driver()
    go = wait_for_start()
    driver.do("cuInit", 0)
    result, pointer = allocate(driver, 0, size, go)
    if stay or brief:
        write_line(**result)
        time.sleep(stay)
        return
    free = result["free"]
    if result["got"] and size:
        driver.do("cuMemFree_v2", pointer)
    write_line(**result, grown=grown(free, lambda: driver.memory()[0]))


def in_turn(size: int) -> None:
    """Run as a bare CUDA program that takes each visible GPU, one after the other, and keeps all.

    A turn begins with the end of the previous one, so only the first includes ``cuInit``.
    """
    driver = Driver()
    begin = wait_for_start()
    driver.do("cuInit", 0)
    count = ctypes.c_int()
    driver.do("cuDeviceGetCount", ctypes.byref(count))
    for number in range(count.value):
        write_line(turn=number, **allocate(driver, number, size, begin)[0])
        begin = time.monotonic()
    sys.stdin.readline()


def with_torch(size: int, stay: float) -> None:
    """Run as a torch program: read the free memory, then create one tensor."""
    import torch

    cuda: Any = torch.cuda
    go = wait_for_start()
    free, total = cuda.mem_get_info(0)
    requested_at = time.monotonic()
    try:
        tensor = torch.empty(size, dtype=torch.uint8, device="cuda:0")
        got = True
    except torch.cuda.OutOfMemoryError:
        tensor, got = None, False
    done = time.monotonic()
    result: Result = {
        "go": go,
        "got": got,
        "free": free,
        "total": total,
        "context_s": requested_at - go,
        "allocation_s": done - requested_at,
        "memory_s": done - go,
    }
    if stay:
        write_line(**result)
        time.sleep(stay)
        return
    del tensor
    cuda.empty_cache()
    write_line(**result, grown=grown(free, lambda: int(cuda.mem_get_info(0)[0])))


def simulated(gpu: str, size: int, stay: float) -> None:
    """Run sentinel's own test job on a simulated GPU, in this process."""
    from sentinel.cli.tools.demo import job_command

    command = ["--json", "--gpus", gpu, "--memory", f"{size or 2**20}B", "--for", f"{stay}s"]
    go = wait_for_start()
    with contextlib.redirect_stdout(_Job(go, sys.stdout)):
        job_command.main(command, standalone_mode=False)


class _Job(io.StringIO):
    """The standard output of the test job; its first line is the outcome.

    Args:
        go: The time of the starting line.
        output: Where the outcome is written.
    """

    def __init__(self, go: float, output: TextIO) -> None:
        super().__init__()
        self._go, self._output = go, output

    def flush(self) -> None:
        """Write the outcome, once."""
        first, newline, rest = self.getvalue().partition("\n")
        if newline and not rest:
            seen = json.loads(first)
            got = seen["event"] == "job.got"
            with contextlib.redirect_stdout(self._output):
                write_line(go=self._go, got=got, memory_s=seen["at"] - self._go)


def main() -> None:
    """Run the selected kind of newcomer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["bare", "brief", "in-turn", "torch"])
    parser.add_argument("--ask", type=int, required=True, help="bytes; 0 only looks")
    parser.add_argument("--stay", type=float, default=0.0, help="keep it for so many seconds")
    parser.add_argument("--simulated", metavar="GPU", help="of any kind, on this simulated GPU")
    given = parser.parse_args()
    end_with_parent(signal.SIGKILL)
    try:
        if given.simulated is not None:
            least = _BRIEF if given.kind == "brief" else _WATCH
            simulated(given.simulated, given.ask, given.stay or least)
        elif given.kind == "in-turn":
            in_turn(given.ask)
        elif given.kind == "torch":
            with_torch(given.ask, given.stay)
        else:
            bare(given.ask, given.stay, brief=given.kind == "brief")
    except RuntimeError as error:
        write_line(go=0.0, got=False, error=str(error))
    os._exit(0)


if __name__ == "__main__":
    main()
