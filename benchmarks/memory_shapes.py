"""How the shape of held memory delays a newcomer: ``python -m benchmarks.memory_shapes``.

A torch program holds 122 GiB in one of several shapes, with a matrix product running, and is killed
at a newcomer's very start. All programs are loaded in advance. It needs an H200, and the GPU for
itself.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.host_gpus import RealHost
from benchmarks.measured_line import write_line
from benchmarks.newcomer import Driver
from benchmarks.results import Results

GIB = 2**30
#: What a holder takes, and what a newcomer requests of an empty card's free memory.
HELD_BYTES, SHARE = 122 * GIB, 0.97
#: By the name of the shape: whether it is made of cuMemCreate handles, and the bytes of a piece.
SHAPES = {
    "cudaMalloc 512 MiB": (False, GIB // 2),
    "handles 512 MiB": (True, GIB // 2),
    "handles 2 GiB": (True, 2 * GIB),
    "handles 4 GiB": (True, 4 * GIB),
    "handles 16 GiB": (True, 16 * GIB),
}
#: Programs of each kind that are loaded in advance.
AHEAD = 4
#: A GPU with less used memory is empty.
EMPTY_BYTES = GIB
#: From the driver API: a pinned allocation, a device as its place, access for reads and writes.
_PINNED, _DEVICE, _READ_WRITE = 1, 1, 3


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


def map_handles(driver: Driver, total: int, size: int) -> list[tuple[int, int]]:
    """Take ``total`` bytes in handles of ``size`` bytes, mapped one after the other.

    Returns:
        Address and bytes of each.
    """
    sizes = [size] * (total // size) + ([total % size] if total % size else [])
    where = ctypes.c_uint64()
    properties = _Properties(type=_PINNED, location=_Location(_DEVICE, 0))
    access = _Access(location=_Location(_DEVICE, 0), flags=_READ_WRITE)
    zero, none = ctypes.c_size_t(0), ctypes.c_uint64(0)
    driver.do("cuMemAddressReserve", ctypes.byref(where), ctypes.c_size_t(total), zero, none, none)
    found, at = [], where.value
    for siz in sizes:
        handle, start = ctypes.c_uint64(), ctypes.c_uint64(at)
        length = ctypes.c_size_t(siz)
        driver.do("cuMemCreate", ctypes.byref(handle), length, ctypes.byref(properties), none)
        driver.do("cuMemMap", start, length, zero, handle, none)
        driver.do("cuMemSetAccess", start, length, ctypes.byref(access), ctypes.c_size_t(1))
        driver.do("cuMemRelease", handle)
        found.append((at, siz))
        at += siz
    return found


def hold() -> None:
    """Hold memory in the shape that a line on standard input names, until it is killed."""
    import torch

    write_line(loaded=True)
    handles, size = SHAPES[sys.stdin.readline().strip()]
    cuda: Any = torch.cuda
    matrix = torch.randn(8192, 8192, device="cuda:0", dtype=torch.bfloat16)
    product = torch.empty_like(matrix)
    torch.mm(matrix, matrix, out=product)
    driver = Driver()
    if handles:
        pieces = map_handles(driver, HELD_BYTES, size)
        kept: list[torch.Tensor] = []
    else:
        kept = [
            torch.empty(size, dtype=torch.uint8, device="cuda:0") for _ in range(HELD_BYTES // size)
        ]
        pieces = [(piece.data_ptr(), size) for piece in kept]
    for start, length in pieces:
        for offset in range(0, length, GIB):
            count = ctypes.c_size_t(min(GIB, length - offset))
            driver.do("cuMemsetD8_v2", ctypes.c_uint64(start + offset), ctypes.c_ubyte(1), count)
    cuda.synchronize()
    write_line(ready=True, pieces=len(pieces))
    done = cuda.Event(blocking=True)
    while True:
        for _ in range(10):
            torch.mm(matrix, matrix, out=product)
        done.record()
        done.synchronize()


class Pool:
    """Programs that are loaded and wait for a line."""

    def __init__(self, *command: str) -> None:
        self._command = command
        self._waiting = [self._start() for _ in range(AHEAD)]

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.die_with_parent", sys.executable, *self._command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def take(self) -> subprocess.Popen[str]:
        """Return a loaded one, and start the next."""
        self._waiting.append(self._start())
        program = self._waiting.pop(0)
        _read(program)
        return program

    def close(self) -> None:
        """End all that still wait."""
        for program in self._waiting:
            program.kill()
            program.wait()


def _read(program: subprocess.Popen[str]) -> dict[str, Any]:
    assert program.stdout is not None
    answer: dict[str, Any] = json.loads(program.stdout.readline())
    return answer


def _send(program: subprocess.Popen[str], line: str) -> None:
    assert program.stdin is not None
    program.stdin.write(line + "\n")
    program.stdin.flush()


def race(holders: Pool, newcomers: Pool, shape: str, after_s: float) -> dict[str, Any]:
    """Kill a holder of this shape ``after_s`` a newcomer's start; return its outcome."""
    newcomer, holder = newcomers.take(), holders.take()
    _send(holder, shape)
    _read(holder)
    time.sleep(0.3)
    _send(newcomer, "go")
    time.sleep(after_s)
    holder.kill()
    outcome = _read(newcomer)
    newcomer.wait()
    holder.wait()
    return outcome


def free_memory() -> int:
    """Return the free bytes that a bare newcomer sees on the empty GPU."""
    looks = Pool("-m", "benchmarks.newcomer", "bare", "--ask", "0")
    newcomer = looks.take()
    _send(newcomer, "go")
    free = int(_read(newcomer)["free"])
    newcomer.wait()
    looks.close()
    return free


def table(results: Results) -> Sequence[str]:
    """Return the lines of the table."""
    lines = ["| held in | newcomers | time to memory, median | all |", "|---|---|---|---|"]
    for shape in SHAPES:
        times = sorted(record["memory_s"] * 1e3 for record in results.of(shape) if record["got"])
        if times:
            spread = f"{times[0]:.0f} to {times[-1]:.0f} ms"
            got = f"{len(times)} of {len(results.of(shape))}"
            lines.append(f"| {shape} | {got} | {statistics.median(times):.0f} ms | {spread} |")
    return lines


def main() -> None:
    """Race newcomers against each shape in turn, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory_shapes", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("shapes.jsonl"), metavar="FILE")
    parser.add_argument("--rounds", type=int, default=8, metavar="N")
    parser.add_argument("--after", type=float, default=0.0, metavar="SECONDS", help="of the kill")
    parser.add_argument("--hold", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.hold:
        hold()
    host, results = RealHost([0]), Results(given.results)
    (card,) = host.cards
    ask = int(free_memory() * SHARE)
    holders = Pool("-m", "benchmarks.memory_shapes", "--hold")
    newcomers = Pool("-m", "benchmarks.newcomer", "bare", "--ask", str(ask))
    try:
        for number in range(given.rounds):
            for shape in SHAPES:
                while host.used(card.uuid) > EMPTY_BYTES:
                    time.sleep(0.01)
                outcome = race(holders, newcomers, shape, given.after)
                results.add({"cell": shape, "round": number, "after_s": given.after, **outcome})
    finally:
        holders.close()
        newcomers.close()
    print("\n".join(table(results)))


if __name__ == "__main__":
    main()
