"""Other holders of a GPU, to compare sentinel with.

``floor``: a bare torch program that holds 88 %, works and ignores newcomers. The benchmark kills it
when a newcomer starts; no supervisor can free a GPU sooner. It also prints its rate, which makes it
the bare loop that the load is compared with.

``polling``: a reimplementation of GPU Sentinel: list the processes with nvidia-smi once a second,
and terminate the child that holds 88 % when another process is there.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.die_with_parent import end_with_parent
from benchmarks.measured_line import write_line
from sentinel.host.simulation import Registry

_CHUNK = 512 * 2**20
_SHARE = 0.88
_SIDE = 16384  # a bf16 matrix of this side is one chunk
_POLL = 1.0

Step = Callable[[], dict[str, float]]


def main() -> None:
    """Hold the GPU in the selected way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=["floor", "polling"])
    parser.add_argument("--workload", choices=["gemm", "elementwise", "hold", "jitter"])
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--simulation")
    given = parser.parse_args()
    end_with_parent(signal.SIGKILL)
    threading.Thread(target=end_with_input, daemon=True).start()
    if given.way == "floor":
        hold(given.workload, given.gpu, given.simulation)
    else:
        poll(given.gpu, given.simulation)


def end_with_input() -> None:
    """End when standard input is closed."""
    while sys.stdin.readline():
        pass
    os._exit(0)


# --- the floor -------------------------------------------------------------------------------


def hold(workload: str, gpu: str, simulation: str | None) -> None:
    """Take the memory, report it, work, and print the rate once a second."""
    step = simulated(gpu, simulation) if simulation else real(workload)
    write_line(ready=True, pid=os.getpid())
    since, total = time.monotonic(), dict.fromkeys(("flops", "bytes"), 0.0)
    while True:
        for name, amount in step().items():
            total[name] += amount
        seconds = time.monotonic() - since
        if seconds >= 1:
            write_line(**{f"{name}_per_s": amount / seconds for name, amount in total.items()})
            since, total = time.monotonic(), dict.fromkeys(total, 0.0)


def simulated(gpu: str, simulation: str) -> Step:
    """Hold a simulated GPU and do a little work on the CPU."""
    member = Registry(Path(simulation)).attach(gpu)
    free = Registry(Path(simulation)).memory(gpu).free
    assert member.allocate(int(free * _SHARE))

    def step() -> dict[str, float]:
        time.sleep(0.1)
        return {"flops": 1e9, "bytes": 1e9}

    return step


def real(workload: str) -> Step:
    """Take 88 % of the free memory, run each kernel once, and return one step of work."""
    import torch

    cuda: Any = torch.cuda
    free = cuda.mem_get_info(0)[0]
    chunks = [
        torch.empty(_CHUNK, dtype=torch.uint8, device="cuda")
        for _ in range(int(free * _SHARE) // _CHUNK)
    ]
    works = {"gemm": gemm, "elementwise": copies, "jitter": jitter, "hold": nothing}
    work = works[workload](chunks)
    work()
    cuda.synchronize()
    if workload in {"hold", "jitter"}:
        return work
    fences = [cuda.Event(blocking=True) for _ in range(2)]
    turn = 0

    def step() -> dict[str, float]:
        """Queue work and wait for the previous step: two steps are in flight."""
        nonlocal turn
        done = work()
        fences[turn % 2].record()
        turn += 1
        if turn > 1:
            fences[turn % 2].synchronize()
        return done

    return step


def gemm(chunks: list[Any]) -> Step:
    """Multiply random bf16 matrices into one chunk after another."""
    import torch

    matrices = [chunk.view(torch.bfloat16).view(_SIDE, _SIDE) for chunk in chunks]
    left, right, *results = matrices
    left.normal_()
    right.normal_()
    turn = 0

    def work() -> dict[str, float]:
        nonlocal turn
        torch.mm(left, right, out=results[turn % len(results)])
        turn += 1
        return {"flops": 2.0 * _SIDE**3}

    return work


def copies(chunks: list[Any]) -> Step:
    """Copy each chunk to the next, eight at a time: each byte is read and written."""
    chunks[0].random_()
    turn = 0

    def work() -> dict[str, float]:
        nonlocal turn
        for _ in range(8):
            chunks[(turn + 1) % len(chunks)].copy_(chunks[turn % len(chunks)])
            turn += 1
        return {"bytes": 8 * 2.0 * _CHUNK}

    return work


def nothing(chunks: list[Any]) -> Step:
    """Keep the chunks."""

    def work() -> dict[str, float]:
        time.sleep(0.05)
        return {"bytes": 0.0 * len(chunks)}

    return work


def jitter(chunks: list[Any]) -> Step:
    """Add noise to every chunk through temporaries, then sleep briefly."""
    import torch

    values = [chunk.view(torch.float32) for chunk in chunks]
    for value in values:
        value.normal_()
    chunks.clear()  # each value is replaced by its successor, which needs the room

    def work() -> dict[str, float]:
        for place, value in enumerate(values):
            noise = torch.randn_like(value)
            values[place] = value - value * 0.0001 + value * 0.0001 * noise
        time.sleep(0.1)
        return {"bytes": 2.0 * _CHUNK * len(values)}

    return work


# --- polling ---------------------------------------------------------------------------------


def poll(gpu: str, simulation: str | None) -> None:
    """Hold the GPU with a child; terminate it when a poll shows another process, and end."""
    command = [sys.executable, "-m", "benchmarks.baselines", "floor", "--workload", "jitter"]
    command += ["--gpu", gpu, *(["--simulation", simulation] if simulation else [])]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert json.loads(child.stdout.readline())["ready"]
    threading.Thread(target=child.stdout.read, daemon=True).start()  # the pipe never fills up
    write_line(ready=True, pid=os.getpid())
    while not listed(gpu, simulation) - {child.pid}:
        time.sleep(_POLL)
    child.terminate()
    write_line(terminated_at=time.monotonic())
    child.wait()


def listed(gpu: str, simulation: str | None) -> set[int]:
    """Return the PIDs that nvidia-smi lists on the GPU."""
    if simulation:
        return {process.pid for process in Registry(Path(simulation)).processes(gpu)}
    query = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader"]
    text = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    rows = [line.split(", ") for line in text.splitlines()]
    return {int(pid) for uuid, pid in rows if uuid == gpu}


if __name__ == "__main__":
    main()
