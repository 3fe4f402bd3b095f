"""A foreign job that requests nearly all of a GPU in its first allocation, and reports the outcome.

It is started early, loads everything, prints ``ready`` and waits for a line on its standard input.
With that line it starts to use the GPU. It knows nothing of sentinel. All times are seconds of the
monotonic clock; the GPU is the one that CUDA_VISIBLE_DEVICES leaves visible.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.die_with_parent import end_with_parent
from benchmarks.measured_line import write_line

#: How long, and at what interval, the free memory is watched after the allocation.
_WATCH = 0.3
_WATCH_EVERY = 0.02

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


def bare(size: int, stay: float) -> None:
    """Run as a bare CUDA program: create a context, read the free memory, allocate once."""
    driver = Driver()
    go = wait_for_start()
    driver.do("cuInit", 0)
    result, pointer = allocate(driver, 0, size, go)
    if stay:
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
    """Run sentinel's own test job on a simulated GPU."""
    go = wait_for_start()
    command = ["demo", "job", "--json", "--gpus", gpu, "--memory", f"{size or 2**20}B"]
    command += ["--for", f"{stay or _WATCH}s"]
    job = subprocess.Popen(
        [
            *(sys.executable, "-m", "benchmarks.die_with_parent"),
            *(sys.executable, "-m", "sentinel", *command),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert job.stdout is not None
    first = json.loads(job.stdout.readline())
    # The start of Python is not the GPU's doing; the job's own clock excludes it.
    result: Result = {"go": go, "got": first["event"] == "job.got", "memory_s": first["after_s"]}
    if stay:
        write_line(**result)
    job.stdout.read()
    job.wait()
    if not stay:
        write_line(**result)


def main() -> None:
    """Run the selected kind of newcomer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["bare", "in-turn", "torch", "simulated"])
    parser.add_argument("--ask", type=int, required=True, help="bytes; 0 only looks")
    parser.add_argument("--stay", type=float, default=0.0, help="keep it for so many seconds")
    parser.add_argument("--gpu", default="0", help="for a simulated one: which GPU")
    given = parser.parse_args()
    end_with_parent(signal.SIGKILL)
    try:
        if given.kind == "bare":
            bare(given.ask, given.stay)
        elif given.kind == "in-turn":
            in_turn(given.ask)
        elif given.kind == "torch":
            with_torch(given.ask, given.stay)
        else:
            simulated(given.gpu, given.ask, given.stay)
    except RuntimeError as error:
        write_line(go=0.0, got=False, error=str(error))
    os._exit(0)


if __name__ == "__main__":
    main()
