"""Ask CUDA itself in which order it numbers the GPUs, in a process that is thrown away.

CUDA's own default is "fastest first", by rules that only the driver knows, and to ask it means to
initialise it, which no process of ours that lives on may do. Run as a script, this file is that
process, and so it imports nothing of ours.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

#: How long CUDA may take to start, in seconds; without persistence it is 1 to 3 s for each GPU.
_PATIENCE = 20.0


def cuda_order_of_this_host() -> tuple[str, ...] | None:
    """Return the UUIDs of all GPUs in CUDA's order, or ``None`` where CUDA does not say.

    Blocks for up to 20 s.
    """
    environment = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    process = subprocess.Popen(
        [sys.executable, "-I", str(Path(__file__))],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        answer, _ = process.communicate(timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        # One that is stuck in the driver survives even that; it is not waited for.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1.0)
        return None
    return tuple(json.loads(answer)) if process.returncode == 0 else None


def _ask_cuda() -> list[str]:
    """Return the UUIDs in CUDA's order.

    Raises:
        OSError: There is no CUDA driver, or it does not answer.
    """
    cuda = ctypes.CDLL("libcuda.so.1")
    # Under MPS and MIG the second form gives the identity that NVML uses too.
    uuid_of = getattr(cuda, "cuDeviceGetUuid_v2", None) or cuda.cuDeviceGetUuid
    count = ctypes.c_int()
    _check(cuda.cuInit(0), "cuInit")
    _check(cuda.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
    found = []
    for ordinal in range(count.value):
        device = ctypes.c_int()
        raw = (ctypes.c_ubyte * 16)()
        _check(cuda.cuDeviceGet(ctypes.byref(device), ordinal), "cuDeviceGet")
        _check(uuid_of(ctypes.byref(raw), device), "cuDeviceGetUuid")
        found.append(f"GPU-{uuid.UUID(bytes=bytes(raw))}")
    return found


def _check(status: int, call: str) -> None:
    """Raise OSError unless ``status`` is CUDA's success."""
    if status != 0:
        message = f"{call} failed with {status}"
        raise OSError(message)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_ask_cuda()))
