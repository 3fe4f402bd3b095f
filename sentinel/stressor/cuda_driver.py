"""Calls of the CUDA driver that torch does not make, in the context of torch."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch

#: CUDA_ERROR_OUT_OF_MEMORY of cuda.h.
_OUT_OF_MEMORY = 2


@cache
def load_driver() -> Any:
    """Load the library of the driver."""
    return ctypes.CDLL("libcuda.so.1")


def do(call: str, *arguments: Any) -> None:
    """Make a call.

    Raises:
        RuntimeError: It failed.
    """
    check(call, getattr(load_driver(), call)(*arguments))


def check(call: str, status: int) -> None:
    """Raise RuntimeError, worded as torch's, unless ``status`` is success."""
    if status:
        message = f"CUDA error: {describe(status)} ({call})"
        raise RuntimeError(message)


def describe(status: int) -> str:
    """Describe a status in the driver's words."""
    text = ctypes.c_char_p()
    load_driver().cuGetErrorString(status, ctypes.byref(text))
    return (text.value or b"").decode() or f"error {status}"


def driver_version() -> str:
    """Return the version of CUDA that the driver, and so its compiler, has."""
    version = ctypes.c_int()
    do("cuDriverGetVersion", ctypes.byref(version))
    return f"driver {version.value}"


def count_devices() -> int:
    """Count the GPUs that CUDA_VISIBLE_DEVICES leaves visible."""
    count = ctypes.c_int()
    do("cuDeviceGetCount", ctypes.byref(count))
    return count.value


class DriverMemory:
    """Device memory that torch can use and does not own: ``torch.as_tensor`` shares it.

    Args:
        size: Bytes to take.

    Raises:
        torch.cuda.OutOfMemoryError: They are not free.
    """

    def __init__(self, size: int) -> None:
        self._address = ctypes.c_uint64()
        status = load_driver().cuMemAlloc_v2(ctypes.byref(self._address), ctypes.c_size_t(size))
        if status == _OUT_OF_MEMORY:
            raise torch.cuda.OutOfMemoryError(f"CUDA out of memory: {size} bytes")
        check("cuMemAlloc", status)
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (self._address.value, False),
            "version": 3,
        }

    def free(self) -> None:
        """Give it back; nothing may use it any more."""
        do("cuMemFree_v2", self._address)
