"""Which GPU is which without NVML: its device file, and its place in the order of CUDA."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

#: A folder per GPU, named by its PCI address, with a file of lines such as ``Device Minor: 3``.
DRIVER_FILES = Path("/proc/driver/nvidia/gpus")
#: The name of that file.
INFORMATION = "information"
_ADDRESS = re.compile(r"^Bus Location:\s*(\S+)", re.MULTILINE)
_MINOR = re.compile(r"^Device Minor:\s*(\d+)", re.MULTILINE)

#: How long CUDA may take to start; without persistence mode, it takes 1 to 3 s for each GPU.
_TIMEOUT_S = 20.0


def addresses_by_minor(folder: Path = DRIVER_FILES) -> dict[int, str]:
    """Read the PCI address of each GPU, by the minor number of its device file.

    Minor numbers are in the order in which the driver found the GPUs; NVML's indices are in the
    order of the PCI bus. The file has the UUID, too, but only once the GPU was used.

    Args:
        folder: The driver's files, or the folder of simulated GPUs. Without them, the result is
            empty.
    """
    found: dict[int, str] = {}
    for file in folder.glob(f"*/{INFORMATION}"):
        try:
            text = file.read_text()
        except OSError:
            continue  # the GPU has just been removed
        address, minor = _ADDRESS.search(text), _MINOR.search(text)
        if address is not None and minor is not None:
            found[int(minor[1])] = address[1]
    return found


def information(address: str, minor: int) -> str:
    """Write the lines that :func:`addresses_by_minor` reads, for a simulated GPU."""
    return f"Bus Location: \t {address}\nDevice Minor: \t {minor}\n"


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
