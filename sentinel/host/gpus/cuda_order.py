"""Read the order in which CUDA numbers the GPUs, in a process of its own.

CUDA's default is "fastest first", by rules that only the driver knows. Reading it initialises CUDA,
which no long-lived process of sentinel may do. Run as a script, this file is that process, and so
it imports no module of sentinel.
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

#: How long CUDA may take to start; without persistence mode, it takes 1 to 3 s for each GPU.
_TIMEOUT_S = 20.0


def cuda_order_of_this_host() -> tuple[str, ...] | None:
    """List the UUIDs of all GPUs in CUDA's order, or None if CUDA does not answer.

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
        answer, _ = process.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        # A process that hangs in the driver survives SIGKILL, so this does not wait for ever.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1.0)
        return None
    return tuple(json.loads(answer)) if process.returncode == 0 else None


def _ask_cuda() -> list[str]:
    """List the UUIDs in CUDA's order.

    Raises:
        OSError: The CUDA driver is missing or does not answer.
    """
    cuda = ctypes.CDLL("libcuda.so.1")
    # Under MPS and MIG, the second version returns the UUID that NVML uses.
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
